"""The filesystem as pyfuse3 asks for it: an adapter from inodes and handles to the tree and the reader.

Nothing is decided here but attributes and time-outs; pyfuse3 is imported nowhere else.
"""

from __future__ import annotations

import errno
import functools
import logging
import math
import os
import stat
from collections.abc import Callable, Coroutine, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Concatenate, TypeVar, cast

import msgspec
import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileHandleT, FileInfo, FileNameT, FlagT, FUSEError, InodeT
from typing_extensions import ParamSpec

from fusestripe.errors import FusestripeError, NotFound, VersionChanged, errno_of
from fusestripe.namespace.inodes import InodeTable, Node
from fusestripe.namespace.tree import Found, Tree
from fusestripe.origins.base import Entry
from fusestripe.reader import Handle, Reader
from fusestripe.units import ObjectVersion

__all__ = ["Operations", "Ownership"]

log = logging.getLogger(__name__)

# How long the kernel may keep the attributes of an inode (seconds): a file's inode is one immutable version.
FOREVER = 86400.0
BLOCK = 4096

P = ParamSpec("P")
T = TypeVar("T")


class Ownership(msgspec.Struct, frozen=True):
    """Who owns what an origin knows no owner for, and the permission bits of files and directories."""

    uid: int
    gid: int
    file_mode: int = 0o644
    dir_mode: int = 0o755


