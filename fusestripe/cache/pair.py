"""The data file and the ledger of one object, as they were found: reading, writing and clearing stripes."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import random
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from fusestripe.cache.descriptors import DescriptorPool
from fusestripe.cache.files import DATA, LEDGER, CacheDirectory, object_name
from fusestripe.cache.ledger import (
    LONGEST_HEADER,
    RECORD_SIZE,
    Header,
    StripeTable,
    count_filled,
    decode_header,
    decode_records,
    encode_record,
)
from fusestripe.cache.seal import Seal, is_settled, read_seal, write_seal
from fusestripe.cache.transfers import PAGE, read_at, read_pages, write_at, write_direct, write_through

__all__ = ["Checked", "Damaged", "FilePair", "Replaced", "find_pair", "read_ledger"]

_serials = itertools.count(1)
_DIRECT = ".data by O_DIRECT"


class Damaged(Exception):
    """There are files, but they are not of this version or not whole. The message says which way."""


class Replaced(Exception):
    """The files under the object's name are not those that were found."""


class Identity(msgspec.Struct, frozen=True):
    """The state of a data file: another one means that somebody else may have written to it.

    mtime alone does not tell: `cp -p` and `rsync -t` set it back.
    """

    inode: int
    mtime_ns: int
    ctime_ns: int
    size: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        """The identity by stat(2)."""
        return cls(status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)


class Checked(msgspec.Struct, frozen=True):
    """Which stripes a process has checked, and the state of the data file then: kept beyond a release."""

    identity: Identity
    table: StripeTable


