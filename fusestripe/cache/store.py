"""The face of the cache directory: acquire a version, ask what is present, load and save stripes, release it.

Every method may wait for the disk and may be called from any thread, unless it says "memory only".
"""

from __future__ import annotations

import errno
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fusestripe.cache.descriptors import DescriptorPool
from fusestripe.cache.eviction import Candidate, Forecast
from fusestripe.cache.files import CacheDirectory, object_name
from fusestripe.cache.health import CacheStatistics, Counters, DiskHealth
from fusestripe.cache.marks import move_marks, open_marks
from fusestripe.cache.object import CachedObject, Parts, Saved
from fusestripe.cache.pair import Checked
from fusestripe.cache.space import Capacity, Space, default_limit
from fusestripe.errors import CacheError
from fusestripe.units import ObjectVersion, format_size

__all__ = ["CacheStatistics", "CacheStore", "CachedObject", "Capacity", "Forecast", "Saved"]

_log = logging.getLogger(__name__)

_REMEMBERED_STRIPES = 1 << 20
"""Stripes of released objects whose checks are remembered, 9 bytes each."""


class _Held:
    """A CachedObject, how many have acquired it, and whether one of them used it."""

    __slots__ = ("obj", "used", "users")

    def __init__(self, obj: CachedObject) -> None:
        self.obj = obj
        self.users = 0
        self.used = False


