"""That every byte of a data file has been checked, noted for later processes until the machine goes down.

What a process has checked it need not check again while nobody writes to the file, and neither need the
process after it: both see the file through the same kernel. After a reboot that is no longer so: what was in
memory then may never have reached the disk. A seal is an extended attribute of the ledger.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import msgspec

__all__ = ["Seal", "boot_id", "is_settled", "read_seal", "write_seal"]

_ATTRIBUTE = "user.fusestripe.checked"
# Timestamps of files move with the kernel's tick, 10 ms at most (CONFIG_HZ): a younger one may yet stand for
# another write.
_TICKS_NS = 50_000_000


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """The state of a data file that was right from end to end, and a hash of its checksums."""

    boot: str
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    checksums: int

    @classmethod
    def of(cls, boot: str, data: os.stat_result, checksums: int) -> Seal:
        """The seal of the file with that stat(2)."""
        return cls(boot, data.st_ino, data.st_size, data.st_mtime_ns, data.st_ctime_ns, checksums)


def boot_id() -> str:
    """Names this run of the kernel (random(4)); "" where it cannot be known, and then nothing is sealed."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def is_settled(data: os.stat_result) -> bool:
    """Whether a write to the file from now on would show in its timestamps."""
    return time.time_ns() - max(data.st_mtime_ns, data.st_ctime_ns) > _TICKS_NS


def write_seal(ledger: int, seal: Seal) -> None:
    """Note ``seal`` on the ledger with that descriptor, where the filesystem has attributes."""
    with suppress(OSError):
        os.setxattr(ledger, _ATTRIBUTE, msgspec.msgpack.encode(seal))


def read_seal(ledger: int) -> Seal | None:
    """The seal on the ledger, None where there is none that can be read."""
    try:
        return msgspec.msgpack.decode(os.getxattr(ledger, _ATTRIBUTE), type=Seal)
    except (OSError, msgspec.DecodeError):
        return None
