"""Looks at what a mount needs: the kernel, FUSE, the cache disk, credentials and each origin."""

from __future__ import annotations

import ctypes
import importlib.metadata
import mmap
import os
import platform
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import chain
from typing import Literal

import msgspec
import trio

from fusestripe.config import CacheSettings, Route, Settings
from fusestripe.engine import connect
from fusestripe.errors import (
    CredentialsRefused,
    FusestripeError,
    MountError,
    OriginError,
    PermissionDenied,
)
from fusestripe.kernel import mounting
from fusestripe.kernel.support import channel_refusal, passthrough_refusal, version_of
from fusestripe.origins.aws import find_access
from fusestripe.origins.base import Entry, Origin, OriginOptions
from fusestripe.units import GIB, MIB, format_size, printable

__all__ = ["Finding", "Level", "examine"]

Level = Literal["ok", "warning", "fail"]

OLDEST_KERNEL = (5, 4)
"""The oldest kernel of a distribution that is still maintained with Python 3.10 on it."""
SLOW_DISK = 300 * MIB
"""Bytes a second below which a cache holds back a 10 Gb/s card's half."""
LITTLE_ROOM = 10 * GIB
WRITE = 128 * MIB
WRITE_SECONDS = 1.0
WRITE_TRIES = 3
"""A disk is as fast as the best of so many tries: whatever else goes on only ever takes from it."""
DEEPEST = 8
"""Directories one in another that are gone through to find a file to try."""


class Finding(msgspec.Struct, frozen=True):
    """``what`` was looked at, how it is in one line, and the mend where it is not well."""

    what: str
    level: Level
    text: str
    mend: str = ""


def examine(settings: Settings) -> Iterator[Finding]:
    """All findings, as they come; the routes' origins are asked for real, which may take seconds each."""
    yield kernel(platform.release())
    yield fuse_device(settings)
    yield from libraries()
    yield fusermount()
    yield channel(platform.release(), settings)
    yield passthrough(platform.release(), mounting.has_sys_admin(), settings)
    yield read_ahead("/sys/class/bdi")
    yield user_allow_other()
    yield from cache_disk(settings.cache)
    for route in settings.routes:
        yield origin(route, settings.mount.timeout)
    if not settings.routes:
        yield aws_credentials()


def kernel(release: str) -> Finding:
    """Whether the kernel is new enough at all."""
    if version_of(release) < OLDEST_KERNEL:
        return Finding("kernel", "warning", f"Linux {release} is too old to be tested", "upgrade it")
    return Finding("kernel", "ok", f"Linux {release}")


def fuse_device(settings: Settings) -> Finding:
    """Whether this user may mount with these settings."""
    try:
        mounting.check_fuse(allow_other=settings.mount.allow_other)
    except MountError as error:
        return Finding("fuse", "fail", error.message, error.mend)
    return Finding("fuse", "ok", "/dev/fuse can be opened")


def libraries() -> Iterator[Finding]:
    """pyfuse3 and the libfuse below it."""
    try:
        yield Finding("pyfuse3", "ok", f"version {importlib.metadata.version('pyfuse3')}")
    except importlib.metadata.PackageNotFoundError:
        yield Finding("pyfuse3", "fail", "not installed", "pip install pyfuse3")
    try:
        libfuse = ctypes.CDLL("libfuse3.so.3")
        libfuse.fuse_pkgversion.restype = ctypes.c_char_p
        yield Finding("libfuse", "ok", f"version {libfuse.fuse_pkgversion().decode()}")
    except (OSError, AttributeError):  # AttributeError: older than 3.0, which has no such function
        # A pyfuse3 wheel may bring a libfuse of its own, under another name.
        yield Finding("libfuse", "warning", "libfuse3.so.3 is not found", "apt install libfuse3-3")


