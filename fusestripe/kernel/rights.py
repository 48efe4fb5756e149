"""Who this process is, and what it may do."""

from __future__ import annotations

import pwd
import re

__all__ = ["has_sys_admin", "user_name"]

_CAP_SYS_ADMIN = 21  # include/uapi/linux/capability.h


def has_sys_admin() -> bool:
    """Whether this process has CAP_SYS_ADMIN (capabilities(7)), which mount(2) and passthrough ask for."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        effective = re.search(r"^CapEff:\s*([0-9a-f]+)", file.read(), re.MULTILINE)
    return effective is not None and bool(int(effective[1], 16) >> _CAP_SYS_ADMIN & 1)


def user_name(user: int) -> str:
    """The name of ``user`` on this machine, or the number where there is none."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
