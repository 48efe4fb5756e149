"""One object version in the cache: which stripes are there, and reading, checking and writing them."""

from __future__ import annotations

import errno
import itertools
import logging
import mmap
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec
import xxhash

from fusestripe.cache.descriptors import DescriptorPool
from fusestripe.cache.files import (
    DATA,
    LEDGER,
    PAGE,
    CacheDirectory,
    object_name,
    read_at,
    write_at,
    write_direct,
)
from fusestripe.cache.health import Counters, DiskHealth
from fusestripe.cache.ledger import (
    RECORD_SIZE,
    Header,
    StripeTable,
    decode_header,
    decode_records,
    encode_header,
    encode_record,
)
from fusestripe.cache.marks import UseMarks
from fusestripe.errors import CacheError
from fusestripe.stripes.plan import stripe_count, stripe_length
from fusestripe.units import ObjectVersion

__all__ = ["CachedObject", "Checked", "Parts", "Room"]

_log = logging.getLogger(__name__)
_serials = itertools.count(1)
_DIRECT = ".data by O_DIRECT"


class Room(Protocol):
    """Who decides whether there is room for a stripe."""

    def reserve(self, length: int) -> bool:
        """Make room for ``length`` bytes about to be written; False where there is none."""
        ...

    def settle(self, length: int, *, written: bool) -> None:
        """The bytes reserved are on the disk now, or will not be."""
        ...

    def refuse(self) -> None:
        """The disk itself had no room for what was reserved."""
        ...


class Parts(msgspec.Struct, frozen=True):
    """What the objects of one store share."""

    directory: CacheDirectory
    pool: DescriptorPool
    marks: UseMarks
    room: Room
    health: DiskHealth
    counters: Counters


class Identity(msgspec.Struct, frozen=True):
    """The state of a data file: another one means that somebody else may have written to it."""

    inode: int
    mtime_ns: int
    size: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        """The identity by stat(2)."""
        return cls(status.st_ino, status.st_mtime_ns, status.st_size)


class Checked(msgspec.Struct, frozen=True):
    """Which stripes a process has checked, and the state of the data file then: kept beyond a release."""

    identity: Identity
    table: StripeTable


class _Files(msgspec.Struct, eq=False):
    """The two files of the object as they were found, and what their ledger says.

    When the files turn out to be others, a new value with another ``serial`` takes its place, so a descriptor
    or a result that belongs to the old ones is never taken for the new. Changed under the object's lock.
    """

    serial: int
    header: Header
    table: StripeTable
    ledger_inode: int
    ledger_ctime_ns: int
    known: Identity
    writers: int = 0