class CacheStore:
    """A cache directory in use by this process; other processes may use the same one.

    ``stripe_size``, ``size`` (the limit of what the data files take on the disk; None for four fifths of what
    is free or taken by them already) and ``reserve`` (what stays free on the disk) are bytes; ``descriptors``
    is how many files are kept open at most.

    An object that is acquired is never evicted, by this process or another. Raises CacheError, with the mend,
    where the directory cannot be made or written to, belongs to another user or a newer version, or has no
    room.
    """

    def __init__(
        self, directory: Path, *, stripe_size: int, size: int | None, reserve: int, descriptors: int = 128
    ) -> None:
        if size is not None and size < stripe_size:
            raise CacheError(
                f"a cache of {format_size(size)} does not hold one stripe of {format_size(stripe_size)}",
                mend="raise --cache-size or lower --stripe-size",
            )
        self.directory = directory
        self.stripe_size = stripe_size
        self._changed = threading.Condition()
        self._busy: set[str] = set()
        self._held: dict[str, _Held] = {}
        self._remembered: OrderedDict[str, Checked] = OrderedDict()
        self._remembered_stripes = 0
        self._files = CacheDirectory(directory)
        self._is_moved = False  # the directory is another, and the marks are not in it yet
        try:
            self._marks = open_marks(self._files)
        except BaseException:
            self._files.close()
            raise
        self._counters = Counters()
        self.health = DiskHealth()
        self._pool = DescriptorPool(descriptors)
        try:
            self._space = Space(
                self._files,
                self._counters,
                limit=default_limit(self._files) if size is None else size,
                reserve=reserve,
                in_use=self._names_held,
                evict=self._evict,
            )
            self._check_room(reserve)
        except OSError as error:
            self.close()
            raise CacheError(
                f"cannot read the cache directory {directory}: {error.strerror}",
                mend="look at the disk's health, or choose another --cache-dir",
            ) from error
        except BaseException:
            self.close()
            raise
        self._parts = Parts(self._files, self._pool, self._marks, self._space, self.health, self._counters)

    def acquire(self, version: ObjectVersion, *, use: bool = True) -> CachedObject:
        """The object of ``version``, to be given back by ``release``: counted, one for all who hold it.

        ``use``: this counts for the order of eviction, as it does for ``release``; a mere look does not.
        Raises CacheError where another process will not let go of it, or the store is closed.
        """
        name = object_name(version, self.stripe_size)
        with self._claim(name):
            held = self._held.get(name)
            if held is None:
                held = self._take_up(name, version)
            else:
                held.obj.refresh()
            held.users += 1
            if use:
                self._touch(name)
        return held.obj

    def release(self, obj: CachedObject, *, use: bool = True) -> None:
        """Undo one ``acquire``. After the last one the object may be evicted.

        Where none of them used it, nothing is evicted now: whoever looks may have another limit in mind.
        """
        name = obj.name
        with self._claim(name):
            held = self._held.get(name)
            if held is None or held.obj is not obj:
                raise ValueError(f"{obj!r} is not held")
            held.users -= 1
            held.used |= use
            if held.users:
                return
            if held.used:
                self._touch(name)
            obj.close()
            self._remember(name, obj.checked())
            with self._changed:
                del self._held[name]
            self._marks.let_go(name)
        with suppress(OSError):  # the next write will meet it, and say so
            self._space.released(was_used=held.used)

    def pin(self, version: ObjectVersion, until: float | None = None) -> None:
        """Keep ``version`` from eviction until ``until`` (seconds since the epoch; None: for ever).

        A pin that is there already and holds longer stays: two jobs may want the same file. It may be pinned
        before any of it is in the cache; CacheCatalogue.unpin takes the pin away. Raises CacheError where
        the disk fails.
        """
        name = object_name(version, self.stripe_size)
        try:
            if self._files.look(name).pinned_until < (math.inf if until is None else until):
                self._files.pin(name, until)
        except OSError as error:
            raise CacheError(f"cannot pin {version.path} in the cache: {error.strerror}") from error

    def capacity(self) -> Capacity:
        """The most this cache can hold. Reads the directory. Raises OSError."""
        return self._space.capacity()

    def present_bytes(self, version: ObjectVersion) -> int:
        """How much of ``version`` is in the cache. No use of it. Raises CacheError."""
        obj = self.acquire(version, use=False)
        try:
            return obj.present_bytes
        finally:
            self.release(obj, use=False)

    def forecast(self, need: int, wanted: Collection[ObjectVersion]) -> Forecast:
        """What it would take to hold ``need`` more bytes and all that is there of ``wanted``.

        What any process uses now stays. Reads the directory, changes nothing. Raises OSError.
        """
        names = {object_name(version, self.stripe_size) for version in wanted}
        return self._space.forecast(need, lambda name: name in names or self._marks.in_use(name))

    def rescan(self) -> None:
        """Have ``used`` and ``objects`` of the statistics be of now. Reads the directory."""
        self._space.rescan()

    def try_disk(self) -> None:
        """Where the disk has failed and has rested, write to it and have ``health`` know what came of it.

        So it comes back though nobody saves a stripe. The directory is made anew where it was removed.
        """
        if self.health.state == "normal" or not self.health.worth_trying:
            return
        try:
            self._is_moved |= self._files.follow()
            self._files.try_out()
            if self._is_moved:
                move_marks(self._marks, self._files)
                self._space.rescan()
                self._is_moved = False
                _log.warning("cache: %s was removed or replaced; it is begun anew", self.directory)
        except (OSError, CacheError) as error:
            is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            if self._is_moved or not is_full:
                self.health.failed(f"writing to {self.directory}", error)
                return
        self.health.succeeded()

    def statistics(self) -> CacheStatistics:
        """The counts and sizes now. Memory only."""
        count = self._counters.get
        return CacheStatistics(
            directory=str(self.directory),
            used=self._space.used,
            limit=self._space.limit,
            objects=self._space.objects,
            held=len(self._held),
            descriptors=self._pool.open_count,
            health=self.health.state,
            why=self.health.why,
            loads=count("loads"),
            loaded_bytes=count("loaded_bytes"),
            direct_reads=count("direct_reads"),
            direct_read_bytes=count("direct_read_bytes"),
            checks=count("checks"),
            checked_bytes=count("checked_bytes"),
            saves=count("saves"),
            saved_bytes=count("saved_bytes"),
            no_room=count("no_room"),
            evictions=count("evictions"),
            evicted_bytes=count("evicted_bytes"),
            corrupt_stripes=count("corrupt_stripes"),
            begun_anew=count("begun_anew"),
            read_errors=count("read_errors"),
            write_errors=count("write_errors"),
        )

    def close(self) -> None:
        """Close every file and let go of every object. No method may be called afterwards."""
        self._pool.close()
        self._marks.close()
        self._files.close()

    def _check_room(self, reserve: int) -> None:
        if self._space.used or self._files.free() >= reserve + self.stripe_size:
            return
        raise CacheError(
            f"the disk of the cache directory {self.directory} has {format_size(self._files.free())} free, "
            f"and {format_size(reserve)} of it are to stay free",
            mend="free some space there or choose another --cache-dir",
        )

    @contextmanager
    def _claim(self, name: str) -> Iterator[None]:
        """Only one thread at a time acquires, releases or evicts the object ``name``."""
        with self._changed:
            self._changed.wait_for(lambda: name not in self._busy)
            self._busy.add(name)
        try:
            yield
        finally:
            self._disclaim(name)

    def _disclaim(self, name: str) -> None:
        with self._changed:
            self._busy.remove(name)
            self._changed.notify_all()

    def _take_up(self, name: str, version: ObjectVersion) -> _Held:
        self._marks.hold(name)  # first: from here on nobody deletes the files that are looked at next
        try:
            held = _Held(CachedObject(version, self.stripe_size, self._parts, self._remembered.get(name)))
        except BaseException:
            self._marks.let_go(name)
            raise
        with self._changed:
            self._held[name] = held
        return held

    def _names_held(self) -> set[str]:
        with self._changed:
            return set(self._held)

    def _touch(self, name: str) -> None:
        try:
            self._files.touch(name)
        except OSError as error:
            self.health.failed(f"noting the use of {name}", error)

    def _remember(self, name: str, checked: Checked | None) -> None:
        with self._changed:
            before = self._remembered.pop(name, None)
            self._remembered_stripes -= len(before.table) if before is not None else 0
            if checked is not None and checked.table.verified_indices():
                self._remembered[name] = checked
                self._remembered_stripes += len(checked.table)
            while self._remembered_stripes > _REMEMBERED_STRIPES:
                _, dropped = self._remembered.popitem(last=False)
                self._remembered_stripes -= len(dropped.table)

    def _evict(self, victim: Candidate) -> bool:
        """Delete the object unless it is used, or has been since it was looked at."""
        name = victim.name
        with self._changed:
            if name in self._busy or name in self._held:
                return False
            self._busy.add(name)
        try:
            with self._marks.deleting(name) as free:
                if not free:
                    return False
                now = self._files.look(name)
                if now.pinned or now.last_use_ns != victim.last_use_ns:
                    return False
                self._files.delete(name)
        except OSError as error:
            self.health.failed(f"evicting {name}", error)
            return False
        finally:
            self._disclaim(name)
        self._remember(name, None)
        _log.debug("cache: evicted %s, %s", name, format_size(victim.size))
        return True