def answered(
    operation: Callable[Concatenate[Operations, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Operations, P], Coroutine[Any, Any, T]]:
    """Turn every failure of ``operation`` into an errno of the one table: pyfuse3 ends at any other error."""

    @functools.wraps(operation)
    async def wrapper(self: Operations, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await operation(self, *args, **kwargs)
        except FUSEError:
            raise
        except FusestripeError as error:
            raise FUSEError(errno_of(error)) from None
        except Exception as error:
            log.exception("%s failed", operation.__name__)
            raise FUSEError(errno_of(error)) from None

    return wrapper


class Operations(pyfuse3.Operations):
    """One mounted, read-only tree.

    ``offer`` is told the inode of a file that is whole and checked, and a descriptor of its data, when the
    file is about to be opened.
    """

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    def __init__(
        self,
        tree: Tree,
        reader: Reader,
        *,
        ownership: Ownership,
        started_ns: int,
        offer: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__()
        self._offer = offer
        self._tree = tree
        self._reader = reader
        self._ownership = ownership
        self._started_ns = started_ns
        self._inodes = InodeTable()
        self._files: dict[int, tuple[Node, Handle]] = {}
        self._directories: dict[int, tuple[str, list[Entry], float]] = {}
        self._next_handle = 0

    def count_inodes(self) -> int:
        """How many inodes the kernel holds."""
        return len(self._inodes)

    def versions_at(self, inodes: AbstractSet[int]) -> frozenset[ObjectVersion]:
        """The versions that are open by one of ``inodes``."""
        return frozenset(handle.version for node, handle in self._files.values() if node.inode in inodes)

    # Names and attributes.

    @answered
    async def lookup(
        self, parent_inode: InodeT, name: FileNameT, ctx: pyfuse3.RequestContext
    ) -> EntryAttributes:
        """The attributes of a child; counts as one more reference of the kernel to it."""
        parent = self._node(parent_inode)
        try:
            found = await self._tree.lookup(parent.path, os.fsdecode(name))
        except NotFound:
            return self._no_entry(parent, os.fsdecode(name))
        node = self._inodes.find(found.path, found.entry)
        self._inodes.remember(node)
        return self._attributes(node, found.expires)

    @answered
    async def getattr(self, inode: InodeT, ctx: pyfuse3.RequestContext) -> EntryAttributes:
        """The attributes of an inode the kernel holds."""
        return self._attributes(self._node(inode), math.inf)

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        """The kernel drops references."""
        for inode, count in inode_list:
            self._inodes.forget(inode, count)

    @answered
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Large and empty, so that no tool thinks the mount is full: a store has no size to tell."""
        answer = pyfuse3.StatvfsData()
        answer.f_bsize = answer.f_frsize = BLOCK
        answer.f_blocks = answer.f_bfree = answer.f_bavail = 2**50 // BLOCK
        answer.f_files = answer.f_ffree = answer.f_favail = 2**32
        answer.f_namemax = 255
        return answer

    # Directories.

    @answered
    async def opendir(self, inode: InodeT, ctx: pyfuse3.RequestContext) -> FileHandleT:
        """A handle on the listing as it is now."""
        path = self._node(inode).path
        listing = await self._tree.list_dir(path)
        snapshot = (path, list(listing.entries.values()), listing.expires)
        return self._new_handle(self._directories, snapshot)

    @answered
    async def readdir(self, fh: FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """Entries from number ``start_id`` on, each with its attributes, as many as the kernel takes."""
        path, entries, expires = self._directories[fh]
        for number in range(start_id, len(entries)):
            entry = entries[number]
            node = self._inodes.find(f"{path}/{entry.name}" if path else entry.name, entry)
            attributes = self._attributes(node, expires)
            if not pyfuse3.readdir_reply(token, _name(entry.name), attributes, number + 1):
                return
            self._inodes.remember(node)

    async def releasedir(self, fh: FileHandleT) -> None:
        """The directory handle is closed."""
        self._directories.pop(fh, None)

    # Files.

    @answered
    async def open(self, inode: InodeT, flags: FlagT, ctx: pyfuse3.RequestContext) -> FileInfo:
        """Pin the version that the inode stands for. The kernel keeps its pages: they can only be right."""
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise FUSEError(errno.EROFS)
        node = self._node(inode)
        known = self._tree.known(node.path)
        if known is not None and not (isinstance(known, Found) and self._is_version(node, known)):
            # The VFS answers ESTALE by looking the path up anew and trying once more (fs/namei.c).
            raise FUSEError(errno.ESTALE)
        place = self._tree.place(node.path)
        if place is None:
            raise FUSEError(errno.ENOENT)
        handle = await self._reader.open(place.origin, self._tree.version(node.path, node.entry))
        # By O_DIRECT the cache's filesystem would ask for aligned buffers, which we do not.
        if self._offer is not None and not flags & os.O_DIRECT:
            await self._reader.show_whole(handle, functools.partial(self._offer, node.inode))
        return FileInfo(fh=self._new_handle(self._files, (node, handle)), keep_cache=True)

    @answered
    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        """Bytes of the pinned version. pyfuse3 copies them out before anything else runs."""
        return cast(bytes, await self.read_handle(fh, off, size))

    async def read_handle(self, fh: int, offset: int, size: int) -> bytes | bytearray | memoryview:
        """The same for the channel: the bytes are valid until the next checkpoint. Raises FusestripeError."""
        node, handle = self._files[fh]
        try:
            return await self._reader.read(handle, offset, size)
        except VersionChanged:
            self._drop_name(node)
            raise

    def handle_of(self, fh: int) -> Handle | None:
        """The open file behind ``fh``, from any thread."""
        found = self._files.get(fh)
        return None if found is None else found[1]

    @answered
    async def release(self, fh: FileHandleT) -> None:
        """The handle is closed."""
        _node, handle = self._files.pop(fh)
        await self._reader.close(handle)

    # What the methods above share.

    def _node(self, inode: InodeT) -> Node:
        try:
            return self._inodes.get(inode)
        except KeyError:
            raise FUSEError(errno.ESTALE) from None

    def _is_version(self, node: Node, found: Found) -> bool:
        return self._inodes.find(node.path, found.entry) is node

    def _new_handle(self, table: dict[int, T], value: T) -> FileHandleT:
        self._next_handle += 1
        table[self._next_handle] = value
        return FileHandleT(self._next_handle)

    def _drop_name(self, node: Node) -> None:
        """The object at the node's path is another by now: have the next open look it up."""
        self._tree.forget(node.path)
        parent, _, name = node.path.rpartition("/")
        inode = InodeT(self._inodes.directory(parent))
        pyfuse3.invalidate_entry_async(inode, _name(name), ignore_enoent=True)

    def _no_entry(self, parent: Node, name: str) -> EntryAttributes:
        """An answer with inode 0: the kernel remembers that there is nothing (fuse.h, FUSE_LOOKUP)."""
        known = self._tree.known(f"{parent.path}/{name}" if parent.path else name)
        seconds = 0.0 if known is None else max(0.0, known.expires - trio.current_time())
        if seconds == 0.0:
            raise FUSEError(errno.ENOENT)
        attributes = EntryAttributes()
        attributes.st_ino = InodeT(0)
        attributes.entry_timeout = seconds
        return attributes

    def _attributes(self, node: Node, expires: float) -> EntryAttributes:
        entry = node.entry
        seconds = min(FOREVER, max(0.0, expires - trio.current_time()))
        attributes = EntryAttributes()
        attributes.st_ino = InodeT(node.inode)
        attributes.entry_timeout = seconds
        attributes.attr_timeout = seconds if entry.is_dir else FOREVER
        kind = stat.S_IFDIR if entry.is_dir else stat.S_IFREG
        mode = self._ownership.dir_mode if entry.is_dir else self._ownership.file_mode
        attributes.st_mode = pyfuse3.ModeT(kind | (mode if entry.mode is None else entry.mode & 0o7777))
        attributes.st_nlink = 1
        attributes.st_uid = self._ownership.uid if entry.uid is None else entry.uid
        attributes.st_gid = self._ownership.gid if entry.gid is None else entry.gid
        attributes.st_size = entry.size
        attributes.st_blksize = BLOCK
        attributes.st_blocks = -(-entry.size // 512)
        time_ns = entry.mtime_ns or self._started_ns
        attributes.st_mtime_ns = attributes.st_ctime_ns = attributes.st_atime_ns = time_ns
        return attributes


def _name(name: str) -> FileNameT:
    return FileNameT(os.fsencode(name))
