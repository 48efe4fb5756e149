"""One object version in the cache: which stripes are there, and reading, checking and writing them."""

from __future__ import annotations

import enum
import errno
import logging
import mmap
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec
import xxhash

from fusestripe.cache.descriptors import DescriptorPool
from fusestripe.cache.files import CacheDirectory, object_name
from fusestripe.cache.health import Counters, DiskHealth
from fusestripe.cache.ledger import encode_header
from fusestripe.cache.marks import UseMarks
from fusestripe.cache.pair import Checked, Damaged, FilePair, Replaced, find_pair
from fusestripe.cache.transfers import PAGE
from fusestripe.errors import CacheError
from fusestripe.stripes.plan import stripe_count, stripe_length
from fusestripe.units import ObjectVersion

__all__ = ["CachedObject", "Parts", "Room", "Saved"]

_log = logging.getLogger(__name__)
_NOT_THE_DISK = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_IN_THE_WAY = (errno.EISDIR, errno.ENOTDIR, errno.ELOOP)  # somebody's directory, file or link under our name


class Room(Protocol):
    """Who decides whether there is room for a stripe."""

    @property
    def disk_is_full(self) -> bool:
        """Whether what was refused last was for the disk and not for the cache's limit."""
        ...

    def reserve(self, length: int) -> bool:
        """Make room for ``length`` bytes about to be written; False where there is none. Raises OSError."""
        ...

    def settle(self, length: int, *, written: bool) -> None:
        """The bytes reserved are on the disk now, or will not be."""
        ...

    def refuse(self) -> None:
        """The disk itself had no room for what was reserved."""
        ...


class Saved(enum.Enum):
    """What came of saving a stripe; true where it is in the cache now."""

    YES = "saved"
    NO_ROOM = "the cache is at its limit, and there is nothing to evict"
    DISK_FULL = "the disk has no room, and there is nothing to evict"
    DISK_DOWN = "the disk failed, and is left alone for a while"
    REPLACED = "the files were taken away; the next attempt begins anew"

    def __bool__(self) -> bool:
        """Whether the stripe is in the cache."""
        return self is Saved.YES

    def refusal(self, version: ObjectVersion) -> CacheError | None:
        """The error that says why a stripe of ``version`` was not saved, where trying again does not help."""
        if self is Saved.NO_ROOM:
            return CacheError(
                f"{version} does not fit into the cache",
                mend="give it more room with --cache-size, or free some with 'fusestripe cache evict'",
            )
        if self is Saved.DISK_FULL:
            return CacheError(
                f"{version} is not kept: the disk of the cache is full",
                mend="free some space on that disk, or choose another with --cache-dir",
            )
        if self is Saved.DISK_DOWN:
            return CacheError(
                f"{version} is not kept: the cache disk failed and is left alone for a while",
                mend="look at the disk's health; fusestripe status names the log",
            )
        return None


class Parts(msgspec.Struct, frozen=True):
    """What the objects of one store share."""

    directory: CacheDirectory
    pool: DescriptorPool
    marks: UseMarks
    room: Room
    health: DiskHealth
    counters: Counters


