"""Asking an origin again: exponential back-off with jitter inside one deadline."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

import trio

from fusestripe.errors import OriginError, OriginUnavailable

__all__ = ["Backoff", "retried"]

T = TypeVar("T")

FIRST_DELAY = 0.1
LONGEST_DELAY = 10.0


class Backoff:
    """Says how long to wait before the next try; ``timeout`` seconds after the last byte raises the cause.

    "Full jitter" of https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/: hundreds of
    nodes that failed together must not come back together.
    """

    def __init__(self, timeout: float, *, jitter: Callable[[], float] = random.random) -> None:
        self._timeout = timeout
        self._clock = trio.lowlevel.current_clock()
        self._last_byte = self._clock.current_time()
        self._jitter = jitter
        self._failures = 0

    def progressed(self) -> None:
        """Bytes have just arrived: the next failure counts as a first, with all its time. From any thread."""
        self._failures = 0
        self._last_byte = self._clock.current_time()

    async def after(self, error: OriginError) -> None:
        """Sleep as long as fits; raise ``error`` where another try cannot help or no time is left."""
        if not error.transient:
            raise error
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2**self._failures) * (0.5 + self._jitter() / 2)
        if isinstance(error, OriginUnavailable) and error.retry_after is not None:
            delay = max(delay, error.retry_after)
        if self._clock.current_time() + delay > self._last_byte + self._timeout:
            raise error
        self._failures += 1
        await trio.sleep(delay)


async def retried(call: Callable[[], T], *, limiter: trio.CapacityLimiter, timeout: float) -> T:
    """``call()`` in a thread, again after transient errors until ``timeout`` seconds are over."""
    backoff = Backoff(timeout)
    while True:
        try:
            return await trio.to_thread.run_sync(call, limiter=limiter, abandon_on_cancel=True)
        except OriginError as error:
            await backoff.after(error)
