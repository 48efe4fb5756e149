"""Which bytes a reader will want next, judged from the reads it made. Pure: no clock, no I/O.

One file handle often has several readers (a checkpoint loaded by eight threads, each in its own region), and
the kernel's own read-ahead brings their requests a little out of order. So a handle is a set of *runs*, each
a sequence of reads that follow each other. A run that begins at a constant distance behind the two before it
is the next record of a strided walk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from fusestripe.units import MIB

__all__ = ["AccessPattern"]

# Runs remembered for one handle: more readers than this on one handle fall back to no read-ahead.
MAX_RUNS = 32
# A read within this many of its own lengths of where a run stands belongs to it.
DISORDER = 8
# Bytes ahead for each byte read.
GROWTH = 4
# A run from the start of a file is nearly always read to its end: the square of what was read, over this.
# That is 4 MiB after 128 KiB, which may be no more than a header, and 256 MiB after 1 MiB.
SQUARED_OVER = 4096


# Nothing more is wanted ahead for a run that was not read from while others read so many bytes.
STALE = 256 * MIB


class _Run:
    __slots__ = ("position", "read_at", "reads", "start")

    def __init__(self, start: int, position: int, read_at: int) -> None:
        # How many bytes had been read of all runs when this one was read last.
        self.read_at = read_at
        self.start = start
        self.position = position
        self.reads = 1

    @property
    def extent(self) -> int:
        return self.position - self.start


class AccessPattern:
    """The runs of one file handle and what they ask for ahead: ``max_ahead`` bytes a run at most.

    A strided walk is listed to the end of the file; the caller takes as much of it as it has room for.
    """

    def __init__(self, size: int, max_ahead: int) -> None:
        self._size = size
        self._max_ahead = max_ahead
        self._runs: deque[_Run] = deque(maxlen=MAX_RUNS)
        self._newest: _Run | None = None
        self._stride = 0
        self._extent = 0
        self._observed = 0

    def observe(self, offset: int, length: int) -> bool:
        """Take note of a read; true where it goes on from an earlier one."""
        self._observed += length
        for run in reversed(self._runs):
            gap = offset - run.position
            if abs(gap) <= DISORDER * length:
                run.start = min(run.start, offset)
                run.position = max(run.position, offset + length)
                run.reads += 1
                run.read_at = self._observed
                if run is not self._newest:
                    # Earlier runs go on: several readers at equal distances, not one that jumps.
                    self._stride = 0
                self._runs.remove(run)
                self._runs.append(run)
                return True
        self._begin(_Run(offset, offset + length, self._observed))
        return False

    @property
    def position(self) -> int:
        """Where the run stands that was read last."""
        return self._runs[-1].position if self._runs else 0

    @property
    def reach(self) -> int:
        """Where the read-ahead of the run that was read last ends."""
        if not self._runs:
            return 0
        run = self._runs[-1]
        return min(self._size, run.position + self._growth(run))

    def ahead(self) -> list[Iterator[tuple[int, int]]]:
        """For each run that goes on, the latest first, the (offset, length) it will want, the nearest first.

        Nothing lies past the end of the file.
        """
        return [
            self._records(run.start, run.position, max(self._extent, run.extent), self._stride)
            if self._stride and run is self._newest
            else self._clamped(run.position, self._growth(run))
            for run in reversed(self._runs)
            if self._observed - run.read_at <= STALE
        ]

    def _begin(self, run: _Run) -> None:
        starts = {earlier.start for earlier in self._runs}
        self._stride = 0
        for earlier in reversed(self._runs):
            stride = run.start - earlier.start
            if stride > 0 and earlier.start - stride in starts:
                self._stride, self._extent = stride, max(earlier.extent, run.extent)
                break
        self._runs.append(run)
        self._newest = run

    def _growth(self, run: _Run) -> int:
        if run.start == 0:
            return min(self._max_ahead, run.extent**2 // SQUARED_OVER)
        return min(self._max_ahead, run.extent * GROWTH) if run.reads > 1 else 0

    def _records(self, start: int, position: int, extent: int, stride: int) -> Iterator[tuple[int, int]]:
        """Of a walk as it was when it was asked for, whatever is observed meanwhile."""
        extent = min(extent, stride)
        yield from self._clamped(position, start + extent - position)
        for record in range(start + stride, self._size, stride):
            yield from self._clamped(record, extent)

    def _clamped(self, offset: int, length: int) -> Iterator[tuple[int, int]]:
        length = min(length, self._size - offset)
        if length > 0:
            yield offset, length
