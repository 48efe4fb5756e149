"""The files of a cache directory: their names, how they are opened, written past the page cache, and deleted.

    format.json                                   {"format": 1}
    locks, creating                               see marks.py
    objects/<2 hex>/<key>-<stripe size>.data      the bytes of one object version, sparse, of its exact size
    objects/<2 hex>/<key>-<stripe size>.ledger    see ledger.py; its atime is the last use
    objects/<2 hex>/<key>-<stripe size>.pin       {"until": seconds since the epoch, or null for ever}

Directories are 0700, files 0600. Everything is opened relative to its directory's descriptor and never
through a symlink. The name of an object, without its suffix, is what the other modules of the cache pass
around.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from fusestripe.cache.ledger import FORMAT
from fusestripe.cache.root import is_on_disk, lies_at, mend_for, open_root
from fusestripe.cache.seal import boot_id
from fusestripe.cache.transfers import PAGE, write_at, write_direct
from fusestripe.errors import CacheError
from fusestripe.units import ObjectVersion

__all__ = [
    "DATA",
    "LEDGER",
    "CacheDirectory",
    "FileSet",
    "object_name",
]

DATA = ".data"
LEDGER = ".ledger"
_PIN = ".pin"
_NEW = ".new"

_NAME = re.compile(r"([0-9a-f]{32}-[1-9][0-9]{0,18})(\.data|\.ledger|\.pin)")
_BEGINS = re.compile(_NAME.pattern + r"(\..*)?$")  # those not finished too
_SHARD = re.compile(r"[0-9a-f]{2}")
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # O_NONBLOCK: a planted FIFO must not hold us up


class FileSet(msgspec.Struct, frozen=True):
    """The files of one object. ``size`` is what its data takes on the disk, in bytes.

    ``last_use_ns``: nanoseconds since the epoch, 0 where there is no ledger. ``pinned_until``: seconds since
    the epoch, infinite for ever, 0 where there is no pin that still holds.
    """

    name: str
    size: int = 0
    last_use_ns: int = 0
    pinned_until: float = 0.0

    @property
    def pinned(self) -> bool:
        """Whether a pin keeps it from eviction."""
        return self.pinned_until > 0


class _Format(msgspec.Struct):
    format: int


class _Pin(msgspec.Struct):
    until: float | None = None


def object_name(version: ObjectVersion, stripe_size: int) -> str:
    """The name of a version's files: mounts with another stripe size have their own."""
    return f"{version.key}-{stripe_size}"


