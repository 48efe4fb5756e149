"""What belongs to a checkpoint of each layout, when it is whole, and which rank reads what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusestripe.checkpoints import (
    Local,
    Ranks,
    Tracker,
    Unreadable,
    layout_of,
    missing_from,
    needed_by,
    order,
    parts_of,
    pickled,
    tracked,
)
from fusestripe.checkpoints.indexes import names_in_json, names_in_tag, tag_of
from fusestripe.checkpoints.megatron import iteration_of
from tests.support.dcp_metadata import metadata

sizes = st.integers(1, 4)


def lack(files: Mapping[str, int], contents: Mapping[str, bytes] | None = None) -> str:
    """What is missing from a checkpoint with these files; ``contents`` are those of its indexes."""
    parts = parts_of(files)
    named: dict[str, dict[str, int] | Unreadable] = {}
    if not any(part.lack for part in parts):
        for index in (index for part in parts for index in part.indexes):
            data = (contents or {})[index.path]
            try:
                if index.kind == "dcp":
                    named[index.path] = pickled.stored_lengths(data)
                else:
                    named[index.path] = (names_in_json if index.kind == "json" else names_in_tag)(data)
            except Unreadable as error:
                named[index.path] = error
    return missing_from(parts, files, named)


def local(files: Mapping[str, int], *ranks: int, world: int | None = None) -> Local:
    return needed_by(parts_of(files), files, Ranks(ranks, world))


def layout(files: Iterable[str]) -> str:
    return layout_of(parts_of(dict.fromkeys(files, 1)))


def all_of(names: Iterable[str]) -> dict[str, int]:
    return dict.fromkeys(names, 100)


# torch.distributed.checkpoint


def dcp(world: int, each: int = 1) -> tuple[dict[str, int], bytes]:
    """The files of a checkpoint of so many ranks, and its .metadata."""
    items = {f"__{rank}_{n}.distcp": [60, 40] for rank in range(world) for n in range(each)}
    return {".metadata": 500} | {name: sum(lengths) for name, lengths in items.items()}, metadata(items)


@given(sizes, sizes, st.data())
def test_dcp_is_whole_with_every_byte_that_its_metadata_names(
    world: int, each: int, data: st.DataObject
) -> None:
    files, names = dcp(world, each)
    assert layout(files) == "torch.distributed.checkpoint"
    assert lack(files, {".metadata": names}) == ""
    name = data.draw(st.sampled_from(sorted(files.keys() - {".metadata"})))
    size = data.draw(st.integers(0, 99))
    assert lack(files | {name: size}, {".metadata": names}) == f"{name} has {size} bytes of 100"
    assert lack(files | {name: 101}, {".metadata": names}) == ""
    del files[name]
    assert lack(files, {".metadata": names}) == f"{name} is missing"


def test_dcp_without_its_metadata_is_being_written() -> None:
    files, _ = dcp(2)
    del files[".metadata"]
    assert lack(files) == ".metadata is missing"
    assert lack(files | {".metadata.tmp": 10}) == ".metadata is missing"
    below = {f"model/{name}": size for name, size in files.items()}
    assert lack(below) == "model/.metadata is missing"


def test_dcp_of_ranks_that_save_by_themselves() -> None:
    files = {f"__{rank}_0.distcp": 100 for rank in range(3)} | {f"__{rank}.metadata": 9 for rank in range(3)}
    contents = {f"__{rank}.metadata": metadata({f"__{rank}_0.distcp": [100]}) for rank in range(3)}
    assert lack(files, contents) == ""
    for rank in range(3):
        rest = {name: size for name, size in files.items() if name != f"__{rank}.metadata"}
        assert lack(rest, contents) == f"__{rank}.metadata is missing"


@pytest.mark.parametrize("name", ["../__0_0.distcp", "/etc/passwd", "a/../../b"])
def test_dcp_that_names_files_elsewhere(name: str) -> None:
    files = {"sub/.metadata": 9, "sub/__0_0.distcp": 1}
    assert lack(files, {"sub/.metadata": metadata({name: [1]})}) == "sub/.metadata names a file elsewhere"


@given(st.integers(1, 9), st.integers(1, 3), st.data())
def test_dcp_each_rank_reads_what_it_wrote(world: int, each: int, data: st.DataObject) -> None:
    files, _ = dcp(world, each)
    ranks = data.draw(st.lists(st.integers(0, world - 1), min_size=1, unique=True).map(sorted))
    found = local(files, *ranks, world=data.draw(st.sampled_from([None, world])))
    assert found.why_all == ""
    kept = files.keys() - found.spared
    assert kept == {".metadata"} | {f"__{rank}_{n}.distcp" for rank in ranks for n in range(each)}


def test_dcp_for_another_number_of_ranks_is_brought_whole() -> None:
    files, _ = dcp(4)
    assert local(files, 0, world=8) == Local(why_all="4 ranks wrote it and 8 read it")
    assert local(files, 3, 4) == Local(why_all="rank 4 wrote no file of it")


# DeepSpeed


def deepspeed(dp: int, mp: int, *, stage: int = 1, prefix: str = "") -> dict[str, int]:
    names = [
        f"{prefix}zero_pp_rank_{d}_mp_rank_{m:02d}_optim_states.pt" for d in range(dp) for m in range(mp)
    ]
    if stage == 3:
        names += [f"zero_pp_rank_{d}_mp_rank_{m:02d}_model_states.pt" for d in range(dp) for m in range(mp)]
    else:
        names += [f"mp_rank_{m:02d}_model_states.pt" for m in range(mp)]
    return all_of(names)


@given(sizes, sizes, st.sampled_from([1, 3]), st.sampled_from(["", "bf16_", "fp16_"]), st.data())
def test_deepspeed_is_whole_with_every_shard_of_the_set(
    dp: int, mp: int, stage: int, prefix: str, data: st.DataObject
) -> None:
    files = deepspeed(dp, mp, stage=stage, prefix=prefix)
    assert layout(files) == "DeepSpeed"
    assert lack(files) == ""
    name = data.draw(st.sampled_from(sorted(files)))
    assert lack(files | {name: 0}) == f"{name} is empty"
    del files[name]
    # The names imply a smaller set where the last rank has written nothing at all: `latest` knows of it.
    if dp * mp == 1:
        assert (lack(files) != "") == ("model" in name)
    elif stage == 3 or mp > 1 or "model" in name or f"_rank_{dp - 1}_" not in name:
        assert lack(files) == f"{name} is missing"


def test_deepspeed_without_model_states_and_with_experts_and_pipelines() -> None:
    files = deepspeed(2, 1)
    del files["mp_rank_00_model_states.pt"]
    assert lack(files) == "mp_rank_00_model_states.pt is missing"
    experts = all_of(f"expp_rank_{n}_mp_rank_00_optim_states.pt" for n in (0, 2))
    experts |= all_of(["mp_rank_00_model_states.pt", "layer_0_expert_5_mp_rank_00_model_states.pt"])
    assert lack(experts) == "expp_rank_1_mp_rank_00_optim_states.pt is missing"
    assert lack(experts | {"expp_rank_1_mp_rank_00_optim_states.pt": 1}) == ""
    assert local(experts, 0).spared == frozenset()


@given(sizes, sizes, st.sampled_from([1, 3]))
def test_deepspeed_ranks_share_out_everything(dp: int, mp: int, stage: int) -> None:
    files = deepspeed(dp, mp, stage=stage) | {"zero_to_fp32.py": 5}
    world = dp * mp
    everything: set[str] = set()
    for rank in range(world):
        found = local(files, rank, world=world)
        assert found.why_all == ""
        kept = files.keys() - found.spared
        d, m = divmod(rank, mp)
        assert f"zero_pp_rank_{d}_mp_rank_{m:02d}_optim_states.pt" in kept
        assert len(kept) == 3
        everything |= kept
    assert everything == files.keys()
    assert local(files, *range(world)).spared == frozenset()


def test_deepspeed_where_names_do_not_tell() -> None:
    files = deepspeed(2, 2)
    assert local(files, 4).why_all == "4 ranks wrote it and rank 4 reads it"
    assert local(files, 0, world=8).why_all == "4 ranks wrote it and 8 read it"
    assert "pipelines" in local(files | {"layer_03-model_00-model_states.pt": 1}, 0).why_all
    plain = all_of(f"mp_rank_{m:02d}_model_states.pt" for m in range(2))
    assert local(plain, 3, 5).spared == {"mp_rank_00_model_states.pt"}


def test_latest_inside_of_a_checkpoint_names_a_directory_that_is_there() -> None:
    """As the Trainer leaves it with DeepSpeed."""
    inside = {f"global_step9/{name}": size for name, size in deepspeed(2, 1).items()}
    files = inside | {"latest": 12, "trainer_state.json": 5}
    assert layout(files) == "DeepSpeed, Hugging Face Trainer"
    assert lack(files, {"latest": b"global_step9\n"}) == ""
    assert lack(files, {"latest": b"global_step10"}) == "global_step10/ is missing, which latest names"
    assert lack(files, {"latest": b"a/b"}) == "latest names no directory"
    del files["global_step9/zero_pp_rank_0_mp_rank_00_optim_states.pt"]
    assert lack(files) == "global_step9/zero_pp_rank_0_mp_rank_00_optim_states.pt is missing"
    assert local(inside | {"latest": 12}, 1).spared == {
        "global_step9/zero_pp_rank_0_mp_rank_00_optim_states.pt"
    }


# Megatron


def megatron(tp: int, pp: int, *, with_pp: bool, optimizer: bool = True) -> dict[str, int]:
    pieces = [
        f"mp_rank_{t:02d}_{p:03d}" if with_pp else f"mp_rank_{t:02d}" for t in range(tp) for p in range(pp)
    ]
    names = ["model_optim_rng.pt", *(["distrib_optim.pt"] if optimizer else [])]
    return all_of(f"{piece}/{name}" for piece in pieces for name in names)


@given(sizes, sizes, st.booleans(), st.data())
def test_megatron_is_whole_with_every_piece(tp: int, pp: int, optimizer: bool, data: st.DataObject) -> None:
    files = megatron(tp, pp, with_pp=True, optimizer=optimizer)
    assert layout(files) == "Megatron"
    assert lack(files) == ""
    name = data.draw(st.sampled_from(sorted(files)))
    assert lack(files | {name: 0}) == f"{name} is empty"
    piece = name.partition("/")[0]
    del files[name]
    if optimizer and tp * pp > 1:
        assert lack(files) == f"{name} is missing"
    rest = {other: size for other, size in files.items() if not other.startswith(f"{piece}/")}
    if tp > 1 and pp > 1:
        assert lack(rest) == f"{piece} is missing"


@given(sizes, sizes, st.integers(1, 3))
def test_megatron_ranks_share_out_everything(tp: int, pp: int, dp: int) -> None:
    files = megatron(tp, pp, with_pp=pp > 1)
    world = tp * pp * dp
    for rank in range(world):
        found = local(files, rank, world=world)
        assert found.why_all == ""
        t, p = rank % tp, rank // (tp * dp)
        piece = f"mp_rank_{t:02d}_{p:03d}" if pp > 1 else f"mp_rank_{t:02d}"
        assert {name.partition("/")[0] for name in files.keys() - found.spared} == {piece}


def test_megatron_where_names_do_not_tell() -> None:
    assert "--ranks 0-7/64" in local(megatron(2, 2, with_pp=True), 0).why_all
    assert local(megatron(2, 1, with_pp=False), 0).spared == {
        "mp_rank_01/model_optim_rng.pt",
        "mp_rank_01/distrib_optim.pt",
    }
    assert "multiple" in local(megatron(2, 2, with_pp=True), 0, world=6).why_all
    assert "experts" in local(all_of(["mp_rank_00_000_000/model_optim_rng.pt"]), 0, world=8).why_all


def test_megatron_with_the_files_of_torch_in_it() -> None:
    files, names = dcp(2)
    files |= {"common.pt": 5, "metadata.json": 5}
    inside = {f"iter_0000100/{name}": size for name, size in files.items()}
    assert layout(inside) == "torch.distributed.checkpoint"
    assert lack(inside, {"iter_0000100/.metadata": names}) == ""
    assert local(inside, 1).spared == {"iter_0000100/__0_0.distcp"}


@pytest.mark.parametrize(
    ("text", "name"),
    [(b"100", "iter_0000100"), (b" 12345678\n", "iter_12345678"), (b"release\n", "release")],
)
def test_the_tracker_of_megatron(text: bytes, name: str) -> None:
    assert iteration_of(text) == name
    assert [iteration_of(bad) for bad in (b"", b"-1", b"iter", b"\xff", b"1 2", b"9" * 99)] == [""] * 6


# Hugging Face

SHARDS = [f"model-{n:05d}-of-00003.safetensors" for n in (1, 2, 3)]
INDEX = b'{"metadata": {"total_size": 1}, "weight_map": {"a": "%s", "b": "%s", "c": "%s"}}' % tuple(
    name.encode() for name in SHARDS
)


def test_safetensors_with_an_index() -> None:
    files = all_of(["config.json", "model.safetensors.index.json", *SHARDS])
    contents = {"model.safetensors.index.json": INDEX}
    assert layout(files) == "safetensors"
    assert lack(files, contents) == ""
    for name in SHARDS:
        assert lack({other: 1 for other in files if other != name}, contents) == f"{name} is missing"
        assert lack(files | {name: 0}, contents) == f"{name} is empty"
    assert lack(all_of(SHARDS)) == "model.safetensors.index.json is missing"
    assert "safetensors does not say" in local(files, 0).why_all
    for bad in (b"", b"{}", b"[" * 100_000, b'{"weight_map": {"a": 1}}', b"\xff"):
        said = lack(files, {"model.safetensors.index.json": bad})
        assert said == "model.safetensors.index.json is no index of shards"
    elsewhere = {"model.safetensors.index.json": b'{"weight_map": {"a": "../b"}}'}
    assert "elsewhere" in lack(files, elsewhere)


@pytest.mark.parametrize("name", ["model.safetensors", "adapter_model.safetensors", "pytorch_model.bin"])
def test_one_file_of_weights(name: str) -> None:
    assert lack({name: 10, "config.json": 0}) == ""
    assert lack({name: 0}) == f"{name} is empty"


def test_weights_in_shards_that_are_pickles() -> None:
    files = all_of([f"pytorch_model-{n:05d}-of-00002.bin" for n in (1, 2)])
    assert layout(files) == "PyTorch weights"
    assert lack(files) == "pytorch_model.bin.index.json is missing"
    index = (
        b'{"weight_map": {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}}'
    )
    assert lack(files | {"pytorch_model.bin.index.json": 9}, {"pytorch_model.bin.index.json": index}) == ""


def test_the_trainer_ends_with_its_state() -> None:
    files = all_of(["model.safetensors", "optimizer.pt", "training_args.bin", "rng_state_0.pth"])
    assert layout(files) == "Hugging Face Trainer, safetensors"
    assert lack(files) == "trainer_state.json is missing"
    assert lack(files | {"trainer_state.json": 5}) == ""


# All of them


def test_what_is_no_checkpoint() -> None:
    assert parts_of({}) == []
    assert parts_of(all_of(["model.pt", "notes.txt", "runs/events.out.tfevents.1", "latest"])) == []
    assert "no layout" in local(all_of(["model.pt"]), 0).why_all


def test_one_layout_that_tells_beside_one_that_does_not() -> None:
    inside = {f"global_step9/{name}": size for name, size in deepspeed(2, 1).items()}
    found = local(inside | all_of(["model.safetensors"]), 0)
    assert found.spared == {"global_step9/zero_pp_rank_1_mp_rank_00_optim_states.pt"}
    assert found.why_all == "safetensors does not say which rank reads what"


paths = st.text("_./-0123456789", max_size=4).map(lambda text: text.strip("/")) | st.sampled_from(
    [
        *deepspeed(2, 2),
        *megatron(2, 2, with_pp=True),
        *megatron(1, 1, with_pp=False),
        *SHARDS,
        "__0_0.distcp",
        "__7.metadata",
        "latest",
        "model.safetensors",
        "training_args.bin",
        "expp_rank_3_mp_rank_01_optim_states.pt",
    ]
)


@given(
    st.dictionaries(st.tuples(st.sampled_from(["", "a/", "a/b/"]), paths).map("".join), st.integers(0, 3)),
    st.lists(st.integers(0, 9), min_size=1, unique=True).map(sorted),
    st.none() | st.integers(10, 20),
)
def test_any_files_give_an_answer(files: dict[str, int], ranks: list[int], world: int | None) -> None:
    parts = parts_of(files)
    assert all("\n" not in part.lack for part in parts)
    found = needed_by(parts, files, Ranks(tuple(ranks), world))
    assert found.spared <= files.keys()
    assert all(index.path in files for part in parts for index in part.indexes)


@given(st.lists(st.integers(0, 10**9), unique=True))
def test_numbers_order_checkpoints(steps: list[int]) -> None:
    newest = sorted(steps, reverse=True)
    assert order(f"step-{step}" for step in steps) == [f"step-{step}" for step in newest]
    named = [f"iter_{step:07d}" for step in newest]
    for place, name in enumerate(named):
        assert tracked({*named, "runs-1", "other"}, Tracker("t", name)) == (named[:place], named[place:])


def test_names_of_several_numbers_and_of_none() -> None:
    assert order(["epoch=2-step=9", "epoch=10-step=8", "best"]) == ["epoch=10-step=8", "epoch=2-step=9"]
    assert order(["2026-01-30", "2025-12-31"]) == ["2026-01-30", "2025-12-31"]
    assert order(["tmp-checkpoint-9", "checkpoint-8", "checkpoint-9.tmp", ".x-9"]) == ["checkpoint-8"]
    assert order(["v2-step9", "step10"]) == ["step10", "v2-step9"]
    assert tracked(["iter_0000001", "release"], Tracker("t", "release")) == (["iter_0000001"], ["release"])
    assert tracked(["global_step1"], Tracker("t", "global_step5")) == ([], ["global_step5", "global_step1"])


@pytest.mark.parametrize("bad", [b"", b"a/b", b"..", b"a\nb", b"\xff", b"x" * 300, b"\x1b[2J"])
def test_a_tag_is_one_name(bad: bytes) -> None:
    assert tag_of(bad) == ""
