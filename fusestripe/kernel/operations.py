"""The filesystem as pyfuse3 asks for it: an adapter from inodes and handles to the tree and the reader.

Nothing is decided here but attributes and time-outs; pyfuse3 is imported here and in session.py alone.
"""

from __future__ import annotations

import errno
import functools
import logging
import math
import os
import stat
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Concatenate, TypeVar, cast

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileHandleT, FileInfo, FileNameT, FlagT, FUSEError, InodeT
from typing_extensions import ParamSpec

from fusestripe.errors import FusestripeError, NotFound, VersionChanged, errno_of
from fusestripe.kernel.interrupts import ends_caller
from fusestripe.kernel.journal import Journal, Past, Place
from fusestripe.kernel.waiting import Waiting
from fusestripe.namespace.cursor import Cursor
from fusestripe.namespace.inodes import DIRECTORY, InodeTable, Node
from fusestripe.namespace.ownership import Ownership
from fusestripe.namespace.tree import Found, Tree
from fusestripe.origins.base import Entry
from fusestripe.reader import Handle, Reader
from fusestripe.units import ObjectVersion

__all__ = ["Operations"]

log = logging.getLogger(__name__)

# How long the kernel may keep the attributes of an inode (seconds): a file's inode is one immutable version.
FOREVER = 86400.0
BLOCK = 4096
# The longest name in a directory (bytes), as on any disk's filesystem; the kernel itself takes longer ones.
NAME_MAX = 255
NOWHERE = Place(0, [])

