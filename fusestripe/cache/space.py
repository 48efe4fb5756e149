"""Keeps the cache directory under its limit, and the disk above its reserve, by eviction."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

import msgspec

from fusestripe.cache.eviction import Candidate, Forecast, forecast, plan
from fusestripe.cache.files import CacheDirectory
from fusestripe.cache.health import Counters

__all__ = ["Capacity", "Space", "default_limit"]

_FULL_FOR = 1.0
"""Seconds for which a cache that had nothing to evict is taken to be full, unless an object is released."""


_BLOCK = 4096
"""Bytes in which the usual filesystems give out room."""


class Capacity(msgspec.Struct, frozen=True):
    """The most that the cache can hold, in bytes: by its limit, and by its disk as that is used by others."""

    limit: int
    disk: int


def default_limit(directory: CacheDirectory) -> int:
    """Four fifths of the bytes that are free on the disk or taken by the cache already."""
    taken = sum(entry.size for entry in directory.scan())
    return (directory.free() + taken) * 4 // 5


class Space:
    """Decides about room for stripes (see Room in object.py). Sizes in bytes.

    The directory is scanned when a decision is due, or when this store has written 1/64 of the limit since
    the last scan: other processes write and evict there too. ``in_use`` names the objects this store holds;
    ``evict`` deletes one unless it is used by then, and says whether it did.
    """

    def __init__(
        self,
        directory: CacheDirectory,
        counters: Counters,
        *,
        limit: int,
        reserve: int,
        in_use: Callable[[], Collection[str]],
        evict: Callable[[Candidate], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit = limit
        self._reserve = reserve
        self._directory = directory
        self._counters = counters
        self._in_use = in_use
        self._evict = evict
        self._clock = clock
        self._lock = threading.Lock()
        self._full_until = 0.0  # no scan before that
        self._refused_until = 0.0  # no write before that
        self.disk_is_full = False
        """Whether what was refused last was for the disk and not for the limit."""
        self._in_flight = 0
        self._written = 0  # since the last scan
        self._scanned = 0
        self.objects = 0
        """How many objects the last scan found."""
        with self._lock:
            self._scan()

    def rescan(self) -> None:
        """Look at the directory now, for whoever wants to know and not to write."""
        with self._lock:
            self._scan()

    def capacity(self) -> Capacity:
        """What could be held if all that is there made way. Reads the directory. Raises OSError."""
        with self._lock:
            self._scan()
            return Capacity(self.limit, max(0, self.used + self._directory.free() - self._reserve))

    def forecast(self, need: int, stays: Callable[[str], bool]) -> Forecast:
        """What it would take to hold ``need`` bytes more, while the objects that ``stays`` names stay.

        Reads the directory, changes nothing. Raises OSError.
        """
        with self._lock:
            entries = self._scan()
        entries = [
            msgspec.structs.replace(entry, in_use=True) if stays(entry.name) else entry for entry in entries
        ]
        free = self._directory.free()
        return forecast(entries, need=need, limit=self.limit, reserve=self._reserve, free=free)

    @property
    def used(self) -> int:
        """By the last scan and the writes since."""
        return self._scanned + self._written

    def reserve(self, length: int) -> bool:
        """Make room for ``length`` bytes, by eviction if need be; False where there is none.

        Raises OSError.
        """
        length = _on_disk(length)
        with self._lock:
            granted = self._grant(length)
            if granted:
                self._in_flight += length
            else:
                self.disk_is_full = self.used + length + self._in_flight <= self.limit
        if not granted:
            self._counters.add(no_room=1)
        return granted

    def settle(self, length: int, *, written: bool) -> None:
        """What was reserved has been written, or will not be."""
        length = _on_disk(length)
        with self._lock:
            self._in_flight -= length
            if written:
                self._written += length

    def refuse(self) -> None:
        """The disk had no room for what was reserved: another program filled it, or a quota is at its end."""
        self._refused_until = self._clock() + _FULL_FOR
        self.disk_is_full = True
        self._counters.add(no_room=1)

    def released(self, *, was_used: bool) -> None:
        """An object is no longer held: a full cache may have something to evict now.

        It does so at once where it is over its limit, and the object ``was_used``: files take more than was
        written to them, since filesystems note in blocks of their own where scattered writes lie. Raises
        OSError.
        """
        with self._lock:
            self._full_until = 0.0
            if was_used and self.used >= self.limit:
                entries = self._scan()
                if self.used > self.limit:
                    self._make_room(entries, 0)

    def _grant(self, length: int) -> bool:
        if self._clock() < self._refused_until:
            return False
        due = self._written and self._written + length > self.limit // 64
        if not due and self._fits(length):
            return True
        if self._clock() < self._full_until:
            return False
        entries = self._scan()
        if self._fits(length):
            return True
        # A little more than is needed, so that a full cache is not scanned again for the next stripe.
        for need in (length + self.limit // 64, length):
            entries = self._make_room(entries, need)
            if self._fits(length):
                return True
        self._full_until = self._clock() + _FULL_FOR
        return False

    def _fits(self, length: int) -> bool:
        need = length + self._in_flight
        return self.used + need <= self.limit and self._directory.free() - need >= self._reserve

    def _scan(self) -> list[Candidate]:
        held = self._in_use()
        entries = [
            Candidate(files.name, files.size, files.last_use_ns, files.name in held, files.pinned)
            for files in self._directory.scan()
        ]
        self._scanned = sum(entry.size for entry in entries)
        self._written = 0
        self.objects = len(entries)
        return entries

    def _make_room(self, entries: list[Candidate], need: int) -> list[Candidate]:
        """Evict by plan, and plan again around what turns out to be used. The entries that are left."""
        left = {entry.name: entry for entry in entries}
        while victims := plan(
            left.values(),
            need=need + self._in_flight,
            limit=self.limit,
            reserve=self._reserve,
            free=self._directory.free(),
        ):
            for victim in victims:
                if self._evict(victim):
                    del left[victim.name]
                    self._scanned -= victim.size
                    self.objects -= 1
                    self._counters.add(evictions=1, evicted_bytes=victim.size)
                else:
                    left[victim.name] = msgspec.structs.replace(victim, in_use=True)
        return list(left.values())


def _on_disk(length: int) -> int:
    """What ``length`` bytes take: whole blocks, which is more where there are many small files."""
    return -(-length // _BLOCK) * _BLOCK
