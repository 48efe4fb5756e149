"""Which open files the kernel reads itself, from the cache's file, without asking us (from Linux 6.9 on)."""

from __future__ import annotations

import errno
import fcntl
import logging
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress

from fusestripe.kernel.abi import FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_PASSTHROUGH, OpenOut

__all__ = ["Passthrough"]

log = logging.getLogger(__name__)

# include/uapi/linux/fuse.h: _IOW(229, 1, struct fuse_backing_map) and _IOW(229, 2, uint32_t).
_BACKING_OPEN = 1 << 30 | 16 << 16 | 229 << 8 | 1
_BACKING_CLOSE = 1 << 30 | 4 << 16 | 229 << 8 | 2
_BACKING_MAP = struct.Struct("=iIQ")
"""struct fuse_backing_map: fd, flags, padding."""


_NEVER = {
    errno.ELOOP: "the cache is on a stacked filesystem: choose another --cache-dir",
    errno.EPERM: "the kernel does not allow it",
    errno.EOPNOTSUPP: "the cache's filesystem does not take part",
}
"""What BACKING_OPEN says (fs/fuse/backing.c) that will not change; the rest concerns one file."""


class Passthrough:
    """Gives the kernel the cache file of a version, at its open, if every stripe is present and checked.

    Invariants, which the kernel sets (fs/fuse/iomode.c): all open handles of an inode are read in one way,
    so the first of them decides; those in passthrough share one backing id, which is registered once and
    given back after the last of them. A handle counts as open until its RELEASE is here, when the kernel has
    already let go of it. For any thread; nothing here waits for a disk.
    """

    def __init__(self, device: int, why_not: str) -> None:
        self._device = device
        self._why_not = why_not
        self._lock = threading.Lock()
        self._inodes: dict[int, _OpenInode] = {}
        # Ids of files that are about to be opened.
        self._offered: dict[int, int] = {}

    @property
    def why_not(self) -> str:
        """ "" while it is on, else why it is off."""
        return self._why_not

    def inodes(self) -> frozenset[int]:
        """Those that the kernel reads itself now."""
        with self._lock:
            return frozenset(node for node, inode in self._inodes.items() if inode.backing_id)

    def negotiated(self, offered: bool) -> bool:
        """See channel.Opens."""
        if not offered and not self._why_not:
            self._why_not = "this kernel is built without it (CONFIG_FUSE_PASSTHROUGH)"
        return not self._why_not

    def resume(self, opens: Iterable[tuple[int, int]]) -> None:
        """What a daemon before this one had open: the inode of each handle, and its backing id or 0."""
        for node, backing_id in opens:
            self._inodes.setdefault(node, _OpenInode(backing_id)).handles += 1

    def offer(self, node: int, data: int) -> None:
        """Inode ``node``, if nobody has it open, may be opened as the file with the descriptor ``data``."""
        with self._lock:
            if self._why_not or node in self._inodes or node in self._offered:
                return
            try:
                # With memory that it may change, ioctl returns what the call does: here the id.
                backing_map = bytearray(_BACKING_MAP.pack(data, 0, 0))
                backing_id: int = fcntl.ioctl(self._device, _BACKING_OPEN, backing_map)
            except OSError as error:
                if error.errno in _NEVER:
                    self._why_not = _NEVER[error.errno]
                    log.info("passthrough is off: %s", self._why_not)
                return
            self._offered[node] = backing_id

    def opened(self, node: int, reply: OpenOut, *, is_direct: bool) -> OpenOut:
        """See channel.Opens.

        Who opens by O_DIRECT what others have open in passthrough has to do the same (fs/fuse/iomode.c), but
        reads from us (fs/fuse/file.c): the cache's filesystem would ask for aligned buffers, which we do not.
        """
        with self._lock:
            inode = self._inodes.get(node)
            if inode is None:
                inode = self._inodes[node] = _OpenInode(self._offered.pop(node, 0))
            inode.handles += 1
        if not inode.backing_id:
            return reply
        direct = FOPEN_DIRECT_IO if is_direct else 0
        flags = reply.open_flags & ~FOPEN_KEEP_CACHE | FOPEN_PASSTHROUGH | direct
        return OpenOut(reply.fh, flags, inode.backing_id)

    def released(self, node: int) -> None:
        """See channel.Opens."""
        with self._lock:
            inode = self._inodes[node]
            inode.handles -= 1
            if inode.handles:
                return
            del self._inodes[node]
            for backing_id in (inode.backing_id, self._offered.pop(node, 0)):
                if backing_id:
                    with suppress(FileNotFoundError):  # of a daemon that died before it could say so
                        fcntl.ioctl(self._device, _BACKING_CLOSE, struct.pack("=I", backing_id))


class _OpenInode:
    __slots__ = ("backing_id", "handles")

    def __init__(self, backing_id: int) -> None:
        self.backing_id = backing_id
        self.handles = 0
