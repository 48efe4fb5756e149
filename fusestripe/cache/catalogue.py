"""What the commands do with a cache directory, used by a daemon or not: list, check, evict, clear, unpin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from fusestripe.cache.descriptors import DescriptorPool
from fusestripe.cache.files import CacheDirectory, FileSet, object_name
from fusestripe.cache.health import Counters, DiskHealth
from fusestripe.cache.ledger import StripeTable, decode_records
from fusestripe.cache.marks import open_marks
from fusestripe.cache.object import CachedObject, Parts
from fusestripe.cache.pair import Damaged, read_ledger
from fusestripe.errors import CacheError
from fusestripe.units import ObjectVersion

__all__ = ["CacheCatalogue", "CacheEntry", "Removed", "Verified"]


class CacheEntry(msgspec.Struct, frozen=True):
    """One object of the cache. ``disk_bytes`` is what its data takes on the disk.

    ``last_use`` and ``pinned_until`` are seconds since the epoch; ``pinned_until`` is 0 without a pin, and
    infinite for ever. ``in_use``: some process has it open now.
    """

    version: ObjectVersion
    stripe_size: int
    present_bytes: int
    disk_bytes: int
    last_use: float
    pinned_until: float
    in_use: bool

    @property
    def complete(self) -> bool:
        """Whether every byte is present."""
        return self.present_bytes == self.version.size

    @property
    def pinned(self) -> bool:
        """Whether it is kept from eviction."""
        return self.pinned_until > 0


class Verified(msgspec.Struct, frozen=True):
    """What checking one object found: bytes that are right, and bad stripes, which have been cleared."""

    entry: CacheEntry
    good_bytes: int
    bad_stripes: int


class Removed(msgspec.Struct, frozen=True):
    """What was deleted: objects and bytes of the disk; and how many objects were left because of what.

    ``failed`` says why for each that could not be deleted.
    """

    objects: int = 0
    bytes: int = 0
    in_use: int = 0
    pinned: int = 0
    failed: tuple[str, ...] = ()


class _NoRoom:
    """The Room of objects that are only read."""

    disk_is_full = False

    def reserve(self, length: int) -> bool:
        return False

    def settle(self, length: int, *, written: bool) -> None:
        raise AssertionError("nothing was reserved")

    def refuse(self) -> None:
        raise AssertionError("nothing was reserved")


class CacheCatalogue:
    """The contents of a cache directory, for one thread. A context manager.

    Raises CacheError where there is no cache, or it belongs to another user or a newer version.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files = CacheDirectory(directory, create=False)
        try:
            self._marks = open_marks(self._files)
        except BaseException:
            self._files.close()
            raise
        self._pool = DescriptorPool(4)

    def __enter__(self) -> CacheCatalogue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the directory. Nothing is called afterwards."""
        self._pool.close()
        self._marks.close()
        self._files.close()

    def entries(self) -> list[CacheEntry]:
        """Every object of which something may be present, by origin and path. Reads each ledger."""
        entries = (self._entry(files) for files in self._scan())
        return sorted(
            (entry for entry in entries if entry is not None),
            key=lambda entry: (entry.version, entry.stripe_size),
        )

    def verify(
        self,
        entries: Iterable[CacheEntry] | None = None,
        tell: Callable[[CacheEntry, int], None] = lambda _entry, _length: None,
    ) -> Iterator[Verified]:
        """Read the objects back from the disk, one by one, and clear their bad stripes. None: all objects.

        ``tell`` hears the bytes of each stripe as it was looked at.
        """
        for entry in self.entries() if entries is None else entries:
            counters = Counters()
            parts = Parts(self._files, self._pool, self._marks, _NoRoom(), DiskHealth(), counters)
            name = object_name(entry.version, entry.stripe_size)
            self._marks.hold(name)
            try:
                obj = CachedObject(entry.version, entry.stripe_size, parts)
                good = obj.verify(partial(tell, entry))
                obj.close()
            finally:
                self._marks.let_go(name)
            yield Verified(entry, good, counters.get("corrupt_stripes") + counters.get("read_errors"))

    def evict(self, *, origin: str = "", path: str = "", pinned: bool = False) -> Removed:
        """Delete the objects of ``origin`` ("" is any) at ``path`` or below it ("" is all).

        Objects in use are left, and pinned ones unless ``pinned``.
        """

        return self._remove(lambda files: self._lies_at(files, origin, path), pinned)

    def clear(self, *, pinned: bool = False) -> Removed:
        """Delete every object, damaged ones too, but those in use and, unless ``pinned``, the pinned ones."""
        return self._remove(lambda _files: True, pinned)

    def aliens(self) -> list[str]:
        """What somebody else put among the objects, by its path in the directory. Nothing here touches it."""
        try:
            return self._files.aliens()
        except OSError as error:
            raise CacheError(f"cannot read the cache directory {self.directory}: {error.strerror}") from error

    def unpin(self, *, origin: str = "", path: str = "") -> int:
        """Let the objects that ``evict`` would choose be evicted again; how many were pinned.

        Without ``origin`` and ``path`` that is every object, damaged ones too. Raises CacheError where the
        disk fails.
        """
        unpinned = 0
        for files in self._scan():
            if not files.pinned or ((origin or path) and not self._lies_at(files, origin, path)):
                continue
            try:
                self._files.unpin(files.name)
            except OSError as error:
                raise CacheError(f"cannot unpin in {self._files.path}: {error.strerror}") from error
            unpinned += 1
        return unpinned

    def _lies_at(self, files: FileSet, origin: str, path: str) -> bool:
        entry = self._entry(files)
        return (
            entry is not None
            and origin in ("", entry.version.origin)
            and (not path or entry.version.path == path or entry.version.path.startswith(f"{path}/"))
        )

    def _scan(self) -> list[FileSet]:
        try:
            return self._files.scan()
        except OSError as error:
            raise CacheError(
                f"cannot read the cache directory {self._files.path}: {error.strerror}"
            ) from error

    def _entry(self, files: FileSet) -> CacheEntry | None:
        try:
            header, content, *_rest = read_ledger(self._files, files.name)
        except (Damaged, OSError):
            return None  # nothing of it can be used, and eviction takes it in its turn
        table = StripeTable(header.stripes)
        for index, checksum in decode_records(header, content):
            table.put(index, checksum)
        return CacheEntry(
            version=header.version,
            stripe_size=header.stripe_size,
            present_bytes=table.present_bytes(header.version.size, header.stripe_size),
            disk_bytes=files.size,
            last_use=files.last_use_ns / 1e9,
            pinned_until=files.pinned_until,
            in_use=self._marks.in_use(files.name),
        )

    def _remove(self, chosen: Callable[[FileSet], bool], pinned: bool) -> Removed:
        objects = freed = in_use = left_pinned = 0
        failed: list[str] = []
        for files in self._scan():
            if not chosen(files):
                continue
            with self._marks.deleting(files.name) as free:
                now = self._files.look(files.name)
                if not free:
                    in_use += 1
                elif now.pinned and not pinned:
                    left_pinned += 1
                else:
                    try:
                        self._files.delete(now.name)
                    except OSError as error:
                        failed.append(f"objects/{now.name[:2]}/{now.name}: {error.strerror}")
                    else:
                        objects += 1
                        freed += now.size
        return Removed(objects, freed, in_use, left_pinned, tuple(failed))
