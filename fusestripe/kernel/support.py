"""What this kernel and this process's rights allow of what makes a mount fast; "" or why not."""

from __future__ import annotations

import re

__all__ = ["PASSTHROUGH_KERNEL", "channel_refusal", "passthrough_refusal", "version_of"]

# Splicing from a socket of the kind that the channel stands on: measured to work from here on.
CHANNEL_KERNEL = (6, 5)
# FUSE_PASSTHROUGH (Linux 6.9, fs/fuse/passthrough.c).
PASSTHROUGH_KERNEL = (6, 9)


def version_of(release: str) -> tuple[int, int]:
    """Major and minor of a kernel ``release`` like "6.9.3-generic"."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def channel_refusal(release: str, *, wanted: bool = True) -> str:
    """Why READ is left to pyfuse3."""
    if not wanted:
        return "switched off"
    if version_of(release) < CHANNEL_KERNEL:
        return f"not on Linux {release} (it takes 6.5)"
    return ""


def passthrough_refusal(release: str, has_sys_admin: bool, *, wanted: bool = True) -> str:
    """Why the kernel does not read whole files itself."""
    if not wanted:
        return "switched off"
    if version_of(release) < PASSTHROUGH_KERNEL:
        return f"not in Linux {release} (6.9 has it)"
    if not has_sys_admin:
        return "it takes CAP_SYS_ADMIN: mount as root"
    return ""
