"""What pages of keys mean as files and directories; the same for every store of keys. Pure.

How odd keys are shown: a key with a component that cannot be one (empty, ".", "..", over 255 bytes, NUL) is
hidden, and the directories before that component are shown; a key that ends in "/" makes a directory; a
name that is both a file and a directory is a directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from fusestripe.origins.base import Entry, is_component

__all__ = ["ListPage", "ListedObject", "byte_count", "children", "tree"]

_MOST = 2**63 - 1
"""Bytes: off_t holds no more."""


class ListedObject(msgspec.Struct, frozen=True):
    """One key. ``etag`` is what the store tells its versions apart by; ``mtime_ns`` is since the epoch."""

    key: str
    size: int
    mtime_ns: int
    etag: str

    def entry(self, name: str) -> Entry:
        """The file ``name`` that this key is."""
        return Entry(name, is_dir=False, size=self.size, mtime_ns=self.mtime_ns, tag=self.etag)


def byte_count(text: str) -> int:
    """The size that a listing has as ``text``. Raises ValueError where it is none that a file can have."""
    size = int(text)
    if not 0 <= size <= _MOST:
        raise ValueError(f"a size of {text[:30]}")
    return size


class ListPage(msgspec.Struct, frozen=True):
    """One answer: keys, common prefixes, and the token of the next page (None: this is the last)."""

    objects: list[ListedObject]
    prefixes: list[str]
    next_token: str | None

    @property
    def empty(self) -> bool:
        """Whether there is nothing, here or on a page to come."""
        return not self.objects and not self.prefixes and self.next_token is None

    @property
    def last(self) -> str:
        """The last key or prefix in the order of keys; "" where there is none."""
        return max((*(found.key for found in self.objects), *self.prefixes), default="")

    def last_of_tree(self, prefix: str) -> list[str]:
        """The last key or prefix in the order of a tree: its components below ``prefix``."""
        below = (key[len(prefix) :] for key in (*(found.key for found in self.objects), *self.prefixes))
        return max((key.split("/") for key in below), default=[])


def children(pages: Iterable[ListPage], prefix: str) -> Iterator[list[Entry]]:
    """What lies directly in the directory whose keys start with ``prefix``; ``pages`` have the delimiter "/".

    A file is held back until its name can no longer turn up as a directory, maybe on the next page: the key
    "a" comes before "a!" and that before "a/". Both orders of keys must have passed it, since a server does
    not say which is its own: by bytes, or by components as of one that walks a tree.
    """
    shown: set[str] = set()
    held: dict[str, Entry] = {}
    for page in pages:
        directories = {found[len(prefix) : -1] for found in page.prefixes if found.endswith("/")}
        entries = [Entry(name, is_dir=True) for name in sorted(directories - shown) if is_component(name)]
        shown |= directories
        files = ((found.key[len(prefix) :], found) for found in page.objects)
        held.update((name, found.entry(name)) for name, found in files if is_component(name))
        last, deepest = page.last[len(prefix) :], page.last_of_tree(prefix)
        for name in list(held):
            passed = name + "/" < last and [name, ""] < deepest
            if passed or page.next_token is None:
                entry = held.pop(name)
                if name not in shown:
                    entries.append(entry)
        if entries:
            yield entries


class _Pending:
    """Entries of a tree in the order of their keys, kept until no later key can say otherwise."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._last = ""

    def add(self, path: str, entry: Entry) -> None:
        """A directory counts only while nothing lies in it; what lies in a name makes that a directory."""
        inside = path + "/"
        if entry.is_dir and (
            self._last.startswith(inside) or any(p.startswith(inside) for p in self._entries)
        ):
            return
        for above in _ancestors(path):
            self._entries.pop(above, None)
        known = self._entries.get(path)
        if known is None or entry.is_dir:
            self._entries[path] = entry

    def settled(self, key: str | None) -> Iterator[tuple[str, Entry]]:
        """What is certain once ``key`` has come (None: the end)."""
        for path in list(self._entries):
            if key is None or not (key.startswith(path + "/") or key < path + "/"):
                self._last = path
                yield path, self._entries.pop(path)


def tree(pages: Iterable[ListPage], prefix: str) -> Iterator[list[tuple[str, Entry]]]:
    """Every file below the directory whose keys start with ``prefix``, from pages listed without a delimiter.

    A directory in which nothing is shown is an entry of its own. Keys of one directory come together, as in
    the order of S3 (by bytes) and in that of servers that walk a tree.
    """
    pending = _Pending()
    for page in pages:
        entries: list[tuple[str, Entry]] = []
        for found in page.objects:
            key = found.key[len(prefix) :]
            entries.extend(pending.settled(key))
            path, hidden = _visible(key)
            name = path.rpartition("/")[2]
            if path:
                pending.add(path, Entry(name, is_dir=True) if hidden else found.entry(name))
        if entries:
            yield entries
    rest = list(pending.settled(None))
    if rest:
        yield rest


def _visible(key: str) -> tuple[str, bool]:
    """The part of ``key`` before the first component that cannot be one, and whether there is such a one."""
    components = key.split("/")
    for index, component in enumerate(components):
        if not is_component(component):
            return "/".join(components[:index]), True
    return key, False


def _ancestors(path: str) -> Iterator[str]:
    while (cut := path.rfind("/")) >= 0:
        path = path[:cut]
        yield path
