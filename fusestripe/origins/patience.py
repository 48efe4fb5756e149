"""Limits in time for a library's blocking calls that have none of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from fusestripe.errors import OriginUnavailable

__all__ = ["Patience", "SideThreads"]

T = TypeVar("T")


class SideThreads:
    """Runs calls that may hang, each in a thread that may be left behind.

    At most ``calls`` are under way or left behind. The threads are daemons: one that hangs does not keep the
    process from ending.
    """

    def __init__(self, calls: int) -> None:
        self._room = threading.BoundedSemaphore(calls)

    def begin(self, call: Callable[[], T]) -> Future[T] | None:
        """What ``call`` will give or raise; None, and nothing is called, where there is no thread for it."""
        if not self._room.acquire(blocking=False):
            return None
        outcome: Future[T] = Future()

        def work() -> None:
            try:
                outcome.set_result(call())
            except BaseException as error:
                outcome.set_exception(error)
            finally:
                self._room.release()

        try:
            threading.Thread(target=work, name="fusestripe-aside", daemon=True).start()
        except RuntimeError:  # the system has no thread left (threading.Thread.start)
            self._room.release()
            return None
        return outcome


class Patience:
    """Runs calls that may hang: each waits ``seconds`` at most, then its thread is left behind.

    At most ``calls`` are under way or left behind; beyond that a call fails at once.
    """

    def __init__(self, seconds: float, *, calls: int = 256) -> None:
        self._seconds = seconds
        self._threads = SideThreads(calls)

    def run(self, call: Callable[[], T], what: str) -> T:
        """``call()``, or what it raises. Raises OriginUnavailable, naming ``what``, where no answer comes."""
        outcome = self._threads.begin(call)
        if outcome is None:
            raise OriginUnavailable(f"{what}: too many requests wait for an answer")
        try:
            return outcome.result(self._seconds)
        except FutureTimeoutError:
            if outcome.done():  # the call's own
                raise
            raise OriginUnavailable(f"{what}: no answer in {self._seconds:g} s") from None
