"""Prologues of jobs on a real mount of a real store: the newest whole checkpoint, plans, pins, ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fusestripe
from fusestripe.cache.catalogue import CacheCatalogue
from tests.support.dcp_metadata import HostileCall, Metadata, dumped, metadata
from tests.support.mounted import Mounted
from tests.support.mounted_store import KIB, MountedStore, content
from tests.support.web_server import WebServer

SIZE = 300 * KIB


def run(*args: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fusestripe.cli", "prefetch", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    return done


def lines_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def put_deepspeed(store: MountedStore, tag: str, dp: int = 2) -> list[str]:
    names = [f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(dp)]
    names.append("mp_rank_00_model_states.pt")
    for seed, name in enumerate(names):
        store.put(f"run/{tag}/{name}", content(SIZE, seed))
    return names


def put_dcp(store: MountedStore, step: str, world: int = 2, *, last: bool = True) -> None:
    for rank in range(world):
        store.put(f"run/{step}/__{rank}_0.distcp", content(SIZE, rank))
    if last:
        store.put(f"run/{step}/.metadata", metadata({f"__{rank}_0.distcp": [SIZE] for rank in range(world)}))


def gets(store: MountedStore) -> list[str]:
    return [request.path for request in store.requests("GET")]


def test_a_checkpoint_that_is_being_written_is_not_taken_until_it_is_whole(store: MountedStore) -> None:
    """What the mount has listed already is no reason to miss what was written since."""
    put_dcp(store, "step-100")
    put_dcp(store, "step-200", last=False)
    with store.mount("run") as mount:
        assert sorted(path.name for path in mount.path.iterdir()) == ["step-100", "step-200"]
        assert sorted(path.name for path in (mount.path / "step-200").iterdir()) == [
            "__0_0.distcp",
            "__1_0.distcp",
        ]
        first, *files, _ = run("--latest", mount.path).stdout.splitlines()
        assert first == (
            f"{mount.path}/step-100 (torch.distributed.checkpoint); skipped step-200: .metadata is missing"
        )
        assert len(files) == 3
        put_dcp(store, "step-200")
        choice, *reports = lines_of(run("--latest", "--json", mount.path))
        assert (choice["path"], choice["taken"]) == (str(mount.path), f"{mount.path}/step-200")
        assert choice["skipped"] == []
        assert {report["state"] for report in reports} == {"done"}
        assert sum(int(str(report["size"])) for report in reports) == choice["bytes"]
        store.proxy.reset()
        for rank in range(2):
            assert (mount.path / f"step-200/__{rank}_0.distcp").read_bytes() == content(SIZE, rank)
        assert store.requests("GET") == []


def test_latest_of_deepspeed_by_url_and_by_mount(
    store: MountedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in store.proxy.environment.items():
        monkeypatch.setenv(name, value)
    put_deepspeed(store, "global_step10")
    names = put_deepspeed(store, "global_step20")
    put_deepspeed(store, "global_step30")
    store.put("run/latest", b"global_step20")
    url = f"s3://{store.bucket}/run"
    with store.mount("run") as mount:
        for where, cache in ((str(mount.path), ()), (url, ("--cache-dir", store.directory / "other"))):
            choice, *reports = lines_of(run("--latest", "--json", *cache, where))
            assert choice["taken"] == f"{where}/global_step20"
            assert choice["skipped"] == [
                {
                    "path": f"{where}/global_step30",
                    "reason": "still being written: latest names global_step20",
                }
            ]
            wanted = {f"{where}/latest", *(f"{where}/global_step20/{name}" for name in names)}
            assert {report["path"] for report in reports} == wanted
        store.delete(f"run/global_step20/{names[0]}")
        chosen: list[fusestripe.Choice] = []
        fusestripe.prefetch(mount.path, latest=True, on_choice=chosen.append)
        assert [choice.taken for choice in chosen] == [f"{mount.path}/global_step10"]
        assert [one.reason for one in chosen[0].skipped][1:] == [f"{names[0]} is missing"]
        for step in (10, 30):
            for name in names:
                store.delete(f"run/global_step{step}/{name}")
        with pytest.raises(fusestripe.PrefetchError, match="there is no whole checkpoint in"):
            fusestripe.prefetch(mount.path, latest=True)
        with pytest.raises(fusestripe.PrefetchError, match="there is no whole checkpoint in"):
            fusestripe.prefetch(url, latest=True, check=True, cache_dir=store.directory / "other")


def test_ranks_bring_their_own_and_the_rest_can_still_be_read(store: MountedStore) -> None:
    names = put_deepspeed(store, "global_step10", dp=4)
    with store.mount("run") as mount:
        where = mount.path / "global_step10"
        first = run("--ranks", "2-3/4", where).stdout.splitlines()[0]
        assert first == f"{where} (DeepSpeed); ranks 2-3 of 4: 3 of 5 files"
        store.proxy.reset()
        for seed in (2, 3, 4):
            assert (where / names[seed]).read_bytes() == content(SIZE, seed)
        assert store.requests("GET") == []
        assert (where / names[0]).read_bytes() == content(SIZE, 0)
        assert store.requests("GET") != []


def test_megatron_pieces_of_a_node(store: MountedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for tp in range(2):
        for pp in range(2):
            for name in ("model_optim_rng.pt", "distrib_optim.pt"):
                store.put(f"run/iter_0000100/mp_rank_{tp:02d}_{pp:03d}/{name}", content(SIZE, tp * 2 + pp))
    store.put("run/iter_0000200/mp_rank_00_000/model_optim_rng.pt", b"x")
    store.put("run/latest_checkpointed_iteration.txt", b"100")
    with store.mount("run") as mount:
        monkeypatch.setenv("SLURM_NODEID", "1")
        monkeypatch.setenv("SLURM_TASKS_PER_NODE", "4(x2)")
        monkeypatch.delenv("SLURM_GPUS_ON_NODE", raising=False)
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
        choice, *reports = lines_of(run("--latest", "--rank-local", "--json", mount.path))
        assert choice["note"] == "ranks 4-7 of 8: 4 of 8 files"
        assert {str(report["path"]).split("/")[-2] for report in reports} == {
            "mp_rank_00_001",
            "mp_rank_01_001",
            mount.path.name,
        }


def test_a_plan_through_the_mount(store: MountedStore) -> None:
    put_dcp(store, "step-100")
    with store.mount("run", cache_size=450 * KIB) as mount:
        (plan,) = lines_of(run("--plan", "--latest", "--json", mount.path, code=1))
        assert (plan["fits"], plan["files"]) == (False, 3)
        assert gets(store) == [f"/{store.bucket}/run/step-100/.metadata"]
        file = mount.path / "step-100/__0_0.distcp"
        page = run("--plan", file).stdout.splitlines()
        assert page[-2] == "1 file, 300 KiB: 300 KiB to fetch, 0 B there already"
        assert page[-1].startswith(f"{store.directory}/cache: it fits; ")
        assert len(gets(store)) == 1
        run(file)
        (plan,) = lines_of(run("--plan", "--json", mount.path / "step-100/__1_0.distcp"))
        room = plan["room"]
        assert isinstance(room, dict)
        # .metadata goes too, since it was read before.
        assert (plan["fits"], room["need"], room["evicted"]) == (True, SIZE, 2)
        assert plan["shares"] == [
            {"kind": "origin", "source": mount.status()["routes"][0]["url"], "files": 1, "bytes": SIZE}
        ]


def pins(mount: Mounted, store: MountedStore) -> set[float]:
    with CacheCatalogue(store.directory / "cache") as catalogue:
        return {entry.pinned_until for entry in catalogue.entries()}


def test_a_pin_for_a_time(store: MountedStore) -> None:
    put_dcp(store, "step-100")
    with store.mount("run") as mount:
        began = time.time()
        fusestripe.prefetch(mount.path, latest=True, pin_for="1h")
        (until,) = pins(mount, store)
        assert began + 3600 <= until <= time.time() + 3600
        run("--pin-for", "1m", mount.path)
        assert pins(mount, store) == {until}
        run("--pin", mount.path)
        assert pins(mount, store) == {float("inf")}


def test_a_hostile_pickle_in_the_store(store: MountedStore) -> None:
    put_dcp(store, "step-1")
    done = store.directory / "done"
    hostile = dumped(Metadata(storage_data=HostileCall("os", "system", f"touch {done}")))
    put_dcp(store, "step-2")
    store.put("run/step-2/.metadata", hostile)
    with store.mount("run") as mount:
        choice, *_ = lines_of(run("--latest", "--json", mount.path))
        assert choice["taken"] == f"{mount.path}/step-1"
        assert "os.system" in str(choice["skipped"])
    assert not done.exists()


def test_a_metadata_that_an_index_leaves_out(web_server: WebServer, tmp_path: Path) -> None:
    """nginx lists no name that begins with a dot; without it a checkpoint cannot be loaded."""
    for name, data in ((".metadata", metadata({"__0_0.distcp": [SIZE]})), ("__0_0.distcp", content(SIZE))):
        web_server.put(f"prologue/step-1/{name}", data)
    web_server.put("prologue/step-2/__0_0.distcp", content(SIZE))
    url = f"{web_server.endpoint}/html/prologue"
    choice, *reports = lines_of(run("--latest", "--json", "--cache-dir", tmp_path / "cache", url))
    assert choice["taken"] == f"{url}/step-1"
    assert {str(report["path"]).removeprefix(f"{url}/step-1/") for report in reports} == {
        ".metadata",
        "__0_0.distcp",
    }


SHARDED = """
import os
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

