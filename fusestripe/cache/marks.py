"""Which objects are in use, told between processes that share a cache directory.

A process that uses an object holds a read lock on one byte of the file ``locks``; whoever wants to delete the
object must get a write lock on that byte. The locks are those of the open file description (fcntl(2), "Open
file description locks"), so ten thousand objects cost one descriptor, two stores in one process exclude each
other too, and a process that dies lets go of everything.

Whoever makes the files of an object holds a write lock on its byte of the file ``creating``: a second file,
because the kernel goes through all locks of a file to set one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import xxhash

from fusestripe.cache.files import CacheDirectory
from fusestripe.errors import CacheError

__all__ = ["UseMarks", "move_marks", "open_marks"]

# struct flock of fcntl(2) with a 64-bit off_t: l_type, l_whence, l_start, l_len, l_pid (0 for these locks).
_FLOCK = struct.Struct("hhqqi0q")
_OFD_GETLK = 36  # F_OFD_GETLK, asm-generic/fcntl.h
_OFD_SETLK = 37  # F_OFD_SETLK
_PATIENCE = 5.0
"""Seconds to wait for another process that deletes or begins the same object."""


class UseMarks:
    """The locks of one CacheStore or one command. Takes over two descriptors, opened for writing."""

    def __init__(self, using: int, creating: int) -> None:
        self._using = using
        self._creating = creating
        self._lock = threading.Lock()
        self._held: Counter[int] = Counter()

    def hold(self, name: str) -> None:
        """Mark the object as in use; counted. Raises CacheError where another process keeps it locked."""
        place = _place(name)
        with self._lock:
            self._held[place] += 1
            if self._held[place] > 1:
                return
        try:
            self._wait_for(self._using, fcntl.F_RDLCK, place, name)
        except BaseException:
            self._uncount(place)
            raise

    def let_go(self, name: str) -> None:
        """Undo one ``hold``."""
        place = _place(name)
        if self._uncount(place):
            _set(self._using, fcntl.F_UNLCK, place)

    @contextmanager
    def deleting(self, name: str) -> Iterator[bool]:
        """Whether nobody uses the object, and nobody can begin to before the end of the ``with`` block.

        Two threads that share these marks must not be here for one name at once: the caller sees to that.
        """
        place = _place(name)
        with self._lock:
            free = not self._held[place] and _set(self._using, fcntl.F_WRLCK, place)
        try:
            yield free
        finally:
            if free:
                _set(self._using, fcntl.F_UNLCK, place)

    @contextmanager
    def creating(self, name: str) -> Iterator[None]:
        """Only one process at a time is here for a name. Raises CacheError where another stays too long.

        Two threads that share these marks must not be here for one name at once: the caller sees to that.
        """
        place = _place(name)
        self._wait_for(self._creating, fcntl.F_WRLCK, place, name)
        try:
            yield
        finally:
            _set(self._creating, fcntl.F_UNLCK, place)

    def in_use(self, name: str) -> bool:
        """Whether this store or any other uses the object now."""
        place = _place(name)
        if self._held[place]:
            return True
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
        found = fcntl.fcntl(self._using, _OFD_GETLK, wanted)
        return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)

    def move_to(self, using: int, creating: int) -> None:
        """Hold all that is held in these files instead; takes over the descriptors."""
        with self._lock:
            try:
                for place in self._held:
                    _set(using, fcntl.F_RDLCK, place)  # whoever deletes just this one has it in the end
                os.dup2(using, self._using, inheritable=False)
                os.dup2(creating, self._creating, inheritable=False)
            finally:
                os.close(using)
                os.close(creating)

    def close(self) -> None:
        """Let go of everything."""
        os.close(self._using)
        os.close(self._creating)

    def _uncount(self, place: int) -> bool:
        with self._lock:
            self._held[place] -= 1
            if not self._held[place]:
                del self._held[place]
                return True
        return False

    def _wait_for(self, fd: int, kind: int, place: int, name: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        pause = 0.001
        while not _set(fd, kind, place):
            if time.monotonic() > deadline:
                raise CacheError(
                    f"another process keeps the cache file {name} locked",
                    mend="look for a stopped fusestripe process on this cache directory",
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.05)


def open_marks(directory: CacheDirectory) -> UseMarks:
    """The marks of a cache directory. Raises CacheError where its files of locks cannot be opened."""
    return UseMarks(*_open_files(directory))


def move_marks(marks: UseMarks, directory: CacheDirectory) -> None:
    """Have ``marks`` be in the files of the directory as it is now. Raises CacheError."""
    marks.move_to(*_open_files(directory))


def _open_files(directory: CacheDirectory) -> tuple[int, int]:
    using = directory.open_lock_file("locks")
    try:
        return using, directory.open_lock_file("creating")
    except BaseException:
        os.close(using)
        raise


def _set(fd: int, kind: int, place: int) -> bool:
    try:
        fcntl.fcntl(fd, _OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise CacheError(
            f"the cache's file of locks does not work: {error.strerror}",
            mend="choose a cache directory on a local disk",
        ) from error
    return True


def _place(name: str) -> int:
    """The byte of the lock file for ``name``: 62 bits fit into an off_t."""
    return xxhash.xxh3_64_intdigest(name.encode()) >> 2
