"""Who waits for an answer, and is let go once a signal ends them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, NoReturn

import trio

__all__ = ["Waiting"]

# How often those who wait are looked at for a signal that ends them (seconds), and more rarely where they are
# so many that it would take more than this part of the time.
LOOK, PART = 0.2, 0.1


class Waiting:
    """Those who wait, each for a block of its own. What is fetched for them goes on without them.

    FUSE_INTERRUPT alone would not do: the kernel sends none for read-ahead and for O_DIRECT, for others it
    tells of the first signal only, and pyfuse3 hears of none.
    """

    def __init__(self) -> None:
        self._waiters: set[_Waiter] = set()
        self._someone_waits = trio.Event()

    @contextmanager
    def of(self, thread: int, is_ended: Callable[[int], bool]) -> Iterator[trio.CancelScope]:
        """A scope that is cancelled once ``is_ended`` says so of ``thread``, who waits for the block."""
        waiter = _Waiter(_Who(thread, is_ended))
        self._waiters.add(waiter)
        self._someone_waits.set()
        try:
            with waiter.scope:
                yield waiter.scope
        finally:
            self._waiters.remove(waiter)

    async def watch(self) -> NoReturn:
        """Let those go that a signal ends."""
        pause = LOOK
        while True:
            if not self._waiters:
                self._someone_waits = trio.Event()
                await self._someone_waits.wait()
            await trio.sleep(pause)
            now = time.monotonic()
            late = [one for one in self._waiters if one.since < now - LOOK]
            ended = {who for who in {one.who for one in late} if who.is_ended(who.thread)}
            for one in late:
                if one.who in ended:
                    one.scope.cancel()
            pause = max(LOOK, (time.monotonic() - now) / PART)


class _Who(NamedTuple):
    thread: int
    is_ended: Callable[[int], bool]


class _Waiter:
    __slots__ = ("scope", "since", "who")

    def __init__(self, who: _Who) -> None:
        self.who = who
        self.scope = trio.CancelScope()
        self.since = time.monotonic()