into, meeting = sys.argv[1:]
other = os.fork()  # so that torch is imported once
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=1 if other else 0, world_size=2)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
full = torch.arange(60_000, dtype=torch.float32).reshape(600, 100)
shards, copies = distribute_tensor(full, mesh, [Shard(0)]), distribute_tensor(full[:7], mesh, [Replicate()])
dcp.save({"w": shards, "r": copies, "step": 100}, checkpoint_id=into)
dist.destroy_process_group()
sys.exit(os.waitpid(other, 0)[1] if other else 0)
"""


@pytest.mark.torch
def test_what_torch_itself_has_saved(store: MountedStore) -> None:
    """Two processes with a tensor in two shards."""
    saved = store.directory / "saved"
    script = store.directory / "save.py"
    script.write_text(SHARDED)
    command = [sys.executable, str(script), str(saved), str(store.directory / "meeting")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    files = {path.name: path.read_bytes() for path in saved.iterdir()}
    assert files.keys() == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    for step in (100, 200, 300):
        for name, data in files.items():
            store.put(f"run/step-{step}/{name}", data[:-1] if (step, name) == (300, "__1_0.distcp") else data)
    store.delete("run/step-200/.metadata")
    with store.mount("run") as mount:
        choice, *reports = lines_of(run("--latest", "--ranks", "1/2", "--json", mount.path))
        size = len(files["__1_0.distcp"])
        assert choice["skipped"] == [
            {
                "path": f"{mount.path}/step-300",
                "reason": f"__1_0.distcp has {size - 1:,} bytes of {size:,}",
            },
            {"path": f"{mount.path}/step-200", "reason": ".metadata is missing"},
        ]
        assert choice["taken"] == f"{mount.path}/step-100"
        assert {str(report["path"]).rpartition("/")[2] for report in reports} == {".metadata", "__1_0.distcp"}


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized:UserWarning")
def test_a_save_loads_from_what_was_brought(store: MountedStore) -> None:
    """In many files, one of them large; no byte is fetched again."""
    import torch
    import torch.distributed.checkpoint as dcp

    state = {"w": torch.arange(500_000.0), "v": torch.ones(1000, dtype=torch.bfloat16), "n": torch.tensor(7)}
    saved = store.directory / "saved"
    writer = dcp.FileSystemWriter(saved, single_file_per_rank=False)
    dcp.save(state, storage_writer=writer, no_dist=True)
    for path in saved.iterdir():
        store.put_file(f"run/step-1/{path.name}", path)
    with store.mount("run") as mount:
        chosen: list[fusestripe.Choice] = []
        fusestripe.prefetch(mount.path, latest=True, on_choice=chosen.append)
        assert chosen[0].files == 4
        store.proxy.reset()
        into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        dcp.load(into, storage_reader=dcp.FileSystemReader(chosen[0].taken), no_dist=True)
        assert all(torch.equal(into[name], state[name]) for name in state)
        assert store.requests("GET") == []


def test_safetensors_in_shards(store: MountedStore) -> None:
    import numpy as np
    from safetensors.numpy import load_file, save_file

    names = [f"model-{number:05d}-of-00002.safetensors" for number in (1, 2)]
    weights = {name: {f"w{number}": np.arange(50_000.0) + number} for number, name in enumerate(names)}
    where = store.directory / "saved"
    where.mkdir()
    for name, tensors in weights.items():
        save_file(tensors, where / name)
    weight_map = {key: name for name, tensors in weights.items() for key in tensors}
    index = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}).encode()
    for step in (1, 2):
        for name in names:
            store.put_file(f"run/checkpoint-{step}/{name}", where / name)
        store.put(f"run/checkpoint-{step}/model.safetensors.index.json", index)
    store.delete(f"run/checkpoint-2/{names[1]}")
    with store.mount("run") as mount:
        first = run("--latest", "--ranks", "0", mount.path).stdout.splitlines()[0]
        assert first == (
            f"{mount.path}/checkpoint-1 (safetensors); rank 0: all of it: safetensors does not say which "
            f"rank reads what; skipped checkpoint-2: {names[1]} is missing"
        )
        store.proxy.reset()
        for name, tensors in weights.items():
            loaded = load_file(mount.path / "checkpoint-1" / name)
            assert all(np.array_equal(loaded[key], tensors[key]) for key in tensors)
        assert store.requests("GET") == []
