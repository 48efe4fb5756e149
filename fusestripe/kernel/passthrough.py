"""Which open files the kernel reads itself, from the cache's file, without asking us (from Linux 6.9 on)."""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
from collections.abc import Callable

from fusestripe.errors import CacheError
from fusestripe.kernel.abi import FOPEN_KEEP_CACHE, FOPEN_PASSTHROUGH, OpenOut
from fusestripe.reader import Handle

__all__ = ["Passthrough"]

log = logging.getLogger(__name__)

# include/uapi/linux/fuse.h: _IOW(229, 1, struct fuse_backing_map) and _IOW(229, 2, uint32_t).
_BACKING_OPEN = 1 << 30 | 16 << 16 | 229 << 8 | 1
_BACKING_CLOSE = 1 << 30 | 4 << 16 | 229 << 8 | 2
_BACKING_MAP = struct.Struct("=iIQ")
"""struct fuse_backing_map: fd, flags, padding."""


class Passthrough:
    """Gives the kernel the cache file of a version, at its open, if every stripe is present and checked.

    Invariants, which the kernel sets (fs/fuse/iomode.c): all open handles of an inode are read in one way,
    so the first of them decides; those in passthrough share one backing id, which is registered once and
    given back after the last of them. A handle counts as open until its RELEASE is here, when the kernel has
    already let go of it.
    """

    def __init__(self, device: int, handle_of: Callable[[int], Handle | None], *, enabled: bool) -> None:
        self._device = device
        self._handle_of = handle_of
        self._enabled = enabled
        self._lock = threading.Lock()
        self._inodes: dict[int, _OpenInode] = {}

    @property
    def enabled(self) -> bool:
        """See channel.Opens."""
        return self._enabled

    def opened(self, node: int, reply: OpenOut) -> OpenOut:
        """See channel.Opens."""
        with self._lock:
            inode = self._inodes.get(node)
            if inode is None:
                inode = self._inodes[node] = _OpenInode(self._register(reply.fh))
            inode.handles += 1
        if not inode.backing_id:
            return reply
        flags = reply.open_flags & ~FOPEN_KEEP_CACHE | FOPEN_PASSTHROUGH
        return OpenOut(reply.fh, flags, inode.backing_id)

    def released(self, node: int, fh: int) -> None:
        """See channel.Opens."""
        with self._lock:
            inode = self._inodes[node]
            inode.handles -= 1
            if inode.handles:
                return
            del self._inodes[node]
            if inode.backing_id:
                fcntl.ioctl(self._device, _BACKING_CLOSE, struct.pack("=I", inode.backing_id))

    def count(self) -> int:
        """How many inodes the kernel reads itself now."""
        with self._lock:
            return sum(inode.backing_id != 0 for inode in self._inodes.values())

    def _register(self, fh: int) -> int:
        """The backing id of the file behind ``fh``; 0 where it is not whole, not checked or not usable."""
        handle = self._handle_of(fh) if self._enabled else None
        cached = handle.file.cached if handle is not None else None
        if cached is None or not cached.all_verified:
            return 0
        try:
            data = cached.open_data()
        except CacheError:
            return 0  # whoever reads it will find out, and say so
        try:
            # With memory that it may change, ioctl returns what the call does: here the id.
            backing_id: int = fcntl.ioctl(
                self._device, _BACKING_OPEN, bytearray(_BACKING_MAP.pack(data, 0, 0))
            )
        except OSError as error:
            # ELOOP: the cache is on a stacked filesystem; EPERM: not root; EOPNOTSUPP: never negotiated.
            log.warning("passthrough is off: %s", error.strerror)
            self._enabled = False
            return 0
        else:
            return backing_id
        finally:
            os.close(data)


class _OpenInode:
    __slots__ = ("backing_id", "handles")

    def __init__(self, backing_id: int) -> None:
        self.backing_id = backing_id
        self.handles = 0
