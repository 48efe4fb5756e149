"""The disk that the cache is or will be on."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fusestripe.cache.root import check_owner
from fusestripe.config import CacheSettings
from fusestripe.doctor.finding import Finding
from fusestripe.errors import CacheError, reason_of
from fusestripe.kernel.mounting import mount_holding, mounts
from fusestripe.units import GIB, MIB, format_size

__all__ = [
    "SLOW_DISK",
    "WRITE_TRIES",
    "best_write_rate",
    "cache_disk",
    "judge_disk",
    "judge_filesystem",
    "write_rate",
]

SLOW_DISK = 300 * MIB
"""Bytes a second below which a cache holds back a 10 Gb/s card's half."""
LITTLE_ROOM = 10 * GIB
WRITE = 128 * MIB
WRITE_SECONDS = 1.0
WRITE_TRIES = 3
"""A disk is as fast as the best of so many tries: whatever else goes on only ever takes from it."""
ROOM_MEND = "fusestripe cache clear, delete what else is there, or name a disk with --cache-dir"


IN_MEMORY = frozenset(("tmpfs", "ramfs"))
STACKED = frozenset(("overlay", "aufs", "ecryptfs"))
"""The kernel does not read a cache file on these itself (fs/fuse/backing.c: ELOOP)."""
FAR = frozenset(("9p", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs"))


def cache_disk(cache: CacheSettings) -> Iterator[Finding]:
    """The disk that the cache is or will be on: whether it is ours, what it is, its room, O_DIRECT, speed."""
    refused = usable(cache.dir)
    if refused is not None:
        yield refused
        return
    place = nearest_directory(cache.dir)
    holding = mount_holding(os.path.realpath(place), mounts())
    if holding is not None:
        yield judge_filesystem(cache.dir, holding.fstype)
    room = os.statvfs(place)
    free = room.f_bavail * room.f_frsize
    yield judge_room(cache, free)
    try:
        direct, rate = best_write_rate(place, min(WRITE, free // 4 // MIB * MIB))
    except OSError as error:
        yield Finding("cache disk", "fail", *not_written(cache.dir, place, error))
        return
    yield judge_disk(direct=direct, rate=rate)


def nearest_directory(path: str) -> str:
    """``path``, or what is there of the way to it."""
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def usable(path: str) -> Finding | None:
    """Why the cache directory ``path`` cannot be used or made by this user; None where it can."""
    place = nearest_directory(path)
    if not os.path.isdir(place):
        text = f"{path} cannot be made: {place} is not a directory"
        return Finding("cache disk", "fail", text, "name another with --cache-dir")
    if not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
        reason = errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES
        error = OSError(reason, os.strerror(reason))
        return Finding("cache disk", "fail", *not_written(path, place, error))
    if place == path:
        try:
            check_owner(Path(path), os.stat(path))
        except CacheError as refused:
            return Finding("cache disk", "fail", refused.message, refused.mend)
    return None


def not_written(path: str, place: str, error: OSError) -> tuple[str, str]:
    """What is said, and the mend, where ``place``, which is or leads to the cache ``path``, takes no file."""
    text = f"{place} cannot be written: {reason_of(error)}"
    if error.errno == errno.EROFS:
        return text, f"mount -o remount,rw {place}; or name another directory with --cache-dir"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return text, ROOM_MEND
    user = os.geteuid()
    made = f"as root: install -d -m 700 -o {user} {path}; or name a directory of your own with --cache-dir"
    return text, made if user else "name another directory with --cache-dir"


def judge_filesystem(path: str, fstype: str) -> Finding:
    """Whether a filesystem of the type ``fstype`` is one for a cache."""
    what, mend = "cache type", "name a directory on a local NVMe disk (ext4, xfs) with --cache-dir"
    if fstype in IN_MEMORY:
        text = f"{path} is in memory ({fstype}): the cache takes it from the job, and is gone after a reboot"
        return Finding(what, "warning", text, mend)
    if fstype in STACKED:
        text = f"{path} is in a container's own layer ({fstype}): it goes with it, and without passthrough"
        return Finding(what, "warning", text, f"mount a disk of the node there, as with -v /nvme:{path}")
    if fstype in FAR or fstype.startswith("fuse"):
        return Finding(what, "warning", f"{path} is on no disk of this machine ({fstype})", mend)
    return Finding(what, "ok", fstype)


def judge_room(cache: CacheSettings, free: int) -> Finding:
    """Whether ``free`` bytes of the disk are enough."""
    what = "cache room"
    if free <= cache.reserve:
        text = f"{cache.dir}: {format_size(free)} free, all of it in reserve ({format_size(cache.reserve)})"
        return Finding(what, "fail", text, ROOM_MEND)
    if free < LITTLE_ROOM:
        return Finding(what, "warning", f"{cache.dir}: only {format_size(free)} free", ROOM_MEND)
    return Finding(what, "ok", f"{cache.dir}: {format_size(free)} free")


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

    The file has no name, and is gone with its descriptor. Raises OSError.
    """
    file = _nameless(directory)
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)
        direct = True
    except OSError:
        direct = False
    with os.fdopen(file, "wb", buffering=0) as output, mmap.mmap(-1, MIB) as block:
        block.write(os.urandom(MIB))  # a disk that compresses shall not look fast
        begin = time.monotonic()
        written = 0
        while written < size and time.monotonic() - begin < WRITE_SECONDS:
            written += output.write(block) or 0
        os.fsync(output.fileno())
        return direct, written / max(time.monotonic() - begin, 1e-6)


def _nameless(directory: str) -> int:
    """A new file that nobody else sees: O_TMPFILE (open(2)), or by a name where the filesystem lacks that."""
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
    file, name = tempfile.mkstemp(prefix=".fusestripe-", dir=directory)
    os.unlink(name)
    return file
