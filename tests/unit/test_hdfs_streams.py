"""When a stream of a block is left for another replica, and that the bytes are right whatever is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusestripe.origins import hdfs_streams
from fusestripe.origins.hdfs_readers import READERS, VersionReaders
from fusestripe.origins.hdfs_streams import FACTOR, GRACE, KNOWN, BlockPace, LastBlockOpen, ReplicaStreams

UNIT = 1000
CHUNK = 100
DATA = bytes(range(256)) * 40
Behave = Callable[[int, int], None]
"""Called with the number of the reader and the offset, before each chunk."""


class Reader:
    """Replica ``number`` of every block."""

    def __init__(self, number: int, behave: Behave, data: bytes = DATA) -> None:
        self.number = number
        self.behave = behave
        self.data = data
        self.asked: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.data)

    def read_range_stream(self, offset: int, length: int) -> Iterator[bytes]:
        """In chunks."""
        self.asked.append((offset, length))
        for start in range(offset, offset + length, CHUNK):
            self.behave(self.number, start)
            yield self.data[start : min(start + CHUNK, offset + length)]


class Replicas:
    """Opens readers, each with a number of its own."""

    def __init__(self, behave: Behave = lambda number, offset: None, data: bytes = DATA) -> None:
        self.behave = behave
        self.data = data
        self.opened: list[Reader] = []
        self.readers = VersionReaders(self.open, lambda: None)

    def open(self) -> Any:
        """See VersionReaders."""
        self.opened.append(Reader(len(self.opened), self.behave, self.data))
        return cast(Any, self.opened[-1])

    def read(self, streams: ReplicaStreams, offset: int = 0, length: int = len(DATA)) -> bytes:
        """The whole range."""
        return b"".join(streams.chunks(self.readers, UNIT, offset, length))


@pytest.fixture
def streams() -> ReplicaStreams:
    """With a pace that is known."""
    made = ReplicaStreams()
    Replicas().read(made, length=KNOWN * UNIT)
    return made


@pytest.fixture
def never() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@settings(max_examples=50)
@given(st.integers(0, len(DATA) - 1), st.integers(1, len(DATA)))
def test_a_range_is_asked_for_block_by_block(offset: int, length: int) -> None:
    length = min(length, len(DATA) - offset)
    replicas = Replicas()
    assert replicas.read(ReplicaStreams(), offset, length) == DATA[offset : offset + length]
    (reader,) = replicas.opened
    assert all(at // UNIT == (at + count - 1) // UNIT for at, count in reader.asked)
    assert sum(count for _, count in reader.asked) == length


def test_a_replica_that_says_nothing_is_left(streams: ReplicaStreams, never: threading.Event) -> None:
    """Its request stays behind; the block goes to another reader now and the next time."""

    def behave(number: int, offset: int) -> None:
        if number == 0 and offset // UNIT == 3:
            never.wait(20)

    replicas = Replicas(behave)
    for _ in range(2):
        assert replicas.read(streams) == DATA
    first, second = replicas.opened
    assert [at for at, _ in first.asked if at // UNIT == 3] == [3 * UNIT]
    assert [at for at, _ in second.asked if at // UNIT == 3] == [3 * UNIT] * 2
    assert not never.is_set()


def test_one_that_becomes_slow_is_left_where_it_is(streams: ReplicaStreams) -> None:
    def behave(number: int, offset: int) -> None:
        if number == 0 and offset >= 3 * UNIT + 500:
            threading.Event().wait(GRACE)  # what slow means

    replicas = Replicas(behave)
    assert replicas.read(streams, 3 * UNIT, UNIT) == DATA[3 * UNIT : 4 * UNIT]
    first, second = replicas.opened
    assert first.asked == [(3 * UNIT, UNIT)]
    ((offset, length),) = second.asked
    assert offset + length == 4 * UNIT
    assert 3 * UNIT + 500 < offset < 4 * UNIT


def test_where_every_replica_is_slow_the_last_one_is_kept(
    streams: ReplicaStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs_streams, "GRACE", 0.002)

    def behave(number: int, offset: int) -> None:
        threading.Event().wait(0.05)

    replicas = Replicas(behave)
    assert replicas.read(streams, 0, UNIT) == DATA[:UNIT]
    assert len(replicas.opened) == READERS
    assert replicas.read(streams, 0, UNIT) == DATA[:UNIT]
    assert sum(len(reader.asked) for reader in replicas.opened) == READERS + 1


def test_what_is_done_with_a_chunk_is_not_the_replicas_time(streams: ReplicaStreams) -> None:
    replicas = Replicas()
    for _ in streams.chunks(replicas.readers, UNIT, 0, UNIT):
        threading.Event().wait(GRACE / 5)
    assert len(replicas.opened) == 1


def test_nothing_is_late_before_anything_is_known(never: threading.Event) -> None:
    """The first requests of all: they are looked at again once others have shown what is usual."""
    streams = ReplicaStreams()
    held = threading.Event()

    def behave(number: int, offset: int) -> None:
        if number == 0:
            held.set()
            never.wait(20)

    replicas = Replicas(behave)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(replicas.read, streams, 0, UNIT)
        assert held.wait(20)
        Replicas().read(streams, 0, KNOWN * UNIT)
        assert waiting.result(20) == DATA[:UNIT]
    assert len(replicas.opened) == 2
    assert not never.is_set()


@pytest.mark.parametrize("failing", [0, 500], ids=["at once", "on the way"])
def test_what_a_stream_raises_is_raised(streams: ReplicaStreams, failing: int) -> None:
    def behave(number: int, offset: int) -> None:
        if offset == failing:
            raise TimeoutError("its own")

    replicas = Replicas(behave)
    with pytest.raises(TimeoutError, match="its own"):
        replicas.read(streams, 0, UNIT)
    assert replicas.opened[0].asked == [(0, UNIT)], "asking again is not its to decide"


@pytest.mark.parametrize(
    ("change", "right"),
    [
        (lambda chunks: chunks[: len(chunks) // 2], UNIT // 2),
        (lambda chunks: [], 0),
        (lambda chunks: [b"", *chunks[:3], b"", b"", *chunks[3:], b""], 2 * UNIT),
        (lambda chunks: [*chunks, b"x"], UNIT),
        (lambda chunks: [b"".join(chunks) + b"x"], 0),
    ],
    ids=["half", "none", "empty chunks between", "one more byte", "one more in a chunk"],
)
def test_a_stream_that_is_not_what_it_should_be(
    streams: ReplicaStreams, change: Callable[[list[bytes]], list[bytes]], right: int
) -> None:
    """The right bytes as far as they are known to be; who asked counts them. Empty chunks mean nothing."""

    class Other(Reader):
        def read_range_stream(self, offset: int, length: int) -> Iterator[bytes]:
            """Changed."""
            return iter(change(list(super().read_range_stream(offset, length))))

    readers = VersionReaders(lambda: cast(Any, Other(0, lambda number, offset: None)), lambda: None)
    assert b"".join(streams.chunks(readers, UNIT, 0, 2 * UNIT)) == DATA[:right]


def test_a_range_into_a_block_that_is_open_is_refused_first(streams: ReplicaStreams) -> None:
    replicas = Replicas(data=DATA[: 2 * UNIT])
    with pytest.raises(LastBlockOpen):
        next(streams.chunks(replicas.readers, UNIT, 0, 2 * UNIT + 1))
    assert replicas.opened[0].asked == []


def test_the_usual_is_the_median() -> None:
    pace = BlockPace()
    for seconds in (0.1, 9.0, 9.0, 0.1, 0.1, 0.1, 0.1):
        pace.note_first(seconds)
        pace.note(seconds, 1)
    assert (pace.late_first(), pace.late(5)) == (None, None)
    pace.note_first(9.0)
    pace.note(9.0, 1)
    assert pace.late_first() == pytest.approx(FACTOR * 0.1 + GRACE)
    assert pace.late(5) == pytest.approx(FACTOR * 0.5 + GRACE)
