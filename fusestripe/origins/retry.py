"""Asking an origin again: exponential back-off with jitter inside one deadline."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

import trio

from fusestripe.errors import OriginError, OriginUnavailable
from fusestripe.units import KIB

__all__ = ["SETTLED_SECONDS", "Backoff", "retried"]

T = TypeVar("T")

FIRST_DELAY = 0.1
LONGEST_DELAY = 10.0
ENOUGH = 64 * KIB
"""So many bytes after a failure, and the waits begin anew: an answer of a few has cost as much as none."""
LAST_TRY = 0.1
"""Where the next wait would be too long, one last try is made once this part of the time is left."""


SETTLED_SECONDS = 1.0
"""For so long a failure that took all the time stands, for those who queued behind it or ask once more."""


class Backoff:
    """Says how long to wait before the next try; past ``timeout`` seconds it raises the cause.

    The time is one for all that is tried: it runs from the last byte before a failure to the first after it,
    and not while bytes come. So no origin keeps a reader waiting by a few bytes now and then, and none that
    is slow but well is given up.

    "Full jitter" of https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/: hundreds of
    nodes that failed together must not come back together.
    """

    def __init__(self, timeout: float, *, jitter: Callable[[], float] = random.random) -> None:
        self._timeout = timeout
        self._clock = trio.lowlevel.current_clock()
        self._last_byte = self._clock.current_time()
        self._left = timeout
        self._jitter = jitter
        self._failures = 0
        self._is_failing = False
        self._bytes = 0

    @property
    def ends(self) -> float:
        """When the time is over, if no byte comes before (``trio.current_time()``)."""
        return self._last_byte + self._left

    def progressed(self, count: int) -> None:
        """``count`` bytes have just arrived. From any thread."""
        before, self._last_byte = self._last_byte, self._clock.current_time()
        if self._is_failing:
            self._is_failing = False
            self._left -= self._last_byte - before
        self._bytes += count
        if self._bytes >= ENOUGH:
            self._failures = 0

    async def after(self, error: OriginError) -> None:
        """Sleep as long as fits; raise ``error`` where another try cannot help or no time is left."""
        if not error.transient:
            raise error
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2**self._failures) * (0.5 + self._jitter() / 2)
        if isinstance(error, OriginUnavailable) and error.retry_after is not None:
            delay = max(delay, error.retry_after)
        left = self.ends - self._clock.current_time()
        if delay >= left:
            delay = left - LAST_TRY * self._timeout
            if delay <= 0:
                raise error
        self._failures += 1
        self._is_failing = True
        self._bytes = 0
        await trio.sleep(delay)


async def retried(call: Callable[[], T], *, limiter: trio.CapacityLimiter, timeout: float) -> T:
    """``call()`` in a thread, again after transient errors until ``timeout`` seconds are over."""
    backoff = Backoff(timeout)
    while True:
        try:
            return await trio.to_thread.run_sync(call, limiter=limiter, abandon_on_cancel=True)
        except OriginError as error:
            await backoff.after(error)
