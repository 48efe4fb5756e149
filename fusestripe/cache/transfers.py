"""Reading and writing all of a buffer, through the page cache and past it."""

from __future__ import annotations

import ctypes
import errno
import os

__all__ = ["PAGE", "read_at", "read_pages", "write_at", "write_direct", "write_through"]

_WRITE_AND_WAIT = 7  # SYNC_FILE_RANGE_WRITE_AND_WAIT, linux/fs.h
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

PAGE = 4096
"""O_DIRECT wants addresses, offsets and lengths to be multiples of the logical block; no disk's is larger."""


def write_at(fd: int, data: memoryview | bytes, offset: int) -> None:
    """Write all of ``data`` at ``offset``. Raises OSError."""
    rest = memoryview(data)
    while rest:
        done = os.pwrite(fd, rest, offset)
        if not done:
            raise OSError(errno.EIO, "nothing was written")
        offset += done
        rest = rest[done:]


def write_through(fd: int, data: memoryview, offset: int) -> None:
    """Like ``write_at``, and wait until the disk has taken the bytes, as it has those of ``write_direct``.

    Otherwise it could refuse them later, when nobody is told, and from the page cache they would seem right
    for a while. Raises OSError.
    """
    write_at(fd, data, offset)
    if _libc.sync_file_range(fd, offset, len(data), _WRITE_AND_WAIT):
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EINVAL):
            raise OSError(number, os.strerror(number))
        os.fdatasync(fd)


def write_direct(fd: int, data: memoryview, offset: int) -> int:
    """Write the whole pages of ``data`` to ``fd``, opened with O_DIRECT; the number of bytes written.

    Less where the address of ``data`` or the filesystem does not allow it: the caller writes the rest through
    the page cache. Raises OSError.
    """
    whole = len(data) - len(data) % PAGE
    done = 0
    while done < whole:
        try:
            written = os.pwrite(fd, data[done:whole], offset + done)
        except OSError as error:
            if error.errno == errno.EINVAL:
                break
            raise
        if not written:
            break
        done += written
    return done


def read_at(fd: int, into: memoryview, offset: int) -> int:
    """Fill ``into`` from ``offset`` on; the bytes read, fewer only at the end of the file. Raises OSError."""
    done = 0
    while done < len(into):
        count = os.preadv(fd, [into[done:]], offset + done)
        if not count:
            break
        done += count
    return done


def read_pages(fd: int, into: memoryview, offset: int) -> int:
    """Like ``read_at``, with whole pages only, from ``fd`` opened with O_DIRECT."""
    done = 0
    while done < len(into):
        count = os.preadv(fd, [into[done:]], offset + done)
        done += count
        if not count or count % PAGE:  # the end of the file: nothing may be asked for at an odd offset
            break
    return done