class _Replaced(Exception):
    """The files of the object are not those that were found."""


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
        self._key = bytes.fromhex(version.key)
        self._lock = threading.RLock()
        self._creating = threading.Lock()
        self._files: _Files | None = None
        self.refresh()
        if checked is not None:
            self._recall(checked)

    def __repr__(self) -> str:
        return f"<CachedObject {self._who} {self.present_bytes} of {self.version.size} bytes>"

    # What is there: memory only.

    def present(self, index: int) -> bool:
        """Whether the ledger has the stripe. Memory only."""
        self._check_index(index)
        files = self._files
        return files is not None and files.table.present(index)

    def verified(self, index: int) -> bool:
        """Whether this process has checked the stripe since others last changed the file. Memory only."""
        self._check_index(index)
        files = self._files
        return files is not None and files.table.verified(index)

    @property
    def complete(self) -> bool:
        """Whether every stripe is present. Memory only."""
        return self._count() == self._stripes

    @property
    def all_verified(self) -> bool:
        """Whether every stripe is verified. Memory only, one pass over the stripes."""
        files = self._files
        checked = 0 if files is None else len(files.table.verified_indices())
        return checked == self._stripes

    @property
    def present_bytes(self) -> int:
        """How many bytes are present. Memory only."""
        files = self._files
        if files is None or not files.table.count:
            return 0
        last = self._stripes - 1
        missing_tail = self.stripe_size - self._length(last) if files.table.present(last) else 0
        return files.table.count * self.stripe_size - missing_tail

    # Reading.

    def load(self, index: int, into: memoryview) -> bool:
        """Read the whole stripe into ``into``, of the stripe's exact length, and check it.

        False is a miss: the stripe is absent, or it was bad (short, another checksum, an I/O error) and has
        been cleared, in the ledger on the disk too. ``into`` then holds anything.
        """
        self._check_length(index, into)
        files = self._files
        if files is None or not files.table.present(index):
            return False
        checksum = files.table.checksum(index)
        try:
            with self._borrow(files, DATA) as fd:
                done = read_at(fd, into, index * self.stripe_size)
        except (_Replaced, FileNotFoundError):
            self._reset(files)
            return False
        except OSError as error:
            self._read_failed(files, index, checksum, error)
            return False
        if not self._judge(files, index, checksum, into, done):
            return False
        self._parts.counters.add(loads=1, loaded_bytes=done)
        return True

    def read(self, offset: int, into: memoryview, *, nowait: bool) -> bool:
        """Read bytes inside one verified stripe. False: not now, use ``load``.

        With ``nowait`` the answer comes from the page cache or is False (RWF_NOWAIT, preadv2(2)), and no file
        is opened: nothing waits for the disk. Raises ValueError where the bytes are not inside one stripe.
        """
        length = len(into)
        index = offset // self.stripe_size
        self._check_index(index)
        if offset - index * self.stripe_size + length > self._length(index):
            raise ValueError(f"{length} bytes at {offset} are not inside stripe {index} of {self._who}")
        files = self._files
        if files is None or not files.table.verified(index):
            return False
        try:
            done = self._read_now(files, into, offset) if nowait else self._read_waiting(files, into, offset)
        except (_Replaced, OSError):
            return False  # load meets the same and says so
        if done != length or not files.table.verified(index):
            return False
        self._parts.counters.add(direct_reads=1, direct_read_bytes=length)
        return True

    def verify(self) -> int:
        """Read every present stripe back from the disk and clear the bad ones; the number of good bytes.

        Past the page cache where the filesystem allows it, after the data has been flushed to the disk. Takes
        one stripe's size of memory while it runs.
        """
        files = self._files
        if files is None or not files.table.count:
            return 0
        good = 0
        self._flush(files)
        buffer = memoryview(mmap.mmap(-1, -(-self.stripe_size // PAGE) * PAGE))
        for index in files.table.indices():
            good += self._verify_stripe(files, index, buffer)
        return good

    def open_data(self) -> int:
        """A descriptor of the data file for reading, which the caller owns: the kernel reads the file by it.

        Raises CacheError where the object has no data file or another one than the one that was checked.
        """
        files = self._files
        if files is None:
            raise CacheError(f"nothing of {self._who} is in the cache")
        try:
            return self._open_file(files, DATA, os.O_RDONLY)
        except (_Replaced, OSError) as error:
            raise CacheError(f"the cache file of {self._who} cannot be opened: {error}") from error

    # Writing.

    def save(self, index: int, data: memoryview) -> bool:
        """Write the whole stripe and make it present. False: there is no room, or the disk is down.

        O_DIRECT where ``data`` is page-aligned and the filesystem takes it. Raises CacheError on a disk
        error.
        """
        self._check_length(index, data)
        parts = self._parts
        if not parts.health.worth_trying:
            return False
        checksum = xxhash.xxh3_64_intdigest(data)
        files = self._files
        if files is not None and files.table.present(index) and files.table.checksum(index) == checksum:
            return True
        if not parts.room.reserve(len(data)):
            return False
        written = False
        try:
            written = self._write(index, data, checksum)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                parts.room.refuse()
                return False
            what = f"writing stripe {index} of {self._who}"
            parts.counters.add(write_errors=1)
            parts.health.failed(what, error)
            raise CacheError(f"{what} to the cache failed: {error.strerror}") from error
        finally:
            parts.room.settle(len(data), written=written)
        if written:
            parts.health.succeeded()
            parts.counters.add(saves=1, saved_bytes=len(data))
        return written

    # The files.

    def refresh(self) -> None:
        """Learn what other processes have added or cleared. Reads the ledger if it has changed."""
        try:
            self._look()
        except OSError as error:
            self._parts.counters.add(read_errors=1)
            self._parts.health.failed(f"reading the ledger of {self._who}", error)

    def _look(self) -> None:
        with self._lock:
            before = self._files
            try:
                status = self._parts.directory.stat(self.name, LEDGER)
                if before is not None and status.st_ino == before.ledger_inode:
                    if status.st_ctime_ns != before.ledger_ctime_ns:
                        self._update_table(before.header, before.table, self._read_ledger())
                        before.ledger_ctime_ns = status.st_ctime_ns
                    return
                self._files = self._find_files(self._read_ledger(), status)
            except FileNotFoundError:
                self._files = None
        if before is not None:
            self._parts.pool.forget(before.serial)

    def checked(self) -> Checked | None:
        """What this process has checked, for a later CachedObject of the same version."""
        with self._lock:
            files = self._files
            if files is None:
                return None
            return Checked(files.known, files.table)

    def close(self) -> None:
        """Close the descriptors of the object."""
        files = self._files
        if files is not None:
            self._parts.pool.forget(files.serial)

    @property
    def _who(self) -> str:
        return f"{self.version.origin}/{self.version.path}"

    def _count(self) -> int:
        files = self._files
        return 0 if files is None else files.table.count

    def _length(self, index: int) -> int:
        return stripe_length(index, self.version.size, self.stripe_size)

    def _check_index(self, index: int) -> None:
        if not 0 <= index < self._stripes:
            raise ValueError(f"stripe {index} of {self._stripes} of {self._who}")

    def _check_length(self, index: int, data: memoryview) -> None:
        self._check_index(index)
        if data.nbytes != self._length(index) or data.itemsize != 1:
            length = self._length(index)
            raise ValueError(f"{data.nbytes} bytes for stripe {index} of {self._who}, not {length}")

    def _read_ledger(self) -> bytes:
        fd = self._parts.directory.open(self.name, LEDGER, os.O_RDONLY)
        try:
            content = bytearray(min(os.fstat(fd).st_size, (2 << 20) + self._stripes * RECORD_SIZE))
            return bytes(content[: read_at(fd, memoryview(content), 0)])
        finally:
            os.close(fd)

    def _find_files(self, content: bytes, ledger: os.stat_result) -> _Files | None:
        """The files as they are, if the ledger is of this version and the data file has its length."""
        header = decode_header(content)
        if header is None or (header.version, header.stripe_size) != (self.version, self.stripe_size):
            _log.warning("cache: the ledger of %s is damaged and is begun anew", self._who)
            return None
        data = self._parts.directory.stat(self.name, DATA)
        if not stat.S_ISREG(data.st_mode) or data.st_size != self.version.size:
            _log.warning("cache: the data file of %s has %d bytes and is begun anew", self._who, data.st_size)
            return None
        table = StripeTable(self._stripes)
        self._update_table(header, table, content)
        return _Files(next(_serials), header, table, ledger.st_ino, ledger.st_ctime_ns, Identity.of(data))

    def _update_table(self, header: Header, table: StripeTable, content: bytes) -> None:
        found = dict(decode_records(header, content))
        for index in table.indices():
            if index not in found:
                table.clear(index)
        for index, checksum in found.items():
            table.put(index, checksum)

    def _recall(self, checked: Checked) -> None:
        with self._lock:
            files = self._files
            if files is not None and files.known == checked.identity:
                for index in checked.table.verified_indices():
                    files.table.mark_verified(index, checked.table.checksum(index))

    def _reset(self, files: _Files) -> None:
        """The files are gone or others: nothing is present until they are found again."""
        with self._lock:
            if self._files is not files:
                return
            self._files = None
        self._parts.pool.forget(files.serial)
        _log.warning("cache: the files of %s were taken away or replaced; begun anew", self._who)

    # Descriptors.

    @contextmanager
    def _borrow(self, files: _Files, kind: str) -> Iterator[int]:
        with self._parts.pool.borrow(files.serial, kind, lambda: self._open_kind(files, kind)) as fd:
            yield fd

    def _open_kind(self, files: _Files, kind: str) -> int:
        if kind == _DIRECT:
            return self._open_file(files, DATA, os.O_RDWR | os.O_DIRECT)
        return self._open_file(files, kind, os.O_RDWR)

    def _open_file(self, files: _Files, suffix: str, flags: int) -> int:
        fd = self._parts.directory.open(self.name, suffix, flags)
        try:
            status = os.fstat(fd)
            self._notice(files, suffix, status)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _notice(self, files: _Files, suffix: str, status: os.stat_result) -> None:
        """Compare the data file with what is known of it; where it has changed, nothing is verified."""
        if suffix == LEDGER:
            if status.st_ino != files.ledger_inode:
                raise _Replaced
            return
        found = Identity.of(status)
        with self._lock:
            if (found.inode, found.size) != (files.known.inode, self.version.size):
                raise _Replaced
            if not files.writers and found != files.known:
                files.table.forget_verified()
                files.known = found

    # Reading, continued.

    def _read_now(self, files: _Files, into: memoryview, offset: int) -> int:
        with self._parts.pool.borrow_open(files.serial, DATA) as fd:
            return 0 if fd is None else os.preadv(fd, [into], offset, os.RWF_NOWAIT)

    def _read_waiting(self, files: _Files, into: memoryview, offset: int) -> int:
        with self._borrow(files, DATA) as fd:
            return read_at(fd, into, offset)

    def _flush(self, files: _Files) -> None:
        for kind in (DATA, LEDGER):
            try:
                with self._borrow(files, kind) as fd:
                    os.fdatasync(fd)
            except (_Replaced, FileNotFoundError):
                self._reset(files)
            except OSError as error:
                self._parts.health.failed(f"flushing {self._who}", error)

    def _verify_stripe(self, files: _Files, index: int, buffer: memoryview) -> int:
        checksum = files.table.checksum(index)
        length = self._length(index)
        kind = _DIRECT if self._parts.directory.direct else DATA
        try:
            with self._borrow(files, kind) as fd:
                done = read_at(fd, buffer, index * self.stripe_size)
        except (_Replaced, FileNotFoundError):
            self._reset(files)
            return 0
        except OSError as error:
            if error.errno == errno.EINVAL and kind == _DIRECT:
                return length if self.load(index, buffer[:length]) else 0
            self._read_failed(files, index, checksum, error)
            return 0
        return length if self._judge(files, index, checksum, buffer[:length], min(done, length)) else 0

    def _judge(self, files: _Files, index: int, checksum: int, data: memoryview, done: int) -> bool:
        """Whether the ``done`` bytes read into ``data`` are the stripe; it is cleared if they are not."""
        if done == len(data) and xxhash.xxh3_64_intdigest(data) == checksum:
            with self._lock:
                files.table.mark_verified(index, checksum)
            return True
        _log.warning("cache: stripe %d of %s is damaged; it is fetched again", index, self._who)
        self._parts.counters.add(corrupt_stripes=1)
        self._clear(files, index, checksum)
        return False

    def _read_failed(self, files: _Files, index: int, checksum: int, error: OSError) -> None:
        self._parts.counters.add(read_errors=1)
        self._parts.health.failed(f"reading stripe {index} of {self._who}", error)
        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            self._clear(files, index, checksum)

    def _clear(self, files: _Files, index: int, checksum: int) -> None:
        """Make the stripe absent, here and on the disk, unless it was written again since."""
        with self._lock:
            if files.table.present(index) and files.table.checksum(index) == checksum:
                files.table.clear(index)
        try:
            with self._borrow(files, LEDGER) as fd:
                with self._lock:
                    if not files.table.present(index):
                        write_at(fd, bytes(RECORD_SIZE), files.header.records_at + index * RECORD_SIZE)
                os.fdatasync(fd)
        except (_Replaced, FileNotFoundError):
            self._reset(files)
        except OSError as error:
            self._parts.health.failed(f"clearing stripe {index} of {self._who}", error)

    # Writing, continued.

    def _write(self, index: int, data: memoryview, checksum: int) -> bool:
        files = self._files_for_writing()
        try:
            self._begin_write(files, index)
            try:
                self._write_data(files, data, index * self.stripe_size)
            finally:
                self._end_write(files)
            record = encode_record(self._key, self.stripe_size, index, checksum)
            with self._borrow(files, LEDGER) as fd, self._lock:
                if self._files is not files:
                    return False
                write_at(fd, record, files.header.records_at + index * RECORD_SIZE)
                files.table.put(index, checksum)
        except (_Replaced, FileNotFoundError):
            self._reset(files)
            return False
        return True

    def _files_for_writing(self) -> _Files:
        with self._creating:
            if self._files is None:
                with self._parts.marks.creating(self.name):
                    self._look()
                    if self._files is None:
                        header = encode_header(self.version, self.stripe_size)
                        self._parts.directory.begin(self.name, self.version.size, header)
                        self._look()
            files = self._files
        if files is None:
            raise OSError(errno.EIO, "the files just made cannot be read back")
        return files

    def _begin_write(self, files: _Files, index: int) -> None:
        if files.table.present(index):  # with another checksum: it must not be found half and half
            self._clear(files, index, files.table.checksum(index))
        with self._borrow(files, DATA) as fd, self._lock:
            self._notice(files, DATA, os.fstat(fd))
            files.writers += 1

    def _write_data(self, files: _Files, data: memoryview, offset: int) -> None:
        done = 0
        if self._parts.directory.direct and len(data) >= PAGE:
            with self._borrow(files, _DIRECT) as fd:
                done = write_direct(fd, data, offset)
        if done < len(data):
            with self._borrow(files, DATA) as fd:
                write_at(fd, data[done:], offset + done)

    def _end_write(self, files: _Files) -> None:
        with self._lock:
            files.writers -= 1
        with self._borrow(files, DATA) as fd, self._lock:
            if not files.writers:
                files.known = Identity.of(os.fstat(fd))
