"""Links of so many bytes per second, for the proxy's process. Standard library alone."""

from __future__ import annotations

import threading
import time

__all__ = ["Link", "SharedLink"]

LINK_CREDIT = 0.25
"""Seconds that a shaped connection may make up for after it was late: wakeups are, on a busy machine."""
SHARED_CREDIT = 0.05
FIRST_BYTES = 4096


class SharedLink:
    """A link of ``rate`` bytes/s that all connections pass. Lateness of less than a credit is made up for,
    so the average holds whatever the wakeups do."""

    def __init__(self, rate: float) -> None:
        self.chunk = _quantum(rate)
        self._rate = rate
        self._due = 0.0
        self._lock = threading.Lock()

    def wait(self, count: int) -> None:
        """Return when ``count`` bytes more have passed."""
        with self._lock:
            self._due = max(self._due, time.monotonic() - SHARED_CREDIT) + count / self._rate
            due = self._due
        _sleep_until(due)


class Link:
    """The link of one connection, ``rate`` bytes/s; for the one thread that serves it."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._due = 0.0
        self._quantum = _quantum(rate)
        self._least = FIRST_BYTES

    def begin(self) -> None:
        """A body starts: no credit for the time before, and its first bytes go without gathering many."""
        self._due = max(self._due, time.monotonic())
        self._least = FIRST_BYTES

    def grant(self, most: int) -> int:
        """How many bytes, up to ``most``, have passed by now; sleeps until it is worth a system call."""
        _sleep_until(self._due + min(most, self._least) / self.rate)
        self._least = min(2 * self._least, self._quantum)
        now = time.monotonic()
        self._due = max(self._due, now - LINK_CREDIT)
        return max(1, min(most, int((now - self._due) * self.rate)))

    def passed(self, count: int) -> None:
        self._due += count / self.rate


def _quantum(rate: float) -> int:
    """About 5 ms of a link: fine enough to look smooth, coarse enough to cost little."""
    return int(min(max(rate / 200, 4096), 256 * 1024))


def _sleep_until(due: float) -> None:
    early = due - time.monotonic()
    if early > 0:
        time.sleep(early)
