"""What the cache counts, and how the disk under it fares."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

__all__ = ["CacheStatistics", "Counters", "DiskHealth"]

_log = logging.getLogger(__name__)


class CacheStatistics(msgspec.Struct, frozen=True):
    """The state of a CacheStore. Sizes in bytes; counts are since the store was made.

    ``used`` is of the whole directory, by its last scan and this store's writes since; ``objects`` by its
    last scan. ``checks`` counts stripes that were loaded only to see that they are right, ``no_room`` those
    that were not kept because nothing could be evicted. ``health`` is "normal", "unstable" (the disk failed,
    and is tried again within seconds) or "down" (it went on failing, or does not answer);
    ``why`` it is so, with the mend, "" where it is normal.

    ``corrupt_stripes`` did not fit their checksum, or their checksum its check. ``begun_anew`` counts objects
    of which nothing was used any more, because their files were damaged, replaced or taken away.
    """

    directory: str
    used: int
    limit: int
    objects: int
    held: int
    descriptors: int
    health: str
    why: str
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
    begun_anew: int
    read_errors: int
    write_errors: int


RESTS = (1.0, 2.0, 5.0)
"""Seconds: a hiccup costs little, and a disk that is broken is asked for one page now and then."""


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
    """Whether the disk is "normal", "unstable" or "down".

    It is unstable from an I/O error on, until an attempt succeeds; an attempt is worth while once it has
    rested for the seconds that ``rests`` gives for the first failure, the second and so on. From the last of
    them on it is down. It is down too while it does not answer. What fails during a rest was begun before it
    or is no attempt, and prolongs nothing.

    While the disk rests no stripe is saved, and one line is logged at each change, however many errors come.
    """

    def __init__(self, rests: Sequence[float] = RESTS, clock: Callable[[], float] = time.monotonic) -> None:
        self._rests = rests
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0  # attempts in a row
        self._retry_at = 0.0
        self._hangs = False
        self._why = ""

    @property
    def why(self) -> str:
        """What is wrong with a disk that is not normal, and the mend."""
        return "" if self.state == "normal" else self._why

    @property
    def state(self) -> str:
        """The word: "normal", "unstable" or "down"."""
        if self._hangs or self._failures >= len(self._rests):
            return "down"
        return "unstable" if self._failures else "normal"

    @property
    def worth_trying(self) -> bool:
        """Whether a write should be tried now."""
        return not self._hangs and not self._rests_now

    def failed(self, what: str, error: Exception) -> None:
        """``what`` ("writing stripe 3 of ...") met an I/O error."""
        with self._lock:
            if self._rests_now:
                return
            before = self.state
            self._failures = min(self._failures + 1, len(self._rests))
            rest = self._rests[self._failures - 1]
            self._retry_at = self._clock() + rest
            self._why = _why_of(what, error)
            is_change = self.state != before
        if is_change:
            _log.error(
                "cache disk: %s: %s; caching is paused for %.0f s at least, reads go on from the origin",
                what,
                getattr(error, "strerror", None) or error,
                rest,
            )

    def hangs(self, seconds: float) -> None:
        """The disk has not answered for ``seconds``."""
        with self._lock:
            first = not self._hangs
            self._hangs = True
            self._why = f"no answer in {seconds:g} s; look at the disk's health"
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
        """A write to the disk went well."""
        if not self._failures or not self.worth_trying:
            return
        with self._lock:
            recovered = bool(self._failures)
            self._failures = 0
        if recovered:
            _log.warning("cache disk: works again")

    @property
    def _rests_now(self) -> bool:
        return bool(self._failures) and self._clock() < self._retry_at


def _why_of(what: str, error: Exception) -> str:
    said = (getattr(error, "strerror", None) or str(error)).lower()
    if getattr(error, "errno", None) in (errno.ENOENT, errno.ESTALE):
        return f"{what}: {said}; where another disk lies at its place by now, unmount and mount again"
    return f"{what}: {said}; look at the disk's health and the log"
