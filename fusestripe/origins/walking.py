"""Walking a tree where a store can list one directory at a time and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fusestripe.origins.base import Entry

__all__ = ["walk_directories"]


def walk_directories(
    list_dir: Callable[[str], Iterator[list[Entry]]], path: str, entry_of: Callable[[str], Entry]
) -> Iterator[list[tuple[str, Entry]]]:
    """Like ``Origin.walk`` below ``path``, by ``list_dir`` of each directory.

    ``entry_of`` gives the entry of a directory that holds nothing, by its path relative to ``path``.
    """
    waiting = [""]
    while waiting:
        below = waiting.pop()
        empty = True
        for page in list_dir("/".join(part for part in (path, below) if part)):
            empty = False
            named = [(f"{below}/{entry.name}" if below else entry.name, entry) for entry in page]
            waiting.extend(inner for inner, entry in named if entry.is_dir)
            if files := [(inner, entry) for inner, entry in named if not entry.is_dir]:
                yield files
        if empty and below:
            yield [(below, entry_of(below))]
