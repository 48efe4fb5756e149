"""A small disk of its own for a cache: ext4 on a loop device, that can be full, fail and go read-only."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

__all__ = ["SmallDisk"]

MIB = 1024 * 1024
# linux/loop.h: LOOP_GET_STATUS64, LOOP_SET_STATUS64; lo_sizelimit is the fifth field of struct loop_info64.
_GET_STATUS, _SET_STATUS = 0x4C05, 0x4C04
_INFO_SIZE, _SIZE_LIMIT_AT = 232, 32
_METADATA = 512 * 1024
"""Bytes at the disk's beginning that go on answering while it fails: ext4 keeps its own tables there."""


class SmallDisk:
    """Mounted at ``path``. Takes root. ``close`` takes it away, whoever uses it."""

    def __init__(self, path: Path, size: int = 64 * MIB, image: Path | None = None) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        self.image = image or path.with_name(f"{path.name}.image")
        if image is None:
            with open(self.image, "wb") as file:
                file.truncate(size)
            # Its tables are all at the beginning, and no journal stops at the first error.
            how = "-q -b 4096 -N 512 -O ^has_journal,^resize_inode -E lazy_itable_init=0"
            subprocess.run(["mkfs.ext4", *how.split(), str(self.image)], check=True)
        self._device = ""
        self.mount()

    def mount(self) -> None:
        """Show it at its path."""
        command = ["mount", "-o", "loop,errors=continue", str(self.image), str(self.path)]
        subprocess.run(command, check=True)
        number = os.stat(self.path).st_dev
        self._device = f"/dev/loop{os.minor(number)}"

    def unmount(self) -> None:
        """Take it from its path, where nobody uses it: all that was written is in ``image`` then."""
        subprocess.run(["umount", str(self.path)], check=True)

    def fill(self) -> None:
        """Another program takes all the room."""
        with open(self.path / "filler", "wb") as file:
            for chunk in (MIB, 4096):
                with suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, chunk)
        assert not os.statvfs(self.path).f_bavail

    def make_room(self) -> None:
        """It gives the room back."""
        (self.path / "filler").unlink()

    def fail(self) -> None:
        """The device fails reads and writes of almost all of itself (EIO), as a dying disk does."""
        self._limit(_METADATA)

    def mend(self) -> None:
        """The device works again."""
        self._limit(0)

    def go_read_only(self) -> None:
        """What the kernel does to a filesystem that it finds damaged (mount option errors=remount-ro)."""
        subprocess.run(["mount", "-o", "remount,errors=remount-ro", str(self.path)], check=True)
        subprocess.run(["sync", "-f", str(self.path)], check=True)
        Path(f"/sys/fs/ext4/{Path(self._device).name}/trigger_fs_error").write_text("1")

    def take_out(self) -> Path:
        """Unmounted (umount -l) while it is used; a repaired copy of its image."""
        subprocess.run(["umount", "-l", str(self.path)], check=True)
        copy = self.image.with_suffix(".copy")
        shutil.copyfile(self.image, copy)
        done = subprocess.run(["e2fsck", "-fy", str(copy)], capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stdout  # 1: mended
        return copy

    def close(self) -> None:
        """Unmount it; the device goes with its last user."""
        if os.path.ismount(self.path):
            self.mend()
            subprocess.run(["umount", "-l", str(self.path)], check=True)

    def _limit(self, size: int) -> None:
        device = os.open(self._device, os.O_RDWR)
        try:
            info = bytearray(_INFO_SIZE)
            fcntl.ioctl(device, _GET_STATUS, info)
            struct.pack_into("=Q", info, _SIZE_LIMIT_AT, size)
            fcntl.ioctl(device, _SET_STATUS, bytes(info))
        finally:
            os.close(device)
