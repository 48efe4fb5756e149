"""The bytes of a range of HDFS, block by block, from another replica where one is far slower than usual.

hdfs-native leaves a DataNode that fails or says nothing. One that is merely slow it stays with, so that is
seen to here: what has come stays, and the rest is asked for by another reader, which has an order of replicas
of its own. Nothing comes twice but what was on its way.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing
from typing import TypeAlias

from fusestripe.origins.hdfs_readers import HeldReader, VersionReaders
from fusestripe.origins.patience import SideThreads

__all__ = ["BlockPace", "LastBlockOpen", "ReplicaStreams"]

REMEMBERED = 256
"""Requests, and pieces of them, that are remembered, the latest: of so many that a burst of slow ones, all
told of as they are left, does not become what is usual."""
KNOWN = 8
"""As many must be before any is called late."""
FACTOR = 4.0
"""A replica is left that takes so many times as long as usual, which is the median, ..."""
GRACE = 0.2
"""... and so many seconds more."""
PIECE = 1024 * 1024
"""Bytes whose time is told of at once."""
LOOK_AGAIN = 0.1
"""Seconds after which a first byte that is awaited is looked at again: what is usual may be known by now."""
LEFT_BEHIND = 256
"""Requests of which a first byte is awaited, or which were left before it came."""


Chunks: TypeAlias = Generator[bytes, None, None]


class LastBlockOpen(Exception):
    """The range reaches into a block that is being written: its reader does not have it."""


class _Late(Exception):
    """This replica is to be left."""


class BlockPace:
    """What is usual: seconds to the first bytes of a request, and seconds a byte from there on.

    Requests that are left count as far as they came, so that what becomes usual is not left for long. Safe to
    call from many threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: deque[float] = deque(maxlen=REMEMBERED)
        self._a_byte: deque[float] = deque(maxlen=REMEMBERED)
        self._usual_first: float | None = None
        self._usual_a_byte: float | None = None

    def note_first(self, seconds: float) -> None:
        """The first bytes of a request came after ``seconds``, or had not come by then."""
        with self._lock:
            self._first.append(seconds)
            self._usual_first = _usual(self._first)

    def note(self, seconds: float, length: int) -> None:
        """``length`` bytes of a request after its first ones, at least one, came in ``seconds``."""
        with self._lock:
            self._a_byte.append(seconds / length)
            self._usual_a_byte = _usual(self._a_byte)

    def late_first(self) -> float | None:
        """Seconds after which a request without any bytes is late; None: not known yet."""
        usual = self._usual_first
        return None if usual is None else FACTOR * usual + GRACE

    def late(self, length: int) -> float | None:
        """Seconds after which ``length`` bytes more than the first ones are late; None: not known yet."""
        usual = self._usual_a_byte
        return None if usual is None else FACTOR * usual * length + GRACE


def _usual(values: deque[float]) -> float | None:
    return None if len(values) < KNOWN else sorted(values)[len(values) // 2]


class ReplicaStreams:
    """Streams of one cluster, which are compared with each other."""

    def __init__(self) -> None:
        self._pace = BlockPace()
        self._threads = SideThreads(LEFT_BEHIND)

    def chunks(self, readers: VersionReaders, unit: int, offset: int, length: int) -> Chunks:
        """``length`` bytes from ``offset`` on, in order, of a file in blocks of ``unit`` bytes.

        Fewer where hdfs-native gives fewer, or more than a block has. Raises what it raises, and
        LastBlockOpen before the first byte where the file is not as long.
        """
        end = offset + length
        while offset < end:
            block, stop = offset // unit, min(end, offset - offset % unit + unit)
            with readers.reading(block) as reader:
                if reader.length < end:
                    raise LastBlockOpen
                may_leave = readers.can_leave(block)
                try:
                    with closing(self._stream(reader, offset, stop - offset, may_leave)) as stream:
                        for chunk in stream:
                            if len(chunk) > stop - offset:
                                return  # nobody knows what they are
                            offset += len(chunk)
                            yield chunk
                except _Late:
                    readers.leave(reader, block)
                    continue
            if offset < stop:
                return

    def _stream(self, reader: HeldReader, offset: int, length: int, may_leave: bool) -> Chunks:
        """Raises _Late where it ``may_leave``. What is done with a chunk is no time of the replica's."""
        stream = iter(reader.stream(offset, length))
        chunk = self._first_chunk(stream, may_leave)
        first = noted = len(chunk or b"")
        came = 0
        waited = noted_at = 0.0
        # A chunk may be empty: of a cell of an erasure-coded file that lies before the range.
        while chunk is not None:
            came += len(chunk)
            yield chunk
            late = self._pace.late(came - first)
            is_late = may_leave and came < length and late is not None and waited > late
            if came > noted and (came - noted >= PIECE or is_late or came == length):
                self._pace.note(waited - noted_at, came - noted)
                noted, noted_at = came, waited
            if is_late:
                raise _Late
            began = time.monotonic()
            chunk = next(stream, None)
            waited += time.monotonic() - began

    def _first_chunk(self, stream: Iterator[bytes], may_leave: bool) -> bytes | None:
        """None where there is none. Raises _Late where it is not there in time; it is left behind then."""
        began = time.monotonic()
        future = self._threads.begin(lambda: next(stream, None)) if may_leave else None
        if future is None:
            chunk = next(stream, None)
            self._pace.note_first(time.monotonic() - began)
            return chunk
        while True:
            late, waited = self._pace.late_first(), time.monotonic() - began
            if late is not None and waited > late:
                self._pace.note_first(waited)
                raise _Late
            try:
                chunk = future.result(LOOK_AGAIN if late is None else min(LOOK_AGAIN, late - waited))
            except FutureTimeoutError:
                if future.done():  # the stream's own
                    raise
            else:
                self._pace.note_first(time.monotonic() - began)
                return chunk