class CachedObject:
    """One object version in the cache directory, for many threads. CacheStore.acquire gives it.

    Invariants: a stripe is present only after its data and then its record were written; ``verified`` only
    while the data file is as it was when the bytes were checked, but for this process's own writes.
    """

    def __init__(
        self, version: ObjectVersion, stripe_size: int, parts: Parts, checked: Checked | None = None
    ) -> None:
        self.version = version
        self.stripe_size = stripe_size
        self.name = object_name(version, stripe_size)
        self._parts = parts
        self._stripes = stripe_count(version.size, stripe_size)
        self._lock = threading.Lock()
        self._creating = threading.Lock()
        self._pair: FilePair | None = None
        self._is_damaged = False  # found so already, and not made anew since
        self.refresh()
        if checked is not None and self._pair is not None:
            self._pair.recall(checked)

    def __repr__(self) -> str:
        return f"<CachedObject {self._who}: {self.present_bytes} of {self.version.size} bytes>"

    def present(self, index: int) -> bool:
        """Whether the ledger has the stripe. Memory only."""
        self._check_index(index)
        pair = self._pair
        return pair is not None and pair.table.present(index)

    def verified(self, index: int) -> bool:
        """Whether this process has checked the stripe since others last changed the file. Memory only."""
        self._check_index(index)
        pair = self._pair
        return pair is not None and pair.table.verified(index)

    @property
    def complete(self) -> bool:
        """Whether every stripe is present. Memory only."""
        pair = self._pair
        return (0 if pair is None else pair.table.count) == self._stripes

    @property
    def all_verified(self) -> bool:
        """Whether every stripe is verified. Memory only, one pass over the stripes."""
        pair = self._pair
        return not self._stripes if pair is None else pair.table.all_verified

    @property
    def present_bytes(self) -> int:
        """How many bytes are present. Memory only."""
        pair = self._pair
        return 0 if pair is None else pair.table.present_bytes(self.version.size, self.stripe_size)

    def load(self, index: int, into: memoryview, *, checking: bool = False) -> bool:
        """Read the whole stripe into ``into``, of the stripe's exact length, and check it.

        False is a miss: the stripe is absent, or it was bad (short, another checksum, an I/O error) and has
        been cleared, in the ledger on the disk too. ``into`` then holds anything. What nobody reads, but is
        only loaded for ``checking``, is counted apart.
        """
        self._check_length(index, into)
        pair = self._pair
        if pair is None or not pair.table.present(index):
            return False
        if not self._check(pair, index, into, into, pair.read):
            return False
        length = len(into)
        counts = {"checks": 1, "checked_bytes": length} if checking else {"loads": 1, "loaded_bytes": length}
        self._parts.counters.add(**counts)
        return True

    def read(self, offset: int, into: memoryview, *, nowait: bool) -> bool:
        """Read bytes inside one verified stripe. False: not now, use ``load``.

        With ``nowait`` the answer comes from the page cache or is False, and no file is opened: nothing waits
        for the disk. Raises ValueError where the bytes are not inside one stripe.
        """
        length = len(into)
        index = offset // self.stripe_size
        self._check_index(index)
        if offset - index * self.stripe_size + length > self._length(index):
            raise ValueError(f"{length} bytes at {offset} are not inside stripe {index} of {self._who}")
        pair = self._pair
        if pair is None or not pair.table.verified(index):
            return False
        try:
            done = pair.read_now(offset, into) if nowait else pair.read(offset, into)
        except (Replaced, OSError):
            return False  # load meets the same, and says so
        if done != length or not pair.table.verified(index):
            return False
        self._parts.counters.add(direct_reads=1, direct_read_bytes=length)
        return True

    def verify(self, tell: Callable[[int], None] = lambda _: None) -> int:
        """Read every present stripe back from the disk and clear the bad ones; the number of good bytes.

        ``tell`` hears the bytes of each stripe that was looked at.
        Past the page cache where the filesystem allows it, after the data has been flushed to the disk. Takes
        one stripe's size of memory while it runs.
        """
        pair = self._pair
        if pair is None or not pair.table.count:
            return 0
        try:
            pair.flush()
        except (Replaced, FileNotFoundError):
            self._reset(pair)
            return 0
        except OSError as error:
            self._parts.health.failed(f"flushing {self._who}", error)
        buffer = memoryview(mmap.mmap(-1, -(-self.stripe_size // PAGE) * PAGE))
        good = 0
        for index in pair.table.indices():
            length = self._length(index)
            if self._check(pair, index, buffer, buffer[:length], pair.read_direct):
                good += length
            tell(length)
        return good

    def open_data(self) -> int:
        """A descriptor of the data file for reading, which the caller owns: the kernel reads the file by it.

        Raises CacheError unless the file is whole and checked, nobody has written to it since, and its disk
        answers.
        """
        pair = self._pair
        if pair is None:
            raise CacheError(f"nothing of {self._who} is in the cache")
        try:
            data = pair.open_data()
        except (Replaced, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (*_NOT_THE_DISK, errno.ENOENT):
                self._parts.counters.add(read_errors=1)
                self._parts.health.failed(f"opening {self._who}", error)
            raise CacheError(f"the cache file of {self._who} cannot be opened: {error}") from error
        if not pair.table.all_verified:  # as far as was known before it was opened, and looked at
            os.close(data)
            raise CacheError(f"the cache file of {self._who} is not checked")
        return data

    def save(self, index: int, data: memoryview) -> Saved:
        """Write the whole stripe and make it present, or say why not.

        O_DIRECT where ``data`` is page-aligned and the filesystem takes it. Raises CacheError where the disk
        fails.
        """
        self._check_length(index, data)
        parts = self._parts
        if not parts.health.worth_trying:
            return Saved.DISK_DOWN
        checksum = xxhash.xxh3_64_intdigest(data)
        pair = self._pair
        if pair is not None and pair.table.present(index) and pair.table.checksum(index) == checksum:
            return Saved.YES
        try:
            if not parts.room.reserve(len(data)):
                return Saved.DISK_FULL if parts.room.disk_is_full else Saved.NO_ROOM
            saved = self._write_reserved(index, data, checksum)
        except OSError as error:
            what = f"writing stripe {index} of {self._who}"
            parts.counters.add(write_errors=1)
            if error.errno not in _IN_THE_WAY:
                parts.health.failed(what, error)
            raise CacheError(f"{what} to the cache failed: {error.strerror}") from error
        if saved:
            parts.health.succeeded()
            parts.counters.add(saves=1, saved_bytes=len(data))
        return saved

    def refresh(self) -> None:
        """Learn what other processes have added or cleared. Reads the ledger if it has changed."""
        try:
            self._look()
        except OSError as error:
            self._parts.counters.add(read_errors=1)
            self._parts.health.failed(f"reading the ledger of {self._who}", error)

    def checked(self) -> Checked | None:
        """What this process has checked, for a later CachedObject of the same version."""
        pair = self._pair
        return None if pair is None else pair.checked()

    def close(self) -> None:
        """Close the descriptors of the object; that all of it was checked is noted for later processes."""
        pair = self._pair
        if pair is not None:
            with suppress(Replaced, OSError):  # without the note it is checked once more
                pair.seal()
            pair.retire()

    @property
    def _who(self) -> str:
        return str(self.version)

    def _length(self, index: int) -> int:
        return stripe_length(index, self.version.size, self.stripe_size)

    def _check_index(self, index: int) -> None:
        if not 0 <= index < self._stripes:
            raise ValueError(f"stripe {index} of {self._stripes} of {self._who}")

    def _check_length(self, index: int, data: memoryview) -> None:
        self._check_index(index)
        length = self._length(index)
        if data.nbytes != length or data.itemsize != 1:
            raise ValueError(f"{data.nbytes} bytes for stripe {index} of {self._who}, not {length}")

    def _look(self) -> None:
        """Find the files of the object. Raises OSError, and then what was known stays."""
        with self._lock:
            before = self._pair
            try:
                found = find_pair(self._parts.directory, self._parts.pool, self.name, before)
            except Damaged as error:
                if not self._is_damaged:
                    self._parts.counters.add(begun_anew=1)
                    _log.warning("cache: %s is begun anew: %s", self._who, error)
                found = None
                self._is_damaged = True
            else:
                self._is_damaged = False
            self._pair = found
            if found is not None and (bad := found.take_damaged()):
                self._parts.counters.add(corrupt_stripes=bad)
                _log.warning("cache: %d records in the ledger of %s are damaged", bad, self._who)
        if before is not None and before is not found:
            before.retire()

    def _reset(self, pair: FilePair) -> None:
        """The files are gone or others: nothing is present until they are found again."""
        with self._lock:
            if self._pair is not pair:
                return
            self._pair = None
        pair.retire()
        self._parts.counters.add(begun_anew=1)
        _log.warning("cache: the files of %s were taken away or replaced; begun anew", self._who)

    def _check(
        self,
        pair: FilePair,
        index: int,
        into: memoryview,
        stripe: memoryview,
        read: Callable[[int, memoryview], int],
    ) -> bool:
        """Read ``into``, of which ``stripe`` is the beginning, and compare; a bad stripe is cleared."""
        checksum = pair.table.checksum(index)
        try:
            changes = pair.look()
            done = read(index * self.stripe_size, into)
        except (Replaced, FileNotFoundError):
            self._reset(pair)
            return False
        except OSError as error:
            self._parts.counters.add(read_errors=1)
            self._parts.health.failed(f"reading stripe {index} of {self._who}", error)
            if error.errno not in _NOT_THE_DISK:
                self._clear(pair, index, checksum)
            return False
        if done >= len(stripe) and xxhash.xxh3_64_intdigest(stripe) == checksum:
            pair.mark_verified(index, checksum, changes)
            return True
        self._parts.counters.add(corrupt_stripes=1)
        _log.warning("cache: stripe %d of %s is damaged; it is fetched again", index, self._who)
        self._clear(pair, index, checksum)
        return False

    def _clear(self, pair: FilePair, index: int, checksum: int) -> None:
        try:
            pair.clear(index, checksum)
        except (Replaced, FileNotFoundError):
            self._reset(pair)
        except OSError as error:
            self._parts.health.failed(f"clearing stripe {index} of {self._who}", error)

    def _write_reserved(self, index: int, data: memoryview, checksum: int) -> Saved:
        saved = Saved.DISK_FULL
        try:
            saved = self._write(index, data, checksum)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._parts.room.refuse()
        finally:
            self._parts.room.settle(len(data), written=bool(saved))
        return saved

    def _write(self, index: int, data: memoryview, checksum: int) -> Saved:
        pair = self._pair_for_writing()
        try:
            pair.write(index, data, checksum)
        except (Replaced, FileNotFoundError):
            self._reset(pair)
            return Saved.REPLACED
        return Saved.YES

    def _pair_for_writing(self) -> FilePair:
        with self._creating:
            if self._pair is None:
                with self._parts.marks.creating(self.name):
                    self._look()  # another process may have made them by now
                    if self._pair is None:
                        header = encode_header(self.version, self.stripe_size)
                        self._parts.directory.begin(self.name, self.version.size, header)
                        self._look()
            pair = self._pair
        if pair is None:
            raise OSError(errno.EIO, "the files just made cannot be read back")
        return pair
