"""Page-aligned buffers for stripes, all within one limit in bytes."""

from __future__ import annotations

import mmap
from collections import deque
from contextlib import suppress

import msgspec
import trio

__all__ = ["Buffer", "BufferPool", "PoolStatistics"]


class PoolStatistics(msgspec.Struct, frozen=True):
    """Bytes: the limit, what is taken now, and the most that ever was taken."""

    limit: int
    used: int
    peak: int


class Buffer:
    """One page-aligned piece of memory (O_DIRECT wants that) of ``len(view)`` bytes, taken from a pool."""

    __slots__ = ("memory", "view")

    def __init__(self, memory: mmap.mmap, length: int) -> None:
        self.memory = memory
        self.view = memoryview(memory)[:length]


class BufferPool:
    """Hands out buffers while their sum stays within ``limit`` bytes.

    Invariant: a buffer that anything still looks at (a reply on its way, a thread that was left behind with
    a request that hangs) is never handed out again; it goes back to the system when the last view of it
    goes. Buffers of ``usual`` bytes are used again, since fresh memory costs a page fault for every 4 KiB.

    Urgent takers (a reader waits) are served before others, and a sixteenth of the limit is theirs alone.
    """

    def __init__(self, limit: int, usual: int) -> None:
        self._limit = limit
        self._usual = usual
        self._reserve = limit // 16 // usual * usual
        self._used = 0
        self._peak = 0
        self._free: list[mmap.mmap] = []
        self._waiting: tuple[deque[_Taker], deque[_Taker]] = (deque(), deque())

    @property
    def buffers(self) -> int:
        """How many buffers of the usual size fit."""
        return self._limit // self._usual

    def statistics(self) -> PoolStatistics:
        """What is taken now and at most was."""
        return PoolStatistics(limit=self._limit, used=self._used, peak=self._peak)

    def try_take(self, length: int, *, urgent: bool) -> Buffer | None:
        """A buffer of ``length`` bytes if there is room and nobody waits for it in front of us."""
        ahead = self._waiting[0] or (not urgent and self._waiting[1])
        if ahead or not self._fits(length, urgent=urgent):
            return None
        return self._make(length)

    async def take(self, length: int, *, urgent: bool) -> Buffer:
        """Like try_take, in turn with others that wait. Raises OSError where the system has no memory."""
        await trio.lowlevel.checkpoint_if_cancelled()
        buffer = self.try_take(length, urgent=urgent)
        if buffer is not None:
            return buffer
        taker = _Taker(length)
        queue = self._waiting[0 if urgent else 1]
        queue.append(taker)
        try:
            await taker.served.wait()
        except trio.Cancelled:
            queue.remove(taker)
            raise
        if isinstance(taker.outcome, OSError):
            raise taker.outcome
        assert taker.outcome is not None
        return taker.outcome

    def has_room(self, length: int) -> bool:
        """Whether a taker who is not urgent would get ``length`` bytes if nobody else waited."""
        return self._fits(length, urgent=False)

    @property
    def wanted(self) -> int:
        """How many takers wait."""
        return sum(map(len, self._waiting))

    def give(self, buffer: Buffer) -> None:
        """Take ``buffer`` back. Its content may be overwritten from now on, unless someone still looks."""
        memory = buffer.memory
        self._used -= len(memory)
        if _unseen(buffer) and len(memory) == self._usual:
            self._free.append(memory)
        self._serve()

    def trim(self) -> None:
        """Give the memory that nobody uses back to the system."""
        self._free.clear()

    def _fits(self, length: int, *, urgent: bool) -> bool:
        limit = self._limit if urgent else self._limit - self._reserve
        return self._used + self._size(length) <= limit or self._used == 0

    def _make(self, length: int) -> Buffer:
        size = self._size(length)
        if self._free and size == self._usual:
            memory = self._free.pop()
        else:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError):  # EINVAL of a kernel without huge pages (madvise(2))
                memory.madvise(mmap.MADV_HUGEPAGE)
        self._used += size
        self._peak = max(self._peak, self._used)
        while self._free and self._used + len(self._free) * self._usual > self._limit:
            self._free.pop()
        return Buffer(memory, length)

    def _size(self, length: int) -> int:
        return self._usual if length > self._usual // 2 else -(-length // mmap.PAGESIZE) * mmap.PAGESIZE

    def _serve(self) -> None:
        for queue, urgent in zip(self._waiting, (True, False), strict=True):
            while queue:
                if not self._fits(queue[0].length, urgent=urgent):
                    return
                taker = queue.popleft()
                try:
                    taker.outcome = self._make(taker.length)
                except OSError as error:
                    taker.outcome = error
                taker.served.set()


class _Taker:
    __slots__ = ("length", "outcome", "served")

    def __init__(self, length: int) -> None:
        self.length = length
        self.served = trio.Event()
        self.outcome: Buffer | OSError | None = None


def _unseen(buffer: Buffer) -> bool:
    # Both refuse while anything still looks: the view if someone uses it, the memory if a slice of it lives.
    # To the same size, resize changes nothing else.
    try:
        buffer.view.release()
        buffer.memory.resize(len(buffer.memory))
    except BufferError:
        return False
    return True
