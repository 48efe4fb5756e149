"""A bucket of the real S3 server, the proxy before it, and mounts of it by way of that proxy."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from fusestripe.launch import DAEMON
from tests.support.mounted import Mounted, mounted, until
from tests.support.proxy import Proxy, Request
from tests.support.seaweed import SeaweedServer

__all__ = ["MountedStore", "Pread", "content", "drop_pages", "is_gone", "ranges_of"]

KIB = 1024
MIB = 1024 * KIB


def content(size: int, seed: int = 0) -> bytes:
    """``size`` bytes that no other offset and no other ``seed`` has."""
    return random.Random(seed).randbytes(size)


class MountedStore:
    """``bucket`` on ``server``, seen through ``proxy``; mounts and caches lie under ``directory``."""

    def __init__(self, server: SeaweedServer, bucket: str, proxy: Proxy, directory: Path) -> None:
        self.server = server
        self.bucket = bucket
        self.proxy = proxy
        self.directory = directory

    def put(self, key: str, data: bytes) -> None:
        """Store an object straight, past the proxy."""
        self.server.put(self.bucket, key, data)

    def put_file(self, key: str, path: Path) -> None:
        """Store the file ``path`` straight, past the proxy."""
        self.server.put_file(self.bucket, key, path)

    def delete(self, key: str) -> None:
        """Delete an object straight, past the proxy."""
        self.server.delete(self.bucket, key)

    @contextmanager
    def mount(
        self,
        prefix: str = "",
        *,
        at: str = "mnt",
        cache: str = "cache",
        complaints: bool = False,
        command: Sequence[str] = DAEMON,
        **settings: object,
    ) -> Iterator[Mounted]:
        """Mounted at ``at``, stripes of 64 KiB unless said otherwise; counts of the proxy start at zero."""
        source = f"s3://{self.bucket}/{prefix}".rstrip("/")
        with mounted(
            source,
            self.directory / at,
            cache_dir=self.directory / cache,
            environment=self.proxy.environment,
            complaints=complaints,
            command=command,
            **{"stripe_size": 64 * KIB, **settings},
        ) as mount:
            self.proxy.reset()
            yield mount

    def requests(self, kind: str) -> list[Request]:
        """What went to the server since the mount."""
        return [request for request in self.proxy.log() if request.kind == kind]


def ranges_of(requests: Sequence[Request]) -> list[tuple[int, int]]:
    """The (first, last) bytes of range requests, in order of offset."""
    spans = (request.range.removeprefix("bytes=").split("-") for request in requests)
    return sorted((int(first), int(last)) for first, last in spans)


def drop_pages(path: Path) -> None:
    """Have the kernel forget the clean pages of ``path``."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


_PREAD = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGHUP):  # which a run in the background may have left ignored
    signal.signal(number, signal.SIG_DFL)
descriptor = os.open(sys.argv[1], os.O_RDONLY)
try:
    data = os.pread(descriptor, int(sys.argv[3]), int(sys.argv[2]))
except OSError as error:
    sys.exit(error.errno)
sys.stdout.buffer.write(data)
"""
_SYSCALLS = ("17 ", "67 ")
"""pread64 on x86-64 and on arm64 (asm/unistd_64.h, asm-generic/unistd.h), as /proc/PID/syscall shows it."""


class Pread:
    """Another process that makes one pread(2) of a file and tells what it got."""

    def __init__(self, path: Path, offset: int, length: int) -> None:
        command = [sys.executable, "-I", "-S", "-c", _PREAD, str(path), str(offset), str(length)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def wait_blocked(self) -> None:
        """Return once it waits for its bytes inside pread(2)."""
        syscall = Path(f"/proc/{self._process.pid}/syscall")
        until(lambda: syscall.read_text().startswith(_SYSCALLS))

    def kill(self) -> None:
        """kill -9 if it still runs, and reap it."""
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=20)

    def result(self) -> bytes | int:
        """The bytes, or the errno."""
        data, _ = self._process.communicate(timeout=30)
        return data if self._process.returncode == 0 else self._process.returncode

    def __enter__(self) -> Pread:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()


def is_gone(pid: int) -> bool:
    """Whether the process has ended (a zombie has)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
