"""What the cache counts, and how the disk under it fares."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import msgspec

__all__ = ["CacheStatistics", "Counters", "DiskHealth"]

_log = logging.getLogger(__name__)


class CacheStatistics(msgspec.Struct, frozen=True):
    """The state of a CacheStore. Sizes in bytes; counts are since the store was made.

    ``used`` is of the whole directory, by its last scan and this store's writes since; ``objects`` by its
    last scan. ``checks`` counts stripes that were loaded only to see that they are right, ``no_room`` those
    that were not kept because nothing could be evicted. ``health`` is "normal" or "down" (the disk failed and
    is left alone for a while, or does not answer).
    """

    directory: str
    used: int
    limit: int
    objects: int
    held: int
    descriptors: int
    health: str
    loads: int
    loaded_bytes: int
    direct_reads: int
    direct_read_bytes: int
    checks: int
    checked_bytes: int
    saves: int
    saved_bytes: int
    no_room: int
    evictions: int
    evicted_bytes: int
    corrupt_stripes: int
    read_errors: int
    write_errors: int


class Counters:
    """Counts under the names of CacheStatistics, from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, **amounts: int) -> None:
        """Add to each count named."""
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] = self._counts.get(name, 0) + amount

    def get(self, name: str) -> int:
        """The count ``name``; 0 where nothing was added."""
        return self._counts.get(name, 0)


class DiskHealth:
    """Whether the disk is "normal" or "down".

    It is down from an I/O error on, until a write succeeds ``retry_after`` seconds later or more; and while
    it does not answer.

    While the disk is down no stripe is saved, and one line is logged at each change, however many errors
    come.
    """

    def __init__(self, retry_after: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._retry_after = retry_after
        self._clock = clock
        self._lock = threading.Lock()
        self._retry_at: float | None = None
        self._hangs = False

    @property
    def state(self) -> str:
        """The word: "normal" or "down"."""
        return "normal" if self._retry_at is None and not self._hangs else "down"

    @property
    def worth_trying(self) -> bool:
        """Whether a write should be tried now."""
        retry_at = self._retry_at
        return not self._hangs and (retry_at is None or self._clock() >= retry_at)

    def failed(self, what: str, error: OSError) -> None:
        """``what`` ("writing stripe 3 of ...") met an I/O error."""
        with self._lock:
            first = self._retry_at is None
            self._retry_at = self._clock() + self._retry_after
        if first:
            _log.error(
                "cache disk: %s: %s; caching is paused for %.0f s at least, reads go on from the origin",
                what,
                error.strerror or error,
                self._retry_after,
            )

    def hangs(self, seconds: float) -> None:
        """The disk has not answered for ``seconds``."""
        with self._lock:
            first = not self._hangs
            self._hangs = True
        if first:
            _log.error(
                "cache disk: no answer in %g s; caching is paused until there is one, "
                "reads go on from the origin",
                seconds,
            )

    def answers(self) -> None:
        """The disk has answered whatever it was asked."""
        with self._lock:
            recovered = self._hangs
            self._hangs = False
        if recovered:
            _log.warning("cache disk: answers again")

    def succeeded(self) -> None:
        """A read or a write of the disk went well."""
        if self._retry_at is None or not self.worth_trying:
            return
        with self._lock:
            recovered = self._retry_at is not None
            self._retry_at = None
        if recovered:
            _log.warning("cache disk: works again")
