"""Inode numbers, derived from what they stand for.

The inode of a file is one *version* of it: when the object at a path is replaced, the path gets another
inode, as if someone had renamed a new file over the old one. So an open handle goes on with the version it
has, the kernel's cached pages of an inode are always right, and the same tree has the same numbers after a
restart.
"""

from __future__ import annotations

import sys

import msgspec
import xxhash

from fusestripe.origins.base import Entry

__all__ = ["DIRECTORY", "ROOT", "InodeTable", "Node"]

# FUSE_ROOT_ID of linux/fuse.h.
ROOT = 1
# Numbers are below it: an int of CPython's takes a third digit of 30 bits above, 16 bytes for each inode.
_END = 2**60

DIRECTORY = Entry(name="", is_dir=True)
"""A directory of which only the path counts."""


class Node(msgspec.Struct, gc=False, eq=False):
    """A directory, or one version of a file, that the kernel knows; ``entry`` has its name.

    The kernel may hold a million: those of one ``directory`` (a path) share that string.
    """

    inode: int
    directory: str
    entry: Entry
    lookups: int = 0

    @property
    def path(self) -> str:
        """Where it is; "" for the root."""
        return f"{self.directory}/{self.entry.name}" if self.directory else self.entry.name


class InodeTable:
    """The nodes the kernel holds, until it forgets them."""

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {ROOT: Node(ROOT, "", DIRECTORY, lookups=1)}

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, inode: int) -> Node:
        """The node of a number the kernel was given. Raises KeyError for one it was not."""
        return self._nodes[inode]

    def find(self, path: str, entry: Entry) -> Node:
        """The node of ``entry`` at ``path``; not yet counted as known to the kernel."""
        inode = self._place(path, entry)
        node = self._nodes.get(inode)
        directory, _, name = path.rpartition("/")
        if entry.name != name:
            entry = msgspec.structs.replace(entry, name=name)
        if node is None:
            return Node(inode, sys.intern(directory), entry)
        if path:
            node.entry = entry
        return node

    def _place(self, path: str, entry: Entry) -> int:
        """The number that ``entry`` at ``path`` has or would get: the first from its own on that is free."""
        inode = _derive(path, entry) if path else ROOT
        while True:
            node = self._nodes.get(inode)
            if node is None or (node.path == path and _same(node.entry, entry)):
                return inode
            inode = max(ROOT + 1, (inode + 1) % _END)

    def directory(self, path: str) -> int:
        """The number of the directory at ``path``."""
        return self._place(path, DIRECTORY)

    def remember(self, node: Node) -> bool:
        """The kernel has been given ``node`` once more; whether it was the first time."""
        node.lookups += 1
        self._nodes[node.inode] = node
        return node.lookups == 1

    def forget(self, inode: int, count: int) -> Node | None:
        """The kernel gives back ``count`` of what it was given; the node that it has no more, if so."""
        node = self._nodes.get(inode)
        if node is None or inode == ROOT:
            return None
        node.lookups -= count
        return self._nodes.pop(inode) if node.lookups <= 0 else None

    def restore(self, inode: int, path: str, entry: Entry) -> Node:
        """The node that another table has given the kernel, how often is not known."""
        directory, _, name = path.rpartition("/")
        node = Node(inode, sys.intern(directory), msgspec.structs.replace(entry, name=name), lookups=1)
        return self._nodes.setdefault(inode, node)


def _same(one: Entry, other: Entry) -> bool:
    if one.is_dir or other.is_dir:
        return one.is_dir == other.is_dir
    return (one.size, one.tag) == (other.size, other.tag)


def _derive(path: str, entry: Entry) -> int:
    identity = [path] if entry.is_dir else [path, entry.size, entry.tag]
    return max(ROOT + 1, xxhash.xxh3_64_intdigest(msgspec.msgpack.encode(identity)) % _END)
