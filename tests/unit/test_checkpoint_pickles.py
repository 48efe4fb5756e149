"""The pickle of torch.distributed.checkpoint is read without doing what it says."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from fusestripe import unpickling
from fusestripe.checkpoints import Unreadable, pickled
from fusestripe.checkpoints.pickled import Refused, stored_lengths
from tests.support.dcp_metadata import HostileCall, Metadata, MetadataIndex, StorageInfo, dumped, metadata

names = st.from_regex(r"__[0-9]{1,3}_[0-9]\.distcp", fullmatch=True)
HONEST = metadata({"__0_0.distcp": [100, 3, 4000], "__1_0.distcp": [7]})
# What a pickle must not do, by the events that Python tells of (the table of audit events in its manual).
DEEDS = ("open", "import", "exec", "compile", "os.", "subprocess.", "socket.", "ctypes.", "shutil.")

_watched = threading.local()


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if getattr(_watched, "deeds", None) is not None and event.startswith(DEEDS):
        _watched.deeds.append((event, arguments))


sys.addaudithook(_hook)


@contextmanager
def nothing_is_done() -> Iterator[None]:
    """Fails if anything is opened, imported, run or compiled by this thread."""
    deeds: list[object] = []
    _watched.deeds = deeds
    try:
        yield
    finally:
        _watched.deeds = None
    assert deeds == []


def alone(data: bytes) -> dict[str, object]:
    """What the process that reads a pickle answers."""
    command = [sys.executable, "-I", "-S", pickled.__file__]
    done = subprocess.run(command, input=data, capture_output=True, check=False, timeout=60)
    assert done.stderr == b""
    answer = json.loads(done.stdout)
    assert set(answer) in ({"files"}, {"error"})
    assert isinstance(answer, dict)
    return answer


@given(st.dictionaries(names, st.lists(st.integers(0, 1 << 40), min_size=1, max_size=4), max_size=6))
def test_what_a_metadata_names(files: dict[str, list[int]]) -> None:
    assert stored_lengths(metadata(files)) == {path: sum(lengths) for path, lengths in files.items()}


def test_what_torch_and_megatron_keep_beside_it_is_no_matter() -> None:
    more = {
        "storage_meta": HostileCall("pathlib", "PosixPath", "/ckpt", "step-1"),
        "mcore_data": {"optimizer": HostileCall("megatron.core.any", "Thing", 1)},
        "planner_data": HostileCall("collections", "OrderedDict"),
    }
    assert stored_lengths(metadata({"__0_0.distcp": [5]}, **more)) == {"__0_0.distcp": 5}


calls = st.sampled_from(
    [
        HostileCall("os", "system", "touch HERE"),
        HostileCall("posix", "system", "touch HERE"),
        HostileCall("builtins", "eval", "open('HERE', 'w')"),
        HostileCall("builtins", "exec", "open('HERE', 'w')"),
        HostileCall("builtins", "open", "HERE", "w"),
        HostileCall("builtins", "getattr", "x", "y"),
        HostileCall("builtins", "__import__", "antigravity"),
        HostileCall("subprocess", "Popen", ["touch", "HERE"]),
        HostileCall("importlib", "import_module", "this"),
        HostileCall("torch.serialization.os", "system", "touch HERE"),
        HostileCall("torch.hub", "load", "a/b", "c"),
        HostileCall("pathlib.os", "system", "touch HERE"),
        HostileCall("pathlib", "Path.touch", "HERE"),
        HostileCall("copyreg", "_reconstructor", int, int, 0),
        HostileCall("collections", "namedtuple", "a", "b"),
    ]
)


def nested(call: HostileCall) -> st.SearchStrategy[object]:
    """``call`` somewhere in what could be metadata."""
    place = StorageInfo(relative_path="f", offset=0, length=1)
    return st.sampled_from(
        [
            call,
            [call],
            {"a": (1, call)},
            Metadata(storage_data=call),
            Metadata(storage_data={MetadataIndex(fqn=call): place}),
            Metadata(storage_data={MetadataIndex(fqn="a"): call}),
            Metadata(storage_data={MetadataIndex(fqn="a"): place}, planner_data=[call, call]),
            Metadata(storage_data={"a": StorageInfo(relative_path=call, offset=0, length=1)}),
        ]
    )


@given(calls.flatmap(nested))
def test_a_hostile_pickle_does_nothing(value: object) -> None:
    """Names of torch's and pathlib's lead to nothing either."""
    data = dumped(value)
    with nothing_is_done():
        try:
            assert set(stored_lengths(data)) <= {"f"}
        except Refused as error:
            said = str(error)
            assert said.startswith(("is refused: ", "is no metadata of torch's"))
            assert "\n" not in said


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_names_outside_are_refused_by_name(protocol: int, tmp_path: Path) -> None:
    import os
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, (f"touch {tmp_path}/done",)

    with nothing_is_done(), pytest.raises(Refused, match=r"it names '(os|posix)\.system'"):
        stored_lengths(pickle.dumps(Evil(), protocol=protocol))
    assert not (tmp_path / "done").exists()


@given(st.data())
@settings(max_examples=25)
def test_any_bytes_give_an_answer(data: st.DataObject) -> None:
    """Changed, cut or made up: in the process of its own, which outlives none of it and says one thing."""
    changed = bytearray(HONEST)
    for _ in range(data.draw(st.integers(1, 6))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(changed[: data.draw(st.integers(0, len(changed)))])
    for candidate in (bytes(changed), cut, data.draw(st.binary(max_size=200))):
        alone(candidate)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04Nr\xff\xff\xff\x7f.",  # LONG_BINPUT far beyond the memo
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",  # BINBYTES8 of what is not there
        b"\x80\x04" + b"(" * 100_000 + b".",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"Pname\n.",  # PERSID
        b"",
    ],
)
def test_what_would_eat_memory_is_refused(data: bytes) -> None:
    assert str(alone(data)["error"]).startswith("is ")


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def test_what_would_take_for_ever_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash of a tuple of two tuples of two tuples... of ninety floors."""
    tower = b")" + b"2\x86" * 90  # EMPTY_TUPLE; DUP, TUPLE2
    monkeypatch.setattr(unpickling, "PARSE_SECONDS", 1.0)
    with trio.fail_after(30), pytest.raises(Unreadable, match="too much time or memory"):
        await unpickling.names_in_pickle(
            pieces(b"\x80\x04}" + tower + b"Ns.")
        )  # EMPTY_DICT ... NONE, SETITEM


async def test_an_honest_one_is_read_in_a_process_of_its_own() -> None:
    assert await unpickling.names_in_pickle(pieces(HONEST[:100], HONEST[100:])) == {
        "__0_0.distcp": 4103,
        "__1_0.distcp": 7,
    }
    with pytest.raises(Unreadable, match="it names no files"):
        await unpickling.names_in_pickle(pieces(dumped({})))
