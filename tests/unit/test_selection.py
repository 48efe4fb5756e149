"""The newest whole checkpoint, and what some ranks read of it: over a tree, whatever changes meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from fusestripe import selection
from fusestripe.checkpoints import Ranks
from fusestripe.errors import NotFound, OriginUnavailable
from fusestripe.namespace.routes import RouteTable
from fusestripe.namespace.tree import Listing, Tree
from fusestripe.prefetcher import Report
from fusestripe.selection import UNKNOWN, Choice, Chooser, Selected, Skipped, Wanted
from tests.support.dcp_metadata import metadata
from tests.support.memory_origin import MemoryOrigin
from tests.unit.test_reader import House

LATEST = Wanted(latest=True)


def dcp(path: str, world: int = 2) -> dict[str, bytes]:
    files = {f"{path}/__{rank}_0.distcp": b"x" * 100 for rank in range(world)}
    return files | {f"{path}/.metadata": metadata({f"__{rank}_0.distcp": [100] for rank in range(world)})}


def deepspeed(path: str, dp: int = 2) -> dict[str, bytes]:
    names = [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(dp)]
    return {f"{path}/{name}": b"state" for name in (*names, "mp_rank_00_model_states.pt")}


def megatron(path: str, tp: int = 2) -> dict[str, bytes]:
    return {f"{path}/mp_rank_{rank:02d}/model_optim_rng.pt": b"piece" for rank in range(tp)}


class Shop:
    """A tree of some files, and choices made in it."""

    def __init__(self, nursery: trio.Nursery, cache: Path, files: dict[str, bytes], **routes: object) -> None:
        self.origin = MemoryOrigin(files)
        self.house = House(nursery, cache, origin=self.origin)
        self.tree = Tree(RouteTable({"": self.origin}), nursery, ttl=60, negative_ttl=5, timeout=1)

    async def select(self, wanted: Wanted = LATEST, *paths: str) -> Selected:
        return await Chooser(self.tree, self.house.reader).select(paths or ("run",), wanted)

    async def choice(self, wanted: Wanted = LATEST) -> Choice:
        selected = await self.select(wanted)
        assert selected.failures == ()
        (choice,) = selected.choices
        return choice

    async def refusal(self, wanted: Wanted = LATEST) -> str:
        selected = await self.select(wanted)
        assert (selected.choices, selected.paths) == ((), ())
        (failure,) = selected.failures
        assert (failure.path, failure.state) == ("run", "failed")
        return failure.error


async def test_without_a_choice_nothing_is_asked(nursery: trio.Nursery, tmp_path: Path) -> None:
    shop = Shop(nursery, tmp_path, {})
    assert await shop.select(Wanted(), "a", "no/such") == Selected(("a", "no/such"))
    assert shop.origin.asked == {}


async def test_the_newest_whole_one_is_taken(nursery: trio.Nursery, tmp_path: Path) -> None:
    files = dcp("run/step-100") | dcp("run/step-200") | dcp("run/step-300") | dcp("run/step-1000")
    files["run/step-300/__1_0.distcp"] = b"short"
    del files["run/step-1000/.metadata"]
    files |= {"run/step-2000/__0_0.distcp": b"", "run/logs-3000/events": b"e", "run/best/model.pt": b"p"}
    shop = Shop(nursery, tmp_path, files)
    selected = await shop.select()
    assert selected.paths == ("run/step-200",)
    (choice,) = selected.choices
    assert (choice.path, choice.taken) == ("run", "run/step-200")
    assert choice.layout == "torch.distributed.checkpoint"
    assert (choice.files, choice.bytes) == (3, 200 + len(files["run/step-200/.metadata"]))
    assert choice.skipped == (
        Skipped("run/step-2000", ".metadata is missing"),
        Skipped("run/step-1000", ".metadata is missing"),
        Skipped("run/step-300", "__1_0.distcp has 5 bytes of 100"),
    )


async def test_one_of_no_layout_is_told_where_it_is_named_alike(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    shop = Shop(nursery, tmp_path, dcp("run/step-1") | {"run/step-2/model.pt": b"p"})
    choice = await shop.choice()
    assert choice.skipped == (Skipped("run/step-2", "no checkpoint of a layout that is known"),)
    # Or says itself that it is one.
    files = dcp("run/run-7") | {f"run/{name}/model.pt": b"p" for name in ("step-9", "epoch=8", "logs-10")}
    choice = await Shop(nursery, tmp_path / "b", files).choice()
    assert choice.skipped == (Skipped("run/step-9", UNKNOWN), Skipped("run/epoch=8", UNKNOWN))


async def test_what_has_just_been_written_counts(nursery: trio.Nursery, tmp_path: Path) -> None:
    """The mount may have listed the directory before, and believes that for a minute."""
    shop = Shop(nursery, tmp_path, dcp("run/step-1"))
    assert (await shop.choice()).taken == "run/step-1"
    half = dcp("run/step-2")
    last = half.pop("run/step-2/.metadata")
    shop.origin.files |= half
    await trio.sleep(0.01)  # the clock of the tree moves on
    assert (await shop.choice()).skipped == (Skipped("run/step-2", ".metadata is missing"),)
    shop.origin.files["run/step-2/.metadata"] = last
    await trio.sleep(0.01)
    selected = await shop.select()
    assert selected.paths == ("run/step-2",)


async def test_latest_of_deepspeed(nursery: trio.Nursery, tmp_path: Path) -> None:
    files = deepspeed("run/global_step1") | deepspeed("run/global_step2") | deepspeed("run/global_step3")
    files["run/latest"] = b"global_step2"
    shop = Shop(nursery, tmp_path, files)
    selected = await shop.select()
    # The job reads the file too.
    assert selected.paths == ("run/global_step2", "run/latest")
    reason = "still being written: latest names global_step2"
    assert selected.choices[0].skipped == (Skipped("run/global_step3", reason),)

    del shop.origin.files["run/global_step2/zero_pp_rank_0_mp_rank_00_optim_states.pt"]
    shop.tree.forget("run/global_step2/any")
    choice = await shop.choice()
    assert choice.taken == "run/global_step1"
    lack = "zero_pp_rank_0_mp_rank_00_optim_states.pt is missing"
    assert choice.skipped[1:] == (Skipped("run/global_step2", lack),)


async def test_latest_that_names_what_is_not_there(nursery: trio.Nursery, tmp_path: Path) -> None:
    files = deepspeed("run/global_step1") | deepspeed("run/global_step9") | {"run/latest": b"global_step5\n"}
    choice = await Shop(nursery, tmp_path, files).choice()
    assert choice.taken == "run/global_step1"
    assert [one.path for one in choice.skipped] == ["run/global_step9", "run/global_step5"]
    assert choice.skipped[1].reason == "missing, though latest names it"


async def test_the_tracker_of_megatron(nursery: trio.Nursery, tmp_path: Path) -> None:
    files = megatron("run/iter_0000100") | megatron("run/iter_0000200")
    files["run/latest_checkpointed_iteration.txt"] = b"100"
    shop = Shop(nursery, tmp_path, files)
    selected = await shop.select()
    assert selected.paths == ("run/iter_0000100", "run/latest_checkpointed_iteration.txt")
    reason = "still being written: latest_checkpointed_iteration.txt names iter_0000100"
    assert selected.choices[0].skipped == (Skipped("run/iter_0000200", reason),)
    # One of a layout that is not known is whole where the tracker says so.
    files["run/iter_0000300/weights.zarr"] = b"z"
    files["run/latest_checkpointed_iteration.txt"] = b"300"
    assert (await Shop(nursery, tmp_path / "b", files).choice()).taken == "run/iter_0000300"
    files["run/latest_checkpointed_iteration.txt"] = b"release"
    files["run/release/mp_rank_00/model_optim_rng.pt"] = b"r"
    assert (await Shop(nursery, tmp_path / "c", files).choice()).taken == "run/release"
    files["run/latest_checkpointed_iteration.txt"] = b""
    assert (await Shop(nursery, tmp_path / "d", files).choice()).taken == "run/iter_0000200"


async def test_two_trackers(nursery: trio.Nursery, tmp_path: Path) -> None:
    """As Megatron-DeepSpeed leaves them."""
    files = deepspeed("run/global_step7")
    files |= {"run/latest": b"global_step7", "run/latest_checkpointed_iteration.txt": b"7"}
    selected = await Shop(nursery, tmp_path, files).select()
    assert selected.paths[0] == "run/global_step7"
    assert set(selected.paths[1:]) == {"run/latest", "run/latest_checkpointed_iteration.txt"}


async def test_a_directory_that_is_a_checkpoint_itself(nursery: trio.Nursery, tmp_path: Path) -> None:
    shop = Shop(nursery, tmp_path, dcp("run"))
    assert (await shop.select()).paths == ("run",)
    del shop.origin.files["run/__0_0.distcp"]
    await trio.sleep(0.01)
    assert "__0_0.distcp is missing" in await shop.refusal()


@pytest.mark.parametrize("inside", ["mp_rank", "logs", "trainer"])
async def test_a_checkpoint_itself_with_numbers_below(
    nursery: trio.Nursery, tmp_path: Path, inside: str
) -> None:
    files = {
        "mp_rank": megatron("run"),
        "logs": dcp("run") | {"run/logs-3/events": b"e"},
        "trainer": {f"run/{name}": b"x" for name in ("trainer_state.json", "training_args.bin")}
        | deepspeed("run/global_step5")
        | {"run/latest": b"global_step5"},
    }[inside]
    choice = await Shop(nursery, tmp_path, files).choice()
    assert (choice.taken, choice.skipped, choice.files) == ("run", (), len(files))


async def test_a_tracker_that_is_overwritten_meanwhile(nursery: trio.Nursery, tmp_path: Path) -> None:
    files = deepspeed("run/global_step1") | deepspeed("run/global_step2") | {"run/latest": b"global_step1"}
    shop = Shop(nursery, tmp_path, files)
    left = [b"global_step2"]

    def gate(path: str, _offset: int, _length: int) -> None:
        if path == "run/latest" and left:
            shop.origin.replace(path, left.pop())

    shop.origin.gate = gate
    assert (await shop.choice()).taken == "run/global_step2"

    def never_still(path: str, _offset: int, _length: int) -> None:
        if path == "run/latest":
            shop.origin.replace(path, b"global_step1")

    shop.origin.gate = never_still
    shop.origin.replace("run/latest", b"global_step2")
    await trio.sleep(0.01)
    assert "run/latest" in await shop.refusal()


async def test_one_that_goes_while_it_is_looked_at(nursery: trio.Nursery, tmp_path: Path) -> None:
    files = dcp("run/step-1") | dcp("run/step-2")
    shop = Shop(nursery, tmp_path, files)
    real = shop.tree.list_dir

    async def list_dir(path: str) -> Listing:
        if path == "run/step-2":
            raise NotFound("it was rotated away")
        return await real(path)

    shop.tree.list_dir = list_dir  # type: ignore[method-assign]
    choice = await shop.choice()
    assert (choice.taken, choice.skipped) == ("run/step-1", (Skipped("run/step-2", "gone meanwhile"),))


async def test_nothing_to_take(nursery: trio.Nursery, tmp_path: Path) -> None:
    files = {f"run/step-{step}/__0_0.distcp": b"x" for step in range(9)} | {"run/best/model.pt": b"p"}
    said = await Shop(nursery, tmp_path, files).refusal()
    assert said == (
        "there is no whole checkpoint in memory:///run (step-8: .metadata is missing; "
        "step-7: .metadata is missing; step-6: .metadata is missing; and 6 more)"
    )
    shop = Shop(nursery, tmp_path / "b", {"run/best/model.pt": b"p", "file": b"x"})
    assert await shop.refusal() == "there is no whole checkpoint in memory:///run"
    shop.origin.files["run/model.pt"] = b"p"
    shop.tree.forget("run/any")
    assert await shop.refusal() == f"there is no whole checkpoint in memory:///run ({UNKNOWN})"
    selected = await shop.select(LATEST, "file", "nothing")
    assert [failure.mend for failure in selected.failures] == ["--latest wants a directory", ""]


async def test_a_hostile_pickle_is_a_reason(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = dcp("run/step-1") | dcp("run/step-2") | dcp("run/step-3")
    files["run/step-2/.metadata"] = b"cos\nsystem\n(S'touch " + str(tmp_path).encode() + b"/done'\ntR."
    files["run/step-3/.metadata"] = b"\x80\x04]" + b"]a" * 500
    monkeypatch.setattr(selection, "INDEX_MAXIMUM", 1000)
    choice = await Shop(nursery, tmp_path / "cache", files).choice()
    assert choice.taken == "run/step-1"
    assert [one.reason for one in choice.skipped] == [
        ".metadata has 1003 B, too much to be looked into",
        ".metadata is refused: it names 'os.system', which torch's metadata does not",
    ]
    assert not (tmp_path / "done").exists()


async def test_what_changes_while_it_is_looked_at_is_not_taken(nursery: trio.Nursery, tmp_path: Path) -> None:
    shop = Shop(nursery, tmp_path, dcp("run/step-1") | dcp("run/step-2"))

    def gate(path: str, _offset: int, _length: int) -> None:
        if path == "run/step-2/.metadata":
            shop.origin.replace(path, b"new")

    shop.origin.gate = gate
    choice = await shop.choice()
    assert choice.taken == "run/step-1"
    assert choice.skipped == (Skipped("run/step-2", ".metadata changed while it was read"),)


async def test_an_origin_that_fails_is_no_reason_to_take_an_older_one(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    shop = Shop(nursery, tmp_path, dcp("run/step-1") | dcp("run/step-2"))
    shop.origin.failures = [OriginUnavailable("down")] * 1000
    assert await shop.refusal() == "down"


async def test_ranks_of_what_is_taken(nursery: trio.Nursery, tmp_path: Path) -> None:
    files = deepspeed("run/global_step1", 4) | {"run/latest": b"global_step1"}
    shop = Shop(nursery, tmp_path, files)
    selected = await shop.select(Wanted(latest=True, ranks=Ranks((2, 3), 4)))
    assert set(selected.paths) == {
        "run/latest",
        "run/global_step1/mp_rank_00_model_states.pt",
        "run/global_step1/zero_pp_rank_2_mp_rank_00_optim_states.pt",
        "run/global_step1/zero_pp_rank_3_mp_rank_00_optim_states.pt",
    }
    (choice,) = selected.choices
    assert (choice.files, choice.bytes, choice.left, choice.left_bytes) == (5, 25, 2, 10)
    assert choice.note == "ranks 2-3 of 4: 3 of 5 files"


async def test_ranks_of_what_is_named(nursery: trio.Nursery, tmp_path: Path) -> None:
    files = dcp("a/step-1") | {"b/model.safetensors": b"12345678", "c": b"x"}
    shop = Shop(nursery, tmp_path, files)
    selected = await shop.select(Wanted(ranks=Ranks((1,))), "a/step-1", "b", "c")
    assert selected.paths == ("a/step-1/.metadata", "a/step-1/__1_0.distcp", "b", "c")
    assert [choice.note for choice in selected.choices] == [
        "rank 1: 2 of 3 files",
        "rank 1: all of it: safetensors does not say which rank reads what",
        "rank 1: all of it: a file",
    ]


async def test_a_metadata_that_no_listing_shows(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nginx leaves names that begin with a dot out of its index."""

    class Hiding(MemoryOrigin):
        lists_trees = False

        def hides(self, name: str) -> bool:
            return name.startswith(".")

        def list_dir(self, path: str):  # type: ignore[no-untyped-def]
            for page in super().list_dir(path):
                yield [entry for entry in page if not entry.name.startswith(".")]

    shop = Shop(nursery, tmp_path, {})
    shop.origin = Hiding(dcp("run/step-1") | {"run/step-2/__0_0.distcp": b"x"})
    shop.tree = Tree(RouteTable({"": shop.origin}), nursery, ttl=60, negative_ttl=5, timeout=1)
    selected = await shop.select()
    assert selected.choices[0].taken == "run/step-1"
    assert "run/step-1/.metadata" in selected.paths
    assert len(selected.paths) == 3


async def test_a_failure_is_a_report(nursery: trio.Nursery, tmp_path: Path) -> None:
    shop = Shop(nursery, tmp_path, dcp("run/step-1"))
    told: list[Report | Choice] = []

    async def send(what: Report | Choice) -> None:
        told.append(what)

    house = shop.house
    paths = ["run", "nothing"]
    await selection.prefetch_wanted(shop.tree, house.reader, house.prefetcher, paths, LATEST, send)
    choices = [one for one in told if isinstance(one, Choice)]
    ended = {one.path: one.state for one in told if isinstance(one, Report)}
    assert [choice.taken for choice in choices] == ["run/step-1"]
    assert told[0] is choices[0]
    assert ended["nothing"] == "failed"
    assert {state for path, state in ended.items() if path != "nothing"} == {"done"}
    assert len(ended) == 4