class CacheDirectory:
    """A cache directory, opened. Three descriptors, and those that ``open`` returns, which the caller owns.

    ``direct``: whether the filesystem takes O_DIRECT. Methods raise OSError unless they say otherwise.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        """Open the cache at ``path``; ``create``: begin one where there is none. Raises CacheError."""
        self.path = path
        self.boot = boot_id()
        if not create and not (path / "objects").is_dir():
            raise CacheError(f"there is no cache in {path}", mend="name its directory with --cache-dir")
        try:
            self._root, self._objects = open_root(path, create)
        except OSError as error:
            raise CacheError(
                f"cannot use the cache directory {path}: {error.strerror}",
                mend="choose a directory that this user can write to",
            ) from error
        try:
            self._check_format(self._root, create)
            self.direct = self._probe() if create else True
        except OSError as error:
            self.close()
            raise CacheError(
                f"cannot write to the cache directory {path}: {error.strerror}",
                mend=mend_for(error),
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the directory's own descriptors."""
        os.close(self._objects)
        os.close(self._root)

    def try_out(self) -> None:
        """Write to the disk as stripes are written. Raises OSError."""
        self.direct = self._probe()

    def follow(self) -> bool:
        """Whether the directory had to be made or opened anew; then it is.

        It has to where another lies at its path by now, or none: somebody removed it, or mounted its disk
        again. On another disk it is opened only where a cache is there already: what lies under the place of
        a disk that is gone is not to be filled. The descriptors stay the same numbers, so that other threads
        may use them meanwhile. Raises OSError, and CacheError where it may not be used any more.
        """
        if lies_at(self.path, self._root) and lies_at(self.path / "objects", self._objects):
            return False
        root, objects = open_root(self.path, is_on_disk(self.path, os.fstat(self._root).st_dev))
        try:
            self._check_format(root, create=True)
            os.dup2(root, self._root, inheritable=False)
            os.dup2(objects, self._objects, inheritable=False)
        finally:
            os.close(root)
            os.close(objects)
        return True

    def open_lock_file(self, name: str) -> int:
        """A descriptor of one of the files of locks, "locks" or "creating". Raises CacheError."""
        try:
            return self._open_own(self._root, name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise CacheError(
                f"cannot open the cache's file of locks, {self.path / name}: {error.strerror}",
                mend="choose a directory that this user can write to",
            ) from error

    def free(self) -> int:
        """Bytes of the disk that this user may still use."""
        disk = os.fstatvfs(self._root)
        return disk.f_bavail * disk.f_frsize

    def open(self, name: str, suffix: str, flags: int) -> int:
        """Open one file of an object. A symlink, or a file that is not regular or not ours, is not found."""
        if suffix == LEDGER:
            flags |= os.O_NOATIME  # reading a ledger is not a use of the object
        with self._shard(name) as shard:
            return self._open_own(shard, name + suffix, flags)

    def stat(self, name: str, suffix: str) -> os.stat_result:
        """lstat of one file of an object."""
        with self._shard(name) as shard:
            return os.stat(name + suffix, dir_fd=shard, follow_symlinks=False)

    def begin(self, name: str, size: int, header: bytes) -> None:
        """Make empty files for an object in place of what is there: ``size`` bytes of hole, and ``header``.

        The caller holds the creation mark of ``name``. The ledger appears last, and whole.
        """
        with self._shard(name, create=True) as shard:
            for suffix in (LEDGER, DATA, LEDGER + _NEW):
                _unlink(shard, name + suffix)
            fd = self._open_own(shard, name + DATA, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                os.ftruncate(fd, size)
            finally:
                os.close(fd)
            fd = self._open_own(shard, name + LEDGER + _NEW, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                write_at(fd, header, 0)
            finally:
                os.close(fd)
            os.rename(name + LEDGER + _NEW, name + LEDGER, src_dir_fd=shard, dst_dir_fd=shard)

    def delete(self, name: str) -> None:
        """Delete the files of an object, the ledger first: no crash leaves a ledger without its data."""
        with suppress(FileNotFoundError), self._shard(name) as shard:
            for suffix in (LEDGER, DATA, LEDGER + _NEW, _PIN):
                with suppress(IsADirectoryError):  # none of ours
                    _unlink(shard, name + suffix)

    def touch(self, name: str) -> None:
        """Note that the object is used now. Nothing happens where it has no ledger."""
        with suppress(FileNotFoundError), self._shard(name) as shard:
            was = os.stat(name + LEDGER, dir_fd=shard, follow_symlinks=False)
            times = (time.time_ns(), was.st_mtime_ns)
            os.utime(name + LEDGER, ns=times, dir_fd=shard, follow_symlinks=False)

    def pin(self, name: str, until: float | None) -> None:
        """Keep the object from eviction until ``until`` (seconds since the epoch; None: for ever)."""
        with self._shard(name, create=True) as shard:
            self._replace(shard, name + _PIN, msgspec.json.encode(_Pin(until)))

    def unpin(self, name: str) -> None:
        """Take the pin away; nothing happens where there is none."""
        with suppress(FileNotFoundError), self._shard(name) as shard:
            _unlink(shard, name + _PIN)

    def look(self, name: str) -> FileSet:
        """The files of one object now."""
        found = FileSet(name)
        for suffix in (DATA, LEDGER, _PIN):
            with suppress(FileNotFoundError), self._shard(name) as shard:
                status = os.stat(name + suffix, dir_fd=shard, follow_symlinks=False)
                found = self._with(found, shard, suffix, status)
        return found

    def scan(self) -> list[FileSet]:
        """The files of every object; what is none of them, or may not be looked at, is passed over."""
        found: dict[str, FileSet] = {}
        for directory in _names(self._objects):
            passed_over = suppress(FileNotFoundError, NotADirectoryError, PermissionError)
            with passed_over, self._shard(directory) as shard:
                self._scan_shard(directory, shard, found)
        return list(found.values())

    def aliens(self) -> list[str]:
        """What lies among the objects and belongs to none, by its path in the cache directory."""
        found: list[str] = []
        for directory in sorted(_names(self._objects)):
            inside = self._aliens_in(directory) if _SHARD.fullmatch(directory) else None
            found += [directory] if inside is None else [f"{directory}/{name}" for name in inside]
        return [f"objects/{path}" for path in found]

    def _scan_shard(self, directory: str, shard: int, found: dict[str, FileSet]) -> None:
        for file in _names(shard):
            match = _NAME.fullmatch(file)
            if match is None or match[1][:2] != directory:
                continue
            name, suffix = match.groups()
            with suppress(FileNotFoundError):
                status = os.stat(file, dir_fd=shard, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found[name] = self._with(found.get(name, FileSet(name)), shard, suffix, status)

    def _aliens_in(self, directory: str) -> list[str] | None:
        """None: it is itself no directory, or may not be looked into."""
        try:
            with self._shard(directory) as shard, os.scandir(shard) as entries:
                return sorted(
                    entry.name
                    for entry in entries
                    if not entry.is_file(follow_symlinks=False)
                    or not _BEGINS.match(entry.name)
                    or not entry.name.startswith(directory)
                )
        except OSError:
            return None

    def _with(self, found: FileSet, shard: int, suffix: str, status: os.stat_result) -> FileSet:
        if suffix == DATA:
            return msgspec.structs.replace(found, size=status.st_blocks * 512)  # st_blocks: stat(2)
        if suffix == LEDGER:
            return msgspec.structs.replace(found, last_use_ns=status.st_atime_ns)
        return msgspec.structs.replace(found, pinned_until=self._pinned_until(shard, found.name))

    def _pinned_until(self, shard: int, name: str) -> float:
        try:
            until = msgspec.json.decode(self._read(shard, name + _PIN), type=_Pin).until
        except (OSError, msgspec.MsgspecError):
            return 0.0  # a pin that cannot be read is none: nothing in a cache is worth an error
        if until is None:
            return float("inf")
        return until if until > time.time() else 0.0

    @contextmanager
    def _shard(self, name: str, *, create: bool = False) -> Iterator[int]:
        if create:
            with suppress(FileExistsError):
                os.mkdir(name[:2], 0o700, dir_fd=self._objects)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name[:2], flags, dir_fd=self._objects)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open_own(self, directory: int, file: str, flags: int) -> int:
        planted = FileNotFoundError(errno.ENOENT, f"{file} is no regular file of this user")
        try:
            fd = os.open(file, flags | _SAFE, 0o600, dir_fd=directory)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise planted from error
            raise
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            os.close(fd)
            raise planted
        return fd

    def _read(self, directory: int, file: str) -> bytes:
        fd = self._open_own(directory, file, os.O_RDONLY)
        try:
            return os.read(fd, PAGE)
        finally:
            os.close(fd)

    def _replace(self, directory: int, file: str, content: bytes) -> None:
        new = f"{file}.{os.getpid()}{_NEW}"
        _unlink(directory, new)
        fd = self._open_own(directory, new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            write_at(fd, content, 0)
        finally:
            os.close(fd)
        os.rename(new, file, src_dir_fd=directory, dst_dir_fd=directory)

    def _check_format(self, root: int, create: bool) -> None:
        try:
            found = msgspec.json.decode(self._read(root, "format.json"), type=_Format).format
        except (FileNotFoundError, msgspec.MsgspecError):
            found = 0  # each ledger names its format too, so beginning anew is safe
        if found > FORMAT:
            raise CacheError(
                f"the cache directory {self.path} belongs to a newer version of fusestripe (format {found})",
                mend="upgrade fusestripe or choose another cache directory",
            )
        if found < FORMAT and create:
            self._replace(root, "format.json", msgspec.json.encode(_Format(FORMAT)))

    def _probe(self) -> bool:
        """Write a page as stripes are written: finds out about O_DIRECT, and that there is a way to write."""
        file = f"probe.{os.getpid()}{_NEW}"
        _unlink(self._root, file)
        fd = self._open_own(self._root, file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            page = memoryview(mmap.mmap(-1, PAGE))
            write_at(fd, page, 0)
            try:
                direct = self._open_own(self._root, file, os.O_WRONLY | os.O_DIRECT)
            except OSError as error:
                if error.errno == errno.EINVAL:
                    return False
                raise
            try:
                return write_direct(direct, page, 0) == PAGE
            finally:
                os.close(direct)
        finally:
            os.close(fd)
            _unlink(self._root, file)


def _names(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def _unlink(directory: int, file: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(file, dir_fd=directory)
