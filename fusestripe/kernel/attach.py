"""Mounting with a FUSE descriptor that stays ours: mount(2) as root, fusermount3 otherwise."""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import subprocess
from collections.abc import Iterator

import msgspec

from fusestripe.errors import MountError, reason_of
from fusestripe.kernel.mounting import FSTYPE
from fusestripe.kernel.rights import fusermount, has_sys_admin

__all__ = ["MountOptions", "attach"]

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8  # include/uapi/linux/mount.h
_SUBTYPE = FSTYPE.partition(".")[2]


class MountOptions(msgspec.Struct, frozen=True):
    """``source`` is shown as what is mounted; with ``allow_other`` users other than this one may look.

    ``noexec``: nothing there can be executed. Set-user-ID and devices count for nothing in any mount.
    """

    source: str
    allow_other: bool = False
    noexec: bool = False

    def fusermount(self) -> Iterator[str]:
        """As fusermount3 takes them (fusermount3(1)); a comma or a backslash in a name is escaped."""
        fsname = self.source.replace("\\", "\\\\").replace(",", "\\,")
        yield from ("ro", "nosuid", "nodev", "default_permissions")
        yield from (f"fsname={fsname}", f"subtype={_SUBTYPE}")
        if self.allow_other:
            yield "allow_other"
        if self.noexec:
            yield "noexec"


def attach(mountpoint: str, options: MountOptions, owner: tuple[int, int] | None = None) -> int:
    """Mount on ``mountpoint``; the descriptor from which its requests are read, which the caller owns.

    ``owner``: user and group whose mount it is (None: this process's), which takes CAP_SYS_ADMIN.
    Raises MountError.
    """
    if has_sys_admin():
        return _mount(mountpoint, options, *(owner or (os.getuid(), os.getgid())))
    return _fusermount(mountpoint, options)


def _mount(mountpoint: str, options: MountOptions, user: int, group: int) -> int:
    try:
        place = _without_links(mountpoint)
        try:
            return _mount_at(place, mountpoint, options, user, group)
        finally:
            os.close(place)
    except OSError as error:
        what = reason_of(error)
        raise MountError(f"{mountpoint} cannot be mounted: {what}", mend="fusestripe doctor") from None


def _without_links(path: str) -> int:
    """A descriptor (O_PATH) of the directory ``path``, absolute; raises OSError where a link is on the way.

    It was resolved some time ago. Whoever may write in a directory on the way may have put a link there since
    (path_resolution(7)), and has no say in where a process with more rights mounts.
    """
    how = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    found = os.open("/", how)
    for name in filter(None, path.split("/")):
        try:
            below = os.open(name, how, dir_fd=found)
        finally:
            os.close(found)
        found = below
    return found


def _mount_at(place: int, mountpoint: str, options: MountOptions, user: int, group: int) -> int:
    """``place``: a descriptor of the ``mountpoint``. Raises OSError."""
    root_mode = stat.S_IFMT(os.fstat(place).st_mode)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    data = f"fd={device},rootmode={root_mode:o},user_id={user},group_id={group}"
    data += ",default_permissions" + ",allow_other" * options.allow_other
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.mount(
        os.fsencode(options.source),
        b"/proc/self/fd/%d" % place,
        FSTYPE.encode(),
        ctypes.c_ulong(_MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC * options.noexec),
        data.encode(),
    )
    if done != 0:
        number = ctypes.get_errno()
        os.close(device)
        raise OSError(number, os.strerror(number), mountpoint)
    return device


def _fusermount(mountpoint: str, options: MountOptions) -> int:
    """fusermount3 mounts, and sends the descriptor through the socket named in _FUSE_COMMFD."""
    program = fusermount()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [program, "-o", ",".join(options.fusermount()), "--", mountpoint],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "LC_ALL": "C", "_FUSE_COMMFD": str(theirs.fileno())},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        theirs.close()
        _data, received, _flags, _address = socket.recv_fds(ours, 1, 1)
        _output, said = process.communicate()
    if process.returncode != 0 or not received:
        raise MountError(
            f"{mountpoint} cannot be mounted: {' '.join(said.split())}", mend="fusestripe doctor"
        )
    os.set_inheritable(received[0], False)
    return received[0]
