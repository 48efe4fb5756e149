"""Recognising that someone walks a whole tree, and listing it in one go instead. Pure.

`ls -R`, find and rsync list directory after directory; an object store lists a thousand keys a request,
however many directories they lie in.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from fusestripe.origins.base import Entry

__all__ = ["STEPS", "WALK_PAGES", "common_parent", "directories_of"]

# Listings of one tree after which someone is taken to walk it.
STEPS = 3
# Pages spent on one tree before it is taken to be too large to list at once.
WALK_PAGES = 20


def common_parent(paths: Iterable[str]) -> str:
    """The deepest directory that contains or is each of ``paths``."""
    parts = [path.split("/") if path else [] for path in paths]
    common = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return "/".join(common)


def directories_of(
    pages: Iterable[list[tuple[str, Entry]]], limit: int
) -> dict[str, dict[str, Entry]] | None:
    """The entries of every directory in the tree that ``pages`` list ("" is its top), by path.

    None where there are more than ``limit`` pages.
    """
    directories: dict[str, dict[str, Entry]] = {"": {}}
    pages = iter(pages)
    for page in islice(pages, limit):
        for path, entry in page:
            parent, _, name = path.rpartition("/")
            _directory(directories, parent)[name] = entry
            if entry.is_dir:
                _directory(directories, path)
    return directories if next(pages, None) is None else None


def _directory(directories: dict[str, dict[str, Entry]], path: str) -> dict[str, Entry]:
    found = directories.get(path)
    if found is None:
        found = directories[path] = {}
        parent, _, name = path.rpartition("/")
        _directory(directories, parent)[name] = Entry(name=name, is_dir=True)
    return found
