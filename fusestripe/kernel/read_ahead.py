"""How far ahead the kernel reads in a mount."""

from __future__ import annotations

from fusestripe.errors import reason_of
from fusestripe.kernel.mounting import find_mount

__all__ = ["raise_read_ahead"]

READ_AHEAD = 4 * 1024 * 1024
"""Bytes: enough for several requests of the largest size (1 MiB) under way at once."""


def raise_read_ahead(mountpoint: str, size: int = READ_AHEAD) -> str:
    """Let the kernel read ``size`` bytes ahead in the mount at ``mountpoint``; "", or why it may not.

    The kernel's own 128 KiB keeps requests at 128 KiB (Documentation/ABI/testing/sysfs-class-bdi).
    """
    mount = find_mount(mountpoint)
    if mount is None:
        return "the mount is gone"
    name = f"/sys/class/bdi/{mount.device}/read_ahead_kb"
    try:
        with open(name, encoding="ascii") as file:
            if int(file.read()) * 1024 >= size:  # whoever mounted it may have done so
                return ""
        with open(name, "w", encoding="ascii") as file:
            file.write(str(size // 1024))
    except OSError as error:
        return f"{reason_of(error)} (it takes root and a writable /sys)"
    return ""
