"""The threads that wait for the cache's disk, and for no longer than some seconds."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar, cast

import trio

from fusestripe.cache.health import DiskHealth
from fusestripe.errors import CacheError

__all__ = ["DiskHangs", "DiskThreads", "NoThread"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

THREADS = 8
"""More keep no NVMe busier."""
FOREGROUND = 3
"""Threads that are kept for what a reader waits for, where a slow disk has many stripes to write."""
AGAIN_SECONDS = 0.5
"""What has to run in the end waits so long for a thread where the system has none."""
WITHIN = 8.0
"""Seconds: longer than a healthy disk ever takes for a stripe, and short for a job that waits."""
_MEND = "look at the disk's health; the cache is used again once it answers"


class DiskHangs(CacheError):
    """The cache disk does not answer. Reads go on from the origin."""


class NoThread(CacheError):
    """The system has no thread for what was to be asked of the cache disk (pthread_create(3), EAGAIN)."""


class DiskThreads:
    """Runs calls that may wait for the cache's disk, in ``threads`` threads, each for ``within`` seconds.

    A call that has not come back by then is left behind with its thread, and the disk is down: nothing else
    is asked of it, so whoever calls goes on without it at once. When the last call left behind has come back,
    the disk has answered, and is used again.

    What nobody waits for runs in the background, in ``FOREGROUND`` threads less.

    Invariant: there are never more than ``threads`` threads, those left behind among them. What a call left
    behind looks at must not be used again (BufferPool sees to that), and its errors reach nobody.
    """

    def __init__(self, health: DiskHealth, *, threads: int = THREADS, within: float = WITHIN) -> None:
        self._health = health
        self._within = within
        self._slots = trio.Semaphore(threads)
        self._background = trio.Semaphore(max(1, threads - FOREGROUND))
        self._unbounded = trio.CapacityLimiter(math.inf)  # the slots count
        self._queue: set[trio.CancelScope] = set()
        self._token = trio.lowlevel.current_trio_token()
        self._lock = threading.Lock()
        self._left = 0
        self._deferred: deque[Callable[[], object]] = deque()

    async def run(
        self, call: Callable[[], T], *, undo: Callable[[T], object] | None = None, background: bool = False
    ) -> T:
        """What ``call`` returns or raises. Raises DiskHangs where it is not back in time, or is not begun.

        And NoThread.

        ``undo`` is called with what a call left behind returns in the end. Cancelled only before it begins.
        """
        slots = (self._background, self._slots) if background else (self._slots,)
        return await self._run(_Call(call, undo), slots)

    async def finish(self, call: Callable[[], object]) -> None:
        """Have ``call`` run, now or as soon as the disk answers again, for which nobody waits here."""
        job = _Call(call)
        while not job.begun and not self._defer(call):
            try:
                await self._run(job, (self._slots,))
            except DiskHangs:
                continue
            except NoThread:
                await trio.sleep(AGAIN_SECONDS)

    def at_rest(self, call: Callable[[], object]) -> None:
        """Run ``call`` here, or once the last call that was left behind has come back."""
        if not self._defer(call):
            call()

    async def _run(self, job: _Call[T], slots: Iterable[trio.Semaphore]) -> T:
        await self._take_slots(slots, job)
        job.begun = True
        try:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._within):
                await trio.to_thread.run_sync(
                    self._work, job, limiter=self._unbounded, abandon_on_cancel=True
                )
        except RuntimeError as error:
            job.begun = False
            job.release_slots()
            raise NoThread(f"the cache is not asked: {error}", mend="see ulimit -u and pids.max") from None
        except BaseException:
            self._give_up(job)
            raise
        if self._give_up(job):
            raise DiskHangs(f"the cache disk does not answer in {self._within:g} s", mend=_MEND)
        return job.result()

    async def _take_slots(self, slots: Iterable[trio.Semaphore], job: _Call[T]) -> None:
        with trio.CancelScope() as waiting:
            self._queue.add(waiting)
            try:
                if self._left:
                    waiting.cancel()
                for slot in slots:
                    await slot.acquire()
                    job.slots.append(slot)
            except trio.Cancelled:
                job.release_slots()
                raise
            finally:
                self._queue.remove(waiting)
        if waiting.cancelled_caught:
            raise DiskHangs("the cache disk does not answer", mend=_MEND)

    def _give_up(self, job: _Call[T]) -> bool:
        """Nobody waits for ``job`` any more: whether its thread is left behind."""
        with self._lock:
            if not job.is_back:
                job.is_left = True
                self._left += 1
        if not job.is_left:
            job.release_slots()
            return False
        self._health.hangs(self._within)
        for waiting in self._queue:
            waiting.cancel()
        return True

    def _defer(self, call: Callable[[], object]) -> bool:
        with self._lock:
            if self._left:
                self._deferred.append(call)
            return bool(self._left)

    # In the threads.

    def _work(self, job: _Call[T]) -> None:
        job.work()
        with self._lock:
            job.is_back = True
        if job.is_left:
            job.clean_up()
            self._come_back()
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(job.release_slots)

    def _come_back(self) -> None:
        while True:
            with self._lock:
                call = self._deferred.popleft() if self._left == 1 and self._deferred else None
                if call is None:
                    self._left -= 1
                    is_last = not self._left
                    break
            _try(call)
        if is_last:
            self._health.answers()


class _Call(Generic[T]):
    """A call for a thread, and what came of it. ``is_back`` and ``is_left`` change under the one lock."""

    def __init__(self, call: Callable[[], T], undo: Callable[[T], object] | None = None) -> None:
        self._call = call
        self._undo = undo
        self.slots: list[trio.Semaphore] = []
        self._value: T | None = None
        self._error: BaseException | None = None
        self.begun = False
        self.is_back = False
        self.is_left = False

    def release_slots(self) -> None:
        while self.slots:
            self.slots.pop().release()

    def work(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def clean_up(self) -> None:
        if self._error is not None:
            _log.debug("cache disk: a call that was left behind failed: %s", self._error)
        elif self._undo is not None:
            _try(partial(self._undo, self.result()))


def _try(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        _log.exception("cache disk: what was put off failed")
