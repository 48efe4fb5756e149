"""A process that opens, reads and maps files for a test: what hangs or ends with a signal is not the test.

Run as a script with one argument, the descriptor of its end of a pipe; standard library alone. A map is read
in a process forked for that, which a page that cannot be had ends with SIGBUS (mmap(2)).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

ENDED = -1
"""Stands for an errno where a map's reader was ended by a signal."""


def _all_of(part: Callable[[int, int], bytes], offset: int, length: int) -> tuple[bytes, int]:
    """What there is up to the end of the file, and the errno that ended it before, or 0."""
    data = b""
    while len(data) < length:
        try:
            more = part(offset + len(data), length - len(data))
        except OSError as error:
            return data, error.errno or errno.EIO
        if not more:
            break
        data += more
    return data, 0


class _Files:
    """The open files and maps, by descriptor."""

    def __init__(self) -> None:
        self._maps: dict[int, mmap.mmap] = {}

    def open(self, path: str, flags: int) -> tuple[int, int, int]:
        """Descriptor, size and inode."""
        descriptor = os.open(path, flags)
        found = os.fstat(descriptor)
        return descriptor, found.st_size, found.st_ino

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def close(self, descriptor: int) -> None:
        view = self._maps.pop(descriptor, None)
        if view is not None:
            view.close()
        os.close(descriptor)

    def forget_pages(self, descriptor: int) -> None:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def pread(self, descriptor: int, offset: int, length: int) -> tuple[bytes, int]:
        return _all_of(lambda at, left: os.pread(descriptor, left, at), offset, length)

    def direct(self, descriptor: int, offset: int, length: int) -> tuple[bytes, int]:
        """By a descriptor opened with O_DIRECT, as any disk's filesystem wants it: ``offset`` and ``length``
        are whole pages."""
        with mmap.mmap(-1, length) as memory:

            def part(at: int, left: int) -> bytes:
                if at % mmap.PAGESIZE:
                    return b""  # the last page of the file has been read
                return memory[: os.preadv(descriptor, [memoryview(memory)[:left]], at)]

            return _all_of(part, offset, length)

    def sendfile(self, descriptor: int, offset: int, length: int) -> tuple[bytes, int]:
        out = os.memfd_create("sent")
        try:

            def part(at: int, left: int) -> bytes:
                count = os.sendfile(out, descriptor, at, left)
                return os.pread(out, count, at - offset)

            return _all_of(part, offset, length)
        finally:
            os.close(out)

    def map(self, descriptor: int) -> None:
        if descriptor not in self._maps:
            self._maps[descriptor] = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)

    def mapped(self, descriptor: int, offset: int, length: int) -> tuple[bytes, int]:
        """From the map that was made of it."""
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                view = self._maps[descriptor]
                with open(write_end, "wb", buffering=0) as pipe:
                    for at in range(offset, offset + length, mmap.PAGESIZE):
                        pipe.write(view[at : min(at + mmap.PAGESIZE, offset + length)])
            finally:
                os._exit(0)
        os.close(write_end)
        with open(read_end, "rb") as pipe:
            data = pipe.read()
        _, status = os.waitpid(child, 0)
        return data, ENDED if os.WIFSIGNALED(status) else 0

    def stat(self, path: str) -> tuple[bool, int]:
        """Whether it is a directory, and the size."""
        found = os.stat(path)
        return (found.st_mode & 0o170000 == 0o040000), found.st_size

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))


def main() -> None:
    """Do what comes down the pipe, one after the other, until it is closed."""
    # Nothing of the test's may end it: PR_SET_PDEATHSIG is 1, SIGKILL 9 (prctl(2)).
    ctypes.CDLL(None).prctl(1, 9)
    files = _Files()
    with Connection(int(sys.argv[1])) as pipe:
        while True:
            try:
                name, arguments = pipe.recv()
            except EOFError:
                return
            answer: tuple[int, Any]
            try:
                answer = 0, getattr(files, name)(*arguments)
            except OSError as error:
                answer = error.errno or errno.EIO, None
            pipe.send(answer)


if __name__ == "__main__":
    main()