class FilePair:
    """The two files of an object. For many threads; ``table`` may be read without a lock.

    Descriptors come from the pool and are compared with what was found whenever one is opened. So nothing
    read from or written to other files under the same name is ever taken for this pair's: methods raise
    Replaced (or FileNotFoundError) instead. They raise OSError where the disk fails. Each read looks at the
    data file's identity after it: where others have written, or may have while we did, nothing is verified
    any more.
    """

    def __init__(
        self,
        directory: CacheDirectory,
        pool: DescriptorPool,
        name: str,
        header: Header,
        data: os.stat_result,
        ledger: os.stat_result,
        content: bytes,
        seal: Seal | None,
    ) -> None:
        self.table = StripeTable(header.stripes)
        self._directory = directory
        self._pool = pool
        self._name = name
        self._header = header
        self._key = bytes.fromhex(header.version.key)
        self._serial = next(_serials)
        self._lock = threading.Lock()
        self._known = Identity.of(data)
        self._ledger_inode = ledger.st_ino
        self._ledger_ctime_ns = ledger.st_ctime_ns
        self._writers = 0
        self._changes = 0  # how often others were seen to have written
        self._retired = False
        self._damaged = 0  # records, as the ledger was read last, and those that nobody has been told of
        self._untold = 0
        self._update(content)
        self._seal = seal
        if self._boot and self.complete and seal == self._seal_of(data):
            self.table.verify_all()

    def is_current(self, ledger: os.stat_result) -> bool:
        """Whether ``ledger`` is the ledger that was found; what others have changed in it is learnt."""
        if ledger.st_ino != self._ledger_inode:
            return False
        if ledger.st_ctime_ns != self._ledger_ctime_ns:
            with self._lock:
                self._update(read_ledger(self._directory, self._name)[1])
                self._ledger_ctime_ns = ledger.st_ctime_ns
        return True

    def take_damaged(self) -> int:
        """How many records of the ledger were found that do not fit, since this was asked last."""
        found, self._untold = self._untold, 0
        return found

    @property
    def complete(self) -> bool:
        """Whether every stripe is present."""
        return self.table.count == len(self.table)

    def seal(self) -> None:
        """Note for later processes that every stripe was checked, if so. Raises Replaced, OSError."""
        if not self._boot or not self.table.all_verified:
            return
        with self._borrow(DATA) as fd:
            data = os.fstat(fd)
            self._compare(DATA, data)
            with self._lock:
                seal = self._seal_of(data)
                is_fit = self.table.all_verified and not self._writers and is_settled(data)
        if is_fit and seal != self._seal:
            # What is written to the data from now on has other times than the seal says.
            with self._borrow(LEDGER) as ledger, self._lock:
                write_seal(ledger, seal)
                self._seal = seal

    def recall(self, checked: Checked) -> None:
        """Take over what an earlier pair has checked, if nobody has written to the data file since."""
        with self._lock:
            if self._known == checked.identity:
                for index in checked.table.verified_indices():
                    self.table.mark_verified(index, checked.table.checksum(index))

    def checked(self) -> Checked:
        """What has been checked, for a later pair."""
        with self._lock:
            return Checked(self._known, self.table)

    def look(self) -> int:
        """Compare the data file with what is known; how often others were seen to have written to it."""
        with self._borrow(DATA) as fd:
            self._compare(DATA, os.fstat(fd))
            return self._changes

    def mark_verified(self, index: int, checksum: int, changes: int) -> None:
        """The bytes of the stripe, read since ``look`` gave ``changes``, fit ``checksum``.

        It is not verified where others were seen to have written meanwhile: it may have been after the read.
        """
        with self._lock:
            if self._changes == changes:
                self.table.mark_verified(index, checksum)

    def retire(self) -> None:
        """Close the descriptors; nothing becomes present any more."""
        with self._lock:
            self._retired = True
        self._pool.forget(self._serial)

    def read(self, offset: int, into: memoryview) -> int:
        """Read from the data file, through the page cache; how many bytes there were."""
        with self._borrow(DATA) as fd:
            done = read_at(fd, into, offset)
            self._compare(DATA, os.fstat(fd))
            return done

    def read_now(self, offset: int, into: memoryview) -> int:
        """Read what the page cache has, if the file is open (RWF_NOWAIT, preadv2(2)). Does not wait."""
        with self._pool.borrow_open(self._serial, DATA) as fd:
            if fd is None:
                return 0
            done = os.preadv(fd, [into], offset, os.RWF_NOWAIT)
            if not self._lock.acquire(blocking=False):  # whoever holds it may wait for the disk
                return 0
            try:
                self._notice(os.fstat(fd))
            finally:
                self._lock.release()
            return done

    def read_direct(self, offset: int, into: memoryview) -> int:
        """Read past the page cache where that can be. ``into`` is page-aligned and whole pages long."""
        try:
            with self._borrow(_DIRECT) as fd:
                done = read_pages(fd, into, offset)
                self._compare(DATA, os.fstat(fd))
                return done
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        return self.read(offset, into)

    def write(self, index: int, data: memoryview, checksum: int) -> None:
        """Write a stripe: its data, then its record, then it is present."""
        if self.table.present(index):  # with another checksum: it must not be found half and half
            self.clear(index, self.table.checksum(index))
        offset = index * self._header.stripe_size
        with self._borrow(DATA) as fd, self._lock:
            self._notice(os.fstat(fd))
            self._writers += 1
        try:
            self._write_data(data, offset)
        finally:
            self._end_write()
        with self._borrow(LEDGER) as fd, self._lock:
            if self._retired:
                raise Replaced
            record = encode_record(self._key, self._header.stripe_size, index, checksum)
            write_at(fd, record, self._record_at(index))
            self.table.put(index, checksum)

    def clear(self, index: int, checksum: int) -> None:
        """Make the stripe absent, in memory and durably on the disk, unless it was written again since."""
        with self._lock:
            if self.table.present(index) and self.table.checksum(index) == checksum:
                self.table.clear(index)
        with self._borrow(LEDGER) as fd:
            with self._lock:
                if not self.table.present(index):
                    write_at(fd, bytes(RECORD_SIZE), self._record_at(index))
            os.fdatasync(fd)

    def flush(self) -> None:
        """Wait until the disk has everything written so far."""
        for suffix in (DATA, LEDGER):
            with self._borrow(suffix) as fd:
                os.fdatasync(fd)

    def open_data(self) -> int:
        """A descriptor of the data file for reading, which the caller owns.

        A page of it, any, is read from the disk first: of a disk that fails nobody should get one.
        """
        page = memoryview(mmap.mmap(-1, PAGE))
        try:
            direct = self._open(DATA, os.O_RDONLY | os.O_DIRECT)
            try:
                os.preadv(direct, [page], random.randrange(-(-self._known.size // PAGE)) * PAGE)
            finally:
                os.close(direct)
        except OSError as error:
            if error.errno != errno.EINVAL:  # of a filesystem without O_DIRECT
                raise
        return self._open(DATA, os.O_RDONLY)

    @property
    def _boot(self) -> str:
        return self._directory.boot

    def _seal_of(self, data: os.stat_result) -> Seal:
        return Seal.of(self._boot, data, self.table.digest())

    def _update(self, content: bytes) -> None:
        found = dict(decode_records(self._header, content))
        damaged = count_filled(self._header, content) - len(found)
        self._untold += max(0, damaged - self._damaged)
        self._damaged = damaged
        for index in self.table.indices():
            if index not in found:
                self.table.clear(index)
        for index, checksum in found.items():
            self.table.put(index, checksum)

    def _record_at(self, index: int) -> int:
        return self._header.records_at + index * RECORD_SIZE

    @contextmanager
    def _borrow(self, kind: str) -> Iterator[int]:
        with self._pool.borrow(self._serial, kind, lambda: self._open_kind(kind)) as fd:
            yield fd

    def _open_kind(self, kind: str) -> int:
        if kind == _DIRECT:
            return self._open(DATA, os.O_RDWR | os.O_DIRECT)
        return self._open(kind, os.O_RDWR)

    def _open(self, suffix: str, flags: int) -> int:
        if self._retired:  # a descriptor opened now would keep deleted files on the disk
            raise Replaced
        fd = self._directory.open(self._name, suffix, flags)
        try:
            self._compare(suffix, os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _compare(self, suffix: str, status: os.stat_result) -> None:
        if suffix == DATA:
            with self._lock:
                self._notice(status)
        elif status.st_ino != self._ledger_inode:
            raise Replaced

    def _notice(self, status: os.stat_result) -> None:
        """Compare the data file with what is known; where others have written to it, nothing is verified."""
        found = Identity.of(status)
        if (found.inode, found.size) != (self._known.inode, self._known.size) or not status.st_nlink:
            raise Replaced
        if not self._writers and found != self._known:
            self.table.forget_verified()
            self._changes += 1
            self._known = found

    def _write_data(self, data: memoryview, offset: int) -> None:
        done = 0
        if self._directory.direct and len(data) >= PAGE:
            with self._borrow(_DIRECT) as fd:
                done = write_direct(fd, data, offset)
        if done < len(data):
            with self._borrow(DATA) as fd:
                write_through(fd, data[done:], offset + done)

    def _end_write(self) -> None:
        with self._lock:
            self._writers -= 1
        with self._borrow(DATA) as fd, self._lock:
            if not self._writers:
                # Others may have written beside us, and nothing of that shows by now: all is checked anew.
                self.table.forget_verified()
                self._changes += 1
                self._known = Identity.of(os.fstat(fd))


def find_pair(
    directory: CacheDirectory, pool: DescriptorPool, name: str, before: FilePair | None
) -> FilePair | None:
    """The files of an object as they are now: ``before`` where they are the same, None where there are none.

    Raises Damaged where they are not whole, and OSError.
    """
    try:
        if before is not None and before.is_current(directory.stat(name, LEDGER)):
            return before
        header, content, ledger, seal = read_ledger(directory, name)
        data = directory.stat(name, DATA)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(data.st_mode) or data.st_size != header.version.size:
        raise Damaged(f"the data file has {data.st_size} bytes, not {header.version.size}")
    return FilePair(directory, pool, name, header, data, ledger, content, seal)


def read_ledger(directory: CacheDirectory, name: str) -> tuple[Header, bytes, os.stat_result, Seal | None]:
    """The header of an object's ledger, the ledger itself, its state, and the seal on it.

    Raises Damaged where it is not whole or not of that object, and OSError.
    """
    fd = directory.open(name, LEDGER, os.O_RDONLY)
    try:
        status = os.fstat(fd)
        header = decode_header(_read(fd, min(status.st_size, LONGEST_HEADER)))
        if header is None or object_name(header.version, header.stripe_size) != name:
            raise Damaged("the ledger is damaged")
        return header, _read(fd, min(status.st_size, header.length)), status, read_seal(fd)
    finally:
        os.close(fd)


def _read(fd: int, length: int) -> bytes:
    content = bytearray(length)
    return bytes(content[: read_at(fd, memoryview(content), 0)])
