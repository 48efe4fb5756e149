"""Where the control sockets and the logs of mounts are."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Mapping

import xxhash

from fusestripe.config import default_cache_dir
from fusestripe.errors import MountError, reason_of
from fusestripe.kernel.mounting import Mount

__all__ = [
    "RUNTIME_VARIABLE",
    "log_of",
    "runtime_dir",
    "runtime_dirs_of",
    "socket_of",
    "socket_path",
]

RUNTIME_VARIABLE = "FUSESTRIPE_RUNTIME_DIR"
_OF_ROOT = "/run/fusestripe"
_SUN_PATH_MAXIMUM = 107  # sockaddr_un, 108 with the final NUL (unix(7))


def runtime_dir(environ: Mapping[str, str] = os.environ) -> str:
    """Where sockets and logs of this user's mounts are; made with mode 0700 where missing.

    $FUSESTRIPE_RUNTIME_DIR where it is set, as for a job of a batch system; else /run/fusestripe for root,
    for others below $XDG_RUNTIME_DIR if that is theirs, else below the user's cache directory.
    Raises MountError where it cannot be made, or where others may write in it.
    """
    above = ""
    if environ.get(RUNTIME_VARIABLE):
        path = environ[RUNTIME_VARIABLE]
    elif os.geteuid() == 0:
        path = _OF_ROOT
    elif _session_dir(environ):
        path = os.path.join(_session_dir(environ), "fusestripe")
    else:
        above = default_cache_dir(environ)
        path = os.path.join(above, "run")
    try:
        for directory in filter(None, (above, path)):  # the mode is only the last one's
            os.makedirs(directory, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        what = reason_of(error)
        mend = "make /run writable" if path == _OF_ROOT else "set XDG_RUNTIME_DIR"
        raise MountError(f"{path} cannot be made: {what}", mend=mend) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise MountError(f"others may write in {path}", mend=f"chown it to this user and chmod 700 {path}")
    return path


def _session_dir(environ: Mapping[str, str]) -> str:
    """$XDG_RUNTIME_DIR; "" where it is not set, or another user's, as it stays so behind `su`.

    The XDG Base Directory Specification has it that the user must own it.
    """
    path = environ.get("XDG_RUNTIME_DIR", "")
    with contextlib.suppress(OSError):  # one that is missing is made
        if path and os.lstat(path).st_uid != os.geteuid():
            return ""
    return path


def socket_path(mountpoint: str, environ: Mapping[str, str] = os.environ) -> str:
    """The control socket of this user's mount at ``mountpoint`` (absolute, no links). Raises MountError."""
    path = os.path.join(runtime_dir(environ), _socket_name(mountpoint))
    if len(os.fsencode(path)) > _SUN_PATH_MAXIMUM:
        raise MountError(f"{path} is too long for a socket", mend="set XDG_RUNTIME_DIR to a shorter one")
    return path


def log_of(path: str) -> str:
    """Where the daemon at the socket ``path`` logs, unless it is in the foreground."""
    return path.removesuffix(".sock") + ".log"


def socket_of(mount: Mount) -> str:
    """The control socket of ``mount``; root finds those of others where they usually are.

    Those of this user are looked for there too: what mounted may have had another environment than this
    process, or none, as mount(8), cron and systemd have it.
    Raises MountError, which says whose mount it is, where that cannot be asked.
    """
    owner = mount.owner
    is_mine = owner is None or owner == os.geteuid()
    mine = socket_path(mount.mountpoint) if is_mine else ""
    if is_mine and os.path.exists(mine):
        return mine
    for directory in runtime_dirs_of(os.geteuid() if owner is None else owner):
        path = os.path.join(directory, _socket_name(mount.mountpoint))
        if os.path.exists(path):
            return path
    if is_mine:
        return mine
    raise MountError(
        f"{mount.mountpoint} shows {mount.source} and belongs to {mount.owner_name}; "
        "its daemon cannot be asked from here",
        mend="ask as that user",
    )


def runtime_dirs_of(user: int) -> list[str]:
    """Where the sockets of another user may be, by runtime_dir and what a login sets (pam_systemd(8))."""
    if user == 0:
        return [_OF_ROOT]
    try:
        home = pwd.getpwuid(user).pw_dir
    except KeyError:
        home = ""
    directories = [f"/run/user/{user}/fusestripe"]
    return [*directories, os.path.join(home, ".cache/fusestripe/run")] if home else directories


def _socket_name(mountpoint: str) -> str:
    return f"{xxhash.xxh3_64_hexdigest(os.fsencode(mountpoint))}.sock"