P = ParamSpec("P")
T = TypeVar("T")


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
    file is about to be opened. ``journal`` has what the next daemon could not derive, if there is to be one:
    the directories that the kernel knows, and the files that it looked up last. Of others the kernel's next
    question is answered ESTALE then, and it looks the path up again (fs/namei.c). Who waits for a name or
    a directory is among those ``waiting``.
    """

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    def __init__(
        self,
        tree: Tree,
        reader: Reader,
        ownership: Ownership,
        waiting: Waiting,
        offer: Callable[[int, int], None] | None,
        journal: Journal | None,
        started_ns: int,
    ) -> None:
        super().__init__()
        self._journal = journal
        self._offer = offer
        self._tree = tree
        self._reader = reader
        self._ownership = ownership
        self._waiting = waiting
        self._started_ns = started_ns
        self._inodes = InodeTable()
        # Inodes of which the origin has another version by now, and whose name was not looked up since.
        self._outdated: set[int] = set()
        self._files: dict[int, tuple[Node, Handle]] = {}
        self._directories: dict[int, Cursor] = {}
        # Of directories that a daemon before had open: paths, and where their readers have come to.
        self._unlisted: dict[int, tuple[str, Place]] = {}
        self._next_handle = 0

    async def restore(self, past: Past) -> None:
        """Know what the kernel was given by the daemon before."""
        for inode, path in past.directories.items():
            self._inodes.restore(inode, os.fsdecode(path), DIRECTORY)
        for inode, looked in past.files.items():
            self._inodes.restore(inode, os.fsdecode(looked.path), looked.entry)
        for fh, opened in past.opens.items():
            path_there = os.fsdecode(opened.path)
            if opened.entry is None:
                self._unlisted[fh] = path_there, past.places.get(fh, NOWHERE)
                continue
            node = self._inodes.restore(opened.node, path_there, opened.entry)
            place = self._tree.place(path_there)
            if place is not None:
                version = self._tree.version(path_there, node.entry)
                handle = await self._reader.open(place.origin, version)
                self._files[fh] = (node, handle)
                self._reader.check(handle)
        self._next_handle = past.last_handle

    async def drop(self, fh: int) -> None:
        """Close a handle that the kernel does not have."""
        self._unlisted.pop(fh, None)
        if fh in self._files:
            await self.release(FileHandleT(fh))

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
        if len(name) > NAME_MAX:
            raise FUSEError(errno.ENAMETOOLONG)
        try:
            found = await self._for(ctx, self._tree.lookup(parent.path, os.fsdecode(name)))
        except NotFound:
            return self._no_entry(parent, os.fsdecode(name))
        node = self._inodes.find(found.path, found.entry)
        self._remember(node)
        if self._journal is not None and not found.entry.is_dir:
            self._journal.file(node.inode, node.path, node.entry)
        self._outdated.discard(node.inode)
        return self._attributes(node, found.expires)

    @answered
    async def getattr(self, inode: InodeT, ctx: pyfuse3.RequestContext) -> EntryAttributes:
        """The attributes of an inode the kernel holds."""
        return self._attributes(self._node(inode), math.inf)

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        """The kernel drops references."""
        for inode, count in inode_list:
            gone = self._inodes.forget(inode, count)
            if gone is not None and self._journal is not None:
                self._journal.forgotten(inode)
            self._outdated.discard(inode)

    @answered
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Large and empty, so that no tool thinks the mount is full: a store has no size to tell."""
        answer = pyfuse3.StatvfsData()
        answer.f_bsize = answer.f_frsize = BLOCK
        answer.f_blocks = answer.f_bfree = answer.f_bavail = 2**50 // BLOCK
        answer.f_files = answer.f_ffree = answer.f_favail = 2**32
        answer.f_namemax = NAME_MAX
        return answer

    # Directories.

    @answered
    async def opendir(self, inode: InodeT, ctx: pyfuse3.RequestContext) -> FileHandleT:
        """A handle on the listing as it is now."""
        cursor = await self._for(ctx, self._cursor(self._node(inode).path))
        return self._new_handle(self._directories, cursor)

    @answered
    async def readdir(self, fh: FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """Entries from number ``start_id`` on, each with its attributes, as many as the kernel takes.

        Whoever comes back to the beginning (rewinddir(3)) gets the listing as it is by then.
        """
        if fh in self._unlisted:
            path, place = self._unlisted[fh]
            self._directories[fh] = await self._cursor(path, start_id, place.before(start_id))
            self._unlisted.pop(fh, None)
        cursor = self._directories.get(fh)
        if cursor is None:
            raise FUSEError(errno.EBADF)  # asked of a daemon before this one, and answered
        if start_id == 0 and cursor.expires < trio.current_time():
            cursor = self._directories[fh] = await self._cursor(cursor.path)
        path = cursor.path
        cursor.seek(start_id)
        names = [cursor.last]
        while (entry := cursor.entry) is not None:
            node = self._inodes.find(f"{path}/{entry.name}" if path else entry.name, entry)
            attributes = self._attributes(node, cursor.expires)
            if not pyfuse3.readdir_reply(token, _name(entry.name), attributes, cursor.number + 1):
                break
            self._remember(node)
            names.append(entry.name)
            cursor.step()
        if self._journal is not None and len(names) > 1:
            self._journal.listed(fh, start_id, names)

    async def releasedir(self, fh: FileHandleT) -> None:
        """The directory handle is closed."""
        self._directories.pop(fh, None)
        self._unlisted.pop(fh, None)

    # Files.

    @answered
    async def open(self, inode: InodeT, flags: FlagT, ctx: pyfuse3.RequestContext) -> FileInfo:
        """Pin the version that the inode stands for. The kernel keeps its pages: they can only be right."""
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise FUSEError(errno.EROFS)
        node = self._node(inode)
        if node.inode in self._outdated or self._is_superseded(node):
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

    def opened_as(self, fh: int) -> tuple[str, Entry | None]:
        """The path and the file, or None for a directory, of an open handle, from any thread."""
        if fh in self._directories:
            return self._directories[fh].path, None
        node, _handle = self._files[fh]
        return node.path, node.entry

    @answered
    async def release(self, fh: FileHandleT) -> None:
        """The handle is closed. The kernel may say so to two daemons, one after the other."""
        _node, handle = self._files.pop(fh, (None, None))
        if handle is not None:
            await self._reader.close(handle)

    # What the methods above share.

    async def _for(self, ctx: pyfuse3.RequestContext, answer: Awaitable[T]) -> T:
        """What comes of ``answer``; EINTR where a signal ends who waits for it."""
        with self._waiting.of(ctx.pid, ends_caller):
            return await answer
        raise FUSEError(errno.EINTR)

    def _node(self, inode: InodeT) -> Node:
        try:
            return self._inodes.get(inode)
        except KeyError:
            raise FUSEError(errno.ESTALE) from None

    def _remember(self, node: Node) -> None:
        """The kernel is about to be given ``node``."""
        if self._inodes.remember(node) and node.entry.is_dir and self._journal is not None:
            self._journal.directory(node.inode, node.path)

    async def _cursor(self, path: str, number: int = 0, last: str = "") -> Cursor:
        return Cursor(path, await self._tree.list_dir(path), number, last)

    def _is_superseded(self, node: Node) -> bool:
        """Whether the tree knows of something else, or of nothing, at the node's path."""
        known = self._tree.known(node.path)
        if isinstance(known, Found):
            return self._inodes.find(node.path, known.entry) is not node
        return known is not None

    def _new_handle(self, table: dict[int, T], value: T) -> FileHandleT:
        self._next_handle += 1
        table[self._next_handle] = value
        return FileHandleT(self._next_handle)

    def _drop_name(self, node: Node) -> None:
        """The object at the node's path is another by now: have the next open look it up.

        The kernel drops the name a while after that; until then ``open`` refuses the inode.
        """
        self._outdated.add(node.inode)
        self._tree.forget(
            node.path
        )  # though it knows of a later version than this one, which may be gone too
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
        shown = self._ownership.of(entry)
        attributes.st_mode = pyfuse3.ModeT(kind | shown.mode)
        attributes.st_nlink = 1
        attributes.st_uid, attributes.st_gid = shown.uid, shown.gid
        attributes.st_size = entry.size
        attributes.st_blksize = BLOCK
        attributes.st_blocks = -(-entry.size // 512)
        time_ns = entry.mtime_ns or self._started_ns
        attributes.st_mtime_ns = attributes.st_ctime_ns = attributes.st_atime_ns = time_ns
        return attributes


def _name(name: str) -> FileNameT:
    return FileNameT(os.fsencode(name))