def fusermount() -> Finding:
    """fusermount3, without which only root mounts."""
    path = shutil.which("fusermount3")
    if path is None:
        needed: Level = "warning" if mounting.has_sys_admin() else "fail"
        return Finding("fusermount3", needed, "missing: only root can mount", "apt install fuse3")
    if not os.stat(path).st_mode & stat.S_ISUID:
        return Finding("fusermount3", "warning", f"{path} is not setuid root", f"as root: chmod u+s {path}")
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=10)
    return Finding("fusermount3", "ok", f"{path}, {done.stdout.strip()}")


def channel(release: str, settings: Settings) -> Finding:
    """Whether reads are answered past pyfuse3, by threads that hold no lock of Python's while they copy."""
    why_not = channel_refusal(release, wanted=settings.mount.channel)
    if why_not:
        return Finding("channel", "warning", f"off, reads cost more processor time: {why_not}")
    return Finding("channel", "ok", "reads are answered by threads of our own")


def passthrough(release: str, has_sys_admin: bool, settings: Settings) -> Finding:
    """Whether the kernel can read complete files from the cache itself."""
    why_not = passthrough_refusal(release, has_sys_admin, wanted=settings.mount.passthrough)
    if why_not:
        return Finding("passthrough", "warning", f"off, whole files are read through the daemon: {why_not}")
    return Finding("passthrough", "ok", "the kernel reads whole files from the cache itself")


def read_ahead(directory: str) -> Finding:
    """Whether the mount's read-ahead can be raised from the kernel's 128 KiB."""
    what = "read-ahead"
    if os.geteuid() != 0:
        return Finding(what, "warning", "stays at the kernel's 128 KiB", "mount as root")
    read_only = not os.path.isdir(directory) or bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
    if read_only:
        return Finding(what, "warning", f"{directory} cannot be written", "mount /sys read-write")
    return Finding(what, "ok", "can be raised")


def user_allow_other() -> Finding:
    """Whether users other than root may let others into their mounts."""
    if os.geteuid() == 0 or mounting.allows_other():
        return Finding("allow_other", "ok", "may be used")
    text = "may not be used: /etc/fuse.conf does not say user_allow_other"
    return Finding("allow_other", "warning", text, "add that line there, as root, if other users shall read")


