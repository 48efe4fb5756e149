"""Opening a cache directory at its path, and who may."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from fusestripe.errors import CacheError

__all__ = ["check_owner", "is_on_disk", "lies_at", "mend_for", "open_root"]


def open_root(path: Path, create: bool) -> tuple[int, int]:
    """Descriptors of the directory and of ``objects`` in it. Raises CacheError and OSError."""
    if create:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(0o700)
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        check_owner(path, os.fstat(root))
        if create:
            with suppress(FileExistsError):
                os.mkdir("objects", 0o700, dir_fd=root)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        objects = os.open("objects", flags, dir_fd=root)
    except BaseException:
        os.close(root)
        raise
    return root, objects


def mend_for(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space there or choose another --cache-dir"
    return "choose a directory that this user can write to"


def check_owner(path: Path, status: os.stat_result) -> None:
    """Raise CacheError unless the directory ``path``, whose ``status`` it is, is this user's and safe."""
    if status.st_uid != os.geteuid():
        raise CacheError(
            f"the cache directory {path} belongs to another user (uid {status.st_uid})",
            mend="choose a directory of your own",
        )
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise CacheError(f"every user can write to the cache directory {path}", mend=f"run: chmod o-w {path}")


def is_on_disk(path: Path, device: int) -> bool:
    """Whether ``path``, or what is there of the way to it, is on ``device`` (st_dev, stat(2))."""
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    return there.stat().st_dev == device


def lies_at(path: Path, descriptor: int) -> bool:
    """Whether ``path`` is what was opened as ``descriptor``. Raises OSError."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
