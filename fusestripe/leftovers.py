"""What mounts have beside their sockets: the lock of one that begins, and what those that are gone left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator

from fusestripe.errors import MountError, reason_of
from fusestripe.telemetry.client import has_listener
from fusestripe.telemetry.rundir import socket_path

__all__ = ["LEFT_SECONDS", "alone", "is_file", "spare_cache", "sweep"]

LEFT_SECONDS = 7 * 86400.0
"""So long the last log of a daemon that was killed is there for whoever wants to know why."""
_OURS = re.compile(r"[0-9a-f]{16}\.(log|lock|sock|sock\.new|cache)")


def sweep(directory: str) -> None:
    """Remove what daemons that are gone left in ``directory``, the runtime one, over ``LEFT_SECONDS`` ago."""
    horizon = time.time() - LEFT_SECONDS
    with os.scandir(directory) as entries:
        ours = [entry for entry in entries if _OURS.fullmatch(entry.name)]
    for entry in ours:
        with contextlib.suppress(OSError):  # no reason not to mount; another may sweep too
            if entry.stat(follow_symlinks=False).st_mtime < horizon:
                _discard(entry.path)


def spare_cache(mountpoint: str) -> str:
    """The directory of a daemon that takes over and cannot use the cache of the settings."""
    return _beside_socket(mountpoint, ".cache")


def _discard(path: str) -> None:
    """Remove the file ``path`` of a mount, unless its daemon lives or it is just being mounted."""
    mount = path.removesuffix(".new").rpartition(".")[0]
    if has_listener(f"{mount}.sock"):
        return
    lock = _lock(f"{mount}.lock")
    if lock is not None:
        try:
            if os.path.isdir(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
            with contextlib.suppress(FileNotFoundError):  # it was that
                os.unlink(f"{mount}.lock")
        finally:
            os.close(lock)


@contextlib.contextmanager
def alone(path: str) -> Iterator[str]:
    """``path``, while no other process of this user mounts there (it would mount over it unseen)."""
    name = _beside_socket(path, ".lock")
    try:
        lock = _lock(name)
    except OSError as error:
        what = reason_of(error)
        mend = f"make {os.path.dirname(name)} writable for this user"
        raise MountError(f"{name} cannot be made: {what}", mend=mend) from None
    try:
        if lock is None:
            raise MountError(f"{path} is being mounted by another process", mend="wait for it")
        yield path
        # Still locked: whoever opened it meanwhile sees that it is gone, and makes another.
    finally:
        if lock is not None:
            with contextlib.suppress(OSError):
                os.unlink(name)
            os.close(lock)


def _lock(name: str) -> int | None:
    """A descriptor of the file ``name``, made if missing, locked; None where another process has the lock.

    Raises OSError.
    """
    while True:
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_file(lock, name):
                return lock
        except BlockingIOError:
            os.close(lock)
            return None
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def is_file(descriptor: int, name: str) -> bool:
    """Whether ``descriptor`` is of the file that has this name now."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(name))
    except FileNotFoundError:
        return False


def _beside_socket(mountpoint: str, suffix: str) -> str:
    return socket_path(mountpoint).removesuffix(".sock") + suffix
