"""Mounting with a FUSE descriptor that stays ours: mount(2) as root, fusermount3 otherwise."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator

import msgspec

from fusestripe.errors import MountError
from fusestripe.kernel.mounting import FSTYPE, has_sys_admin

__all__ = ["MountOptions", "attach"]

_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4  # include/uapi/linux/mount.h
_SUBTYPE = FSTYPE.partition(".")[2]


class MountOptions(msgspec.Struct, frozen=True):
    """``source`` is shown as what is mounted; with ``allow_other`` users other than this one may look."""

    source: str
    allow_other: bool = False

    def fusermount(self) -> Iterator[str]:
        """As fusermount3 takes them (fusermount3(1)); a comma or a backslash in a name is escaped."""
        fsname = self.source.replace("\\", "\\\\").replace(",", "\\,")
        yield from ("ro", "nosuid", "nodev", "default_permissions")
        yield from (f"fsname={fsname}", f"subtype={_SUBTYPE}")
        if self.allow_other:
            yield "allow_other"


def attach(mountpoint: str, options: MountOptions) -> int:
    """Mount on ``mountpoint``; the descriptor from which its requests are read, which the caller owns.

    Raises MountError.
    """
    if has_sys_admin():
        return _mount(mountpoint, options)
    return _fusermount(mountpoint, options)


def _mount(mountpoint: str, options: MountOptions) -> int:
    try:
        root_mode = stat.S_IFMT(os.stat(mountpoint).st_mode)
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        what = (error.strerror or str(error)).lower()
        raise MountError(f"{mountpoint} cannot be mounted: {what}", mend="fusestripe doctor") from None
    data = f"fd={device},rootmode={root_mode:o},user_id={os.getuid()},group_id={os.getgid()}"
    data += ",default_permissions" + ",allow_other" * options.allow_other
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.mount(
        os.fsencode(options.source),
        os.fsencode(mountpoint),
        FSTYPE.encode(),
        ctypes.c_ulong(_MS_RDONLY | _MS_NOSUID | _MS_NODEV),
        data.encode(),
    )
    if done != 0:
        number = ctypes.get_errno()
        os.close(device)
        raise MountError(
            f"{mountpoint} cannot be mounted: {os.strerror(number).lower()}", mend="fusestripe doctor"
        )
    return device


def _fusermount(mountpoint: str, options: MountOptions) -> int:
    """fusermount3 mounts, and sends the descriptor through the socket named in _FUSE_COMMFD."""
    program = shutil.which("fusermount3")
    if program is None:
        raise MountError("fusermount3 is missing", mend="install fuse3 (apt install fuse3)")
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