def cache_disk(cache: CacheSettings) -> Iterator[Finding]:
    """The disk that the cache is or will be on: whether it can be written, its room, O_DIRECT, and speed."""
    place = cache.dir
    while not os.path.isdir(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    room = os.statvfs(place)
    free = room.f_bavail * room.f_frsize
    mend = "clear it, or name a disk with --cache-dir"
    if free <= cache.reserve:
        text = f"{cache.dir}: {format_size(free)} free, all of it in reserve"
        yield Finding("cache room", "fail", text, mend)
    elif free < LITTLE_ROOM:
        yield Finding("cache room", "warning", f"{cache.dir}: only {format_size(free)} free", mend)
    else:
        yield Finding("cache room", "ok", f"{cache.dir}: {format_size(free)} free")
    try:
        direct, rate = best_write_rate(place, min(WRITE, free // 4 // MIB * MIB))
    except OSError as error:
        text = f"{place} cannot be written: {(error.strerror or str(error)).lower()}"
        yield Finding("cache disk", "fail", text, "name a directory of your own with --cache-dir")
        return
    yield judge_disk(direct=direct, rate=rate)


def judge_disk(*, direct: bool, rate: float) -> Finding:
    """Whether a disk of ``rate`` bytes a second, with or without O_DIRECT, holds a cache back."""
    what, speed = "cache disk", f"{format_size(rate)}/s written"
    if not direct:
        return Finding(what, "warning", f"{speed}, without O_DIRECT", "use a local disk (ext4, xfs)")
    if rate < SLOW_DISK:
        text = f"{speed} in the best of {WRITE_TRIES} tries, of {format_size(SLOW_DISK)}/s that it should"
        return Finding(what, "warning", text, "use a local NVMe disk")
    return Finding(what, "ok", f"{speed}, O_DIRECT; {format_size(SLOW_DISK)}/s are enough")


def best_write_rate(directory: str, size: int) -> tuple[bool, float]:
    """The best of WRITE_TRIES tries of ``write_rate``, or the first that is enough. Raises OSError."""
    best = False, 0.0
    for _ in range(WRITE_TRIES):
        best = max(best, write_rate(directory, size))
        if best[1] >= SLOW_DISK:
            break
    return best


def write_rate(directory: str, size: int) -> tuple[bool, float]:
    """Whether ``directory`` takes O_DIRECT, and the bytes a second of writing up to ``size`` there.

    The file has no name (O_TMPFILE, open(2)), and is gone with its descriptor. Raises OSError.
    """
    flags = os.O_TMPFILE | os.O_RDWR
    try:
        file, direct = os.open(directory, flags | os.O_DIRECT, 0o600), True
    except OSError:
        file, direct = os.open(directory, flags, 0o600), False
    with os.fdopen(file, "wb", buffering=0) as output, mmap.mmap(-1, MIB) as block:
        block.write(os.urandom(MIB))  # a disk that compresses shall not look fast
        begin = time.monotonic()
        written = 0
        while written < size and time.monotonic() - begin < WRITE_SECONDS:
            written += output.write(block) or 0
        os.fsync(output.fileno())
        return direct, written / max(time.monotonic() - begin, 1e-6)


def origin(route: Route, timeout: float) -> Finding:
    """Whether the route's store lets us in and gives a byte, and how long it takes to say so."""
    what = f"route {route.path}"
    begin = time.monotonic()
    try:
        (opened,) = trio.run(partial(connect, [route], timeout=timeout)).values()
        answers = f"{route.source} answers in {time.monotonic() - begin:.2f} s"
        with closing(opened):
            return try_reading(what, answers, opened)
    except FusestripeError as error:
        return Finding(what, "fail", error.message, error.mend)


def try_reading(what: str, answers: str, opened: Origin) -> Finding:
    """What the first byte of the first file says. Raises OriginError where we may not have it."""
    try:
        found = first_file(opened)
    except PermissionDenied as error:
        unknown = "but no file was found to try, so whether they can be read is not known"
        text = f"{answers} {unknown}: {error.message}"
        mend = f"fusestripe bench {opened.url.rstrip('/')}/NAME tries one"
        return Finding(what, "warning", text, mend)
    if found is None:
        return Finding(what, "ok", f"{answers}; no file was found to try")
    path, entry = found
    try:
        opened.read_range(opened.version(path, entry), 0, memoryview(bytearray(1)), lambda _: None)
    except (PermissionDenied, CredentialsRefused):
        raise
    except OriginError as error:  # of this one file, as far as is known
        return Finding(what, "warning", f"{answers}, but: {error.message}", error.mend)
    return Finding(what, "ok", f"{answers}, and {printable(path)} can be read")


def first_file(opened: Origin) -> tuple[str, Entry] | None:
    """A file with bytes in it, and its path: the first, in the first directories. Raises OriginError."""
    path = ""
    for _ in range(DEEPEST):
        page = next((page for page in opened.list_dir(path) if page), [])
        files = (entry for entry in page if entry.size and not entry.is_dir)
        directories = (entry for entry in page if entry.is_dir)
        entry = next(chain(files, directories), None)
        if entry is None:
            return None
        path = f"{path}/{entry.name}" if path else entry.name
        if not entry.is_dir:
            return path, entry
    return None


def aws_credentials() -> Finding:
    """Whether there are AWS credentials to be found, where no route says which are needed."""
    what = "credentials"
    try:
        find_access(OriginOptions())
    except FusestripeError as error:
        return Finding(what, "warning", f"{error.message}, so no s3:// but public buckets", error.mend)
    return Finding(what, "ok", "AWS credentials found")
