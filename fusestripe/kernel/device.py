"""Whether the device of FUSE is there and may be opened."""

from __future__ import annotations

import errno
import os

from fusestripe.errors import MountError, reason_of

__all__ = ["check_device"]

_IN_CONTAINER = "--device /dev/fuse --cap-add SYS_ADMIN"


def check_device(path: str) -> None:
    """Raise MountError unless this process can open the FUSE device ``path``; that alone mounts nothing."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise _refusal(path, error) from None


def _refusal(path: str, error: OSError) -> MountError:
    if error.errno == errno.ENOENT:
        mend = f"as root: modprobe fuse; in a container start it with {_IN_CONTAINER}"
        return MountError(f"{path} is missing", mend=mend)
    if error.errno in (errno.ENODEV, errno.ENXIO):
        return MountError(f"{path} is there, but the kernel has no FUSE", mend="as root: modprobe fuse")
    if error.errno == errno.EPERM:  # by the control group of devices: the mode does not help
        return MountError(f"this container may not open {path}", mend=f"start it with {_IN_CONTAINER}")
    if error.errno == errno.EACCES:
        return MountError(f"this user may not open {path}", mend=f"as root: chmod 666 {path}")
    return MountError(f"{path} cannot be opened: {reason_of(error)}")
