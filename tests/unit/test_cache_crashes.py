"""A crash, a torn write or a bad disk: what reads as present afterwards is right."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.caches import STRIPE, Sample, check, file_of, fill, open_store, sample

WHAT = sample("crash", 3 * STRIPE + 5000)
OTHER = sample("other", 3 * STRIPE + 5000)


class History(msgspec.Struct, frozen=True):
    """What the two files of WHAT held after 0, 1, 2... saves, as the disk would have seen them in order."""

    directory: Path
    data: list[bytes]
    ledger: list[bytes]

    def __repr__(self) -> str:
        return f"<History of {len(self.data)} states>"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """The states of the files, of a first filling in an order that is not that of the file."""
    directory = tmp_path_factory.mktemp("history") / "cache"
    store = open_store(directory)
    obj = store.acquire(WHAT.version)
    found = History(directory, [], [])
    for index in (2, 0, 3, 1):
        assert obj.save(index, WHAT.stripe(index))
        found.data.append(file_of(directory, WHAT, ".data").read_bytes())
        found.ledger.append(file_of(directory, WHAT, ".ledger").read_bytes())
    store.close()
    found.data.insert(0, bytes(WHAT.version.size))
    found.ledger.insert(0, found.ledger[0][:512])
    return found


def stripes_after(history: History, data: bytes, ledger: bytes) -> int:
    """What a new daemon finds in files with these contents: the number of stripes, all of them right."""
    file_of(history.directory, WHAT, ".data").write_bytes(data)
    file_of(history.directory, WHAT, ".ledger").write_bytes(ledger)
    store = open_store(history.directory)
    try:
        obj = store.acquire(WHAT.version)
        count = check(obj, WHAT)
        assert obj.present_bytes == sum(
            len(WHAT.stripe(index)) for index in WHAT.stripes if obj.present(index)
        )
        assert obj.verify() == obj.present_bytes  # what was bad has been cleared
        for index in WHAT.stripes:
            assert obj.save(index, WHAT.stripe(index))
        assert check(obj, WHAT) == 4
    finally:
        store.close()
    return count


def test_any_prefix_of_the_writes_in_either_order(history: History) -> None:
    for wrote_data, wrote_ledger in product(range(5), range(5)):
        count = stripes_after(history, history.data[wrote_data], history.ledger[wrote_ledger])
        assert count == min(wrote_data, wrote_ledger)


def torn(states: list[bytes], step: int, at: float) -> bytes:
    """The state in the middle of a write: the beginning of the file is new, the rest is old."""
    before, after = states[step], states[step + 1]
    cut = int(at * len(after))
    return after[:cut] + before[cut:].ljust(len(after) - cut, b"\0")


@settings(max_examples=60)
@given(st.integers(0, 3), st.floats(0, 1), st.integers(0, 3), st.floats(0, 1), st.booleans(), st.booleans())
def test_torn_writes(
    history: History, step: int, at: float, ledger_step: int, ledger_at: float, whole: bool, short: bool
) -> None:
    data = history.data[step] if whole else torn(history.data, step, at)
    ledger = torn(history.ledger, ledger_step, ledger_at)
    if short:
        ledger = ledger[: int(ledger_at * len(ledger))]
    stripes_after(history, data, ledger)


SECTOR, WORD = 512, 8
SAVED_AT = {2: 1, 0: 2, 3: 3, 1: 4}
"""After how many saves of the History each stripe is on the disk."""

exceptions = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 4)), max_size=4)


def scattered(states: list[bytes], unit: int, base: int, units: list[tuple[float, int]]) -> list[int]:
    """The number of the state that the disk has of each ``unit`` bytes: ``base`` but for ``units``."""
    length = max(map(len, states))
    found = [base] * -(-length // unit)
    for at, state in units:
        found[int(at * len(found))] = state
    return found


def put_together(states: list[bytes], unit: int, chosen: list[int]) -> bytes:
    length = max(map(len, states))
    padded = [state.ljust(length, b"\0") for state in states]
    parts = (padded[state][unit * at : unit * (at + 1)] for at, state in enumerate(chosen))
    return b"".join(parts)


@settings(max_examples=150)
@given(st.integers(0, 4), exceptions, st.integers(0, 4), exceptions)
def test_writes_that_reached_the_disk_in_any_order(
    history: History,
    data_base: int,
    data_units: list[tuple[float, int]],
    ledger_base: int,
    ledger_units: list[tuple[float, int]],
) -> None:
    """A disk keeps no order between what goes by O_DIRECT and what goes by the page cache, nor within either.

    Each sector of the data and each word of the ledger is there in any state it ever had. Exactly the stripes
    of which all is there are found: none is wrong, and none that was paid for is thrown away.
    """
    data = scattered(history.data, SECTOR, data_base, data_units)
    ledger = scattered(history.ledger, WORD, ledger_base, ledger_units)
    records_at = len(history.ledger[0])
    whole = 0
    for index, saved in SAVED_AT.items():
        sectors = data[index * STRIPE // SECTOR : (index + 1) * STRIPE // SECTOR]
        words = ledger[(records_at + 16 * index) // WORD :][:2]
        whole += min(sectors) >= saved and min(words) >= saved
    content = put_together(history.data, SECTOR, data), put_together(history.ledger, WORD, ledger)
    assert stripes_after(history, *content) == whole


changes = st.lists(
    st.tuples(
        st.sampled_from([".data", ".ledger"]),
        st.sampled_from(["flip", "zero", "cut", "swap", "other"]),
        st.floats(0, 1),
        st.integers(1, 255),
    ),
    min_size=1,
    max_size=3,
)


def damaged(content: bytes, other: bytes, kind: str, at: float, amount: int) -> bytes:
    """``content`` after an accident at the relative position ``at``."""
    position = min(int(at * len(content)), len(content) - 1)
    if kind == "cut":
        return content[:position]
    changed = bytearray(content)
    if kind == "flip":
        changed[position] ^= amount
    elif kind == "zero":
        changed[position : position + 16 * amount] = bytes(len(changed[position : position + 16 * amount]))
    elif kind == "swap":  # two records, or two blocks
        unit = 16 if len(content) < STRIPE else 512
        one, two = position // unit * unit, amount * unit % len(content) // unit * unit
        first, second = changed[one : one + unit], changed[two : two + unit]
        if len(first) == len(second):
            changed[one : one + unit], changed[two : two + unit] = second, first
    else:
        changed[position:] = other[position:]
    return bytes(changed)


@settings(max_examples=150)
@given(changes)
def test_any_damage(history: History, changes: list[tuple[str, str, float, int]]) -> None:
    store = open_store(history.directory)
    fill(store, OTHER)
    store.close()
    files = {".data": history.data[-1], ".ledger": history.ledger[-1]}
    for suffix, kind, at, amount in changes:
        if files[suffix]:
            other = file_of(history.directory, OTHER, suffix).read_bytes()
            files[suffix] = damaged(files[suffix], other, kind, at, amount)
    stripes_after(history, files[".data"], files[".ledger"])


@pytest.mark.parametrize("suffixes", [(".ledger",), (".data",), (".ledger", ".data")])
def test_files_under_the_name_of_another_object_are_a_miss(tmp_path: Path, suffixes: tuple[str, ...]) -> None:
    store = open_store(tmp_path / "cache")
    fill(store, WHAT)
    fill(store, OTHER)
    store.close()
    for suffix in suffixes:
        shutil.copy(file_of(tmp_path / "cache", OTHER, suffix), file_of(tmp_path / "cache", WHAT, suffix))
    store = open_store(tmp_path / "cache")
    assert check(store.acquire(WHAT.version), WHAT) == 0
    assert check(store.acquire(OTHER.version), OTHER) == 4
    store.close()


def test_no_prefix_of_a_deletion_reads_as_present(tmp_path: Path) -> None:
    """The ledger goes first; and were it the other way round, a ledger without data is a miss too."""
    for suffixes in ((), (".ledger",), (".data",), (".ledger", ".data")):
        store = open_store(tmp_path / "cache")
        fill(store, WHAT)
        store.close()
        for suffix in suffixes:
            file_of(tmp_path / "cache", WHAT, suffix).unlink()
        store = open_store(tmp_path / "cache")
        assert check(store.acquire(WHAT.version), WHAT) == (0 if suffixes else 4)
        store.close()


def test_a_beginning_that_was_cut_off_is_begun_again(tmp_path: Path) -> None:
    """Killed between the making of the data file, of the new ledger and of its name."""
    for leave in ((".data",), (".data", ".ledger.new")):
        directory = tmp_path / leave[-1]
        store = open_store(directory)
        what: Sample = WHAT
        shard = file_of(directory, what, ".data").parent
        shard.mkdir(0o700)
        for suffix in leave:
            file_of(directory, what, suffix).write_bytes(b"left behind")
        fill(store, what)
        assert check(store.acquire(what.version), what) == 4
        assert sorted(path.suffix for path in shard.iterdir()) == [".data", ".ledger"]
        store.close()
