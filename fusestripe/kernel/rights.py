"""Who this process is, and what it may do."""

from __future__ import annotations

import pwd
import re
import shutil

from fusestripe.errors import MountError
from fusestripe.packages import install_command

__all__ = ["fusermount", "has_sys_admin", "user_name"]

_CAP_SYS_ADMIN = 21  # include/uapi/linux/capability.h


def has_sys_admin() -> bool:
    """Whether this process has CAP_SYS_ADMIN (capabilities(7)), which mount(2) and passthrough ask for."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        effective = re.search(r"^CapEff:\s*([0-9a-f]+)", file.read(), re.MULTILINE)
    return effective is not None and bool(int(effective[1], 16) >> _CAP_SYS_ADMIN & 1)


def fusermount() -> str:
    """The program that mounts for who may not (fusermount3(1)). Raises MountError where it is missing."""
    program = shutil.which("fusermount3")
    if program is None:
        raise MountError("fusermount3 is missing", mend=f"as root: {install_command('fuse3')}")
    return program


def user_name(user: int) -> str:
    """The name of ``user`` on this machine, or the number where there is none."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
