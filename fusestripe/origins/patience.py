"""Limits in time for a library's blocking calls that have none of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from fusestripe.errors import OriginUnavailable

__all__ = ["Patience"]

T = TypeVar("T")


class Patience:
    """Runs calls that may hang: each waits ``seconds`` at most, in a thread that may be left behind.

    At most ``calls`` are under way or left behind; beyond that a call fails at once. The threads are daemons:
    one that hangs does not keep the process from ending.
    """

    def __init__(self, seconds: float, *, calls: int = 256) -> None:
        self._seconds = seconds
        self._room = threading.BoundedSemaphore(calls)

    def run(self, call: Callable[[], T], what: str) -> T:
        """``call()``, or what it raises. Raises OriginUnavailable, naming ``what``, where no answer comes."""
        if not self._room.acquire(blocking=False):
            raise OriginUnavailable(f"{what}: too many requests wait for an answer")
        outcome: Future[T] = Future()

        def work() -> None:
            try:
                outcome.set_result(call())
            except BaseException as error:
                outcome.set_exception(error)
            finally:
                self._room.release()

        try:
            threading.Thread(target=work, name="fusestripe-patience", daemon=True).start()
        except RuntimeError:  # the system has no thread left (threading.Thread.start)
            self._room.release()
            raise OriginUnavailable(f"{what}: no thread can be started for the request") from None
        try:
            return outcome.result(self._seconds)
        except FutureTimeoutError:
            if outcome.done():  # the call's own
                raise
            raise OriginUnavailable(f"{what}: no answer in {self._seconds:g} s") from None
