"""What the layouts have in common: a part is what one layout has in one directory of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

__all__ = ["Directories", "Files", "Index", "Kind", "Local", "Part", "by_directory", "empty_of", "joined"]

Files: TypeAlias = Mapping[str, int]
"""Sizes in bytes by path, or by name in one directory."""
Directories: TypeAlias = Mapping[str, Files]
"""The files of each directory that has some, by its path; "" is the checkpoint's own."""
Kind = Literal["dcp", "json", "tag"]


class Index(msgspec.Struct, frozen=True):
    """A small file at ``path`` that names others of its part: a pickle of torch's ("dcp"), the index of
    safetensors ("json"), or a line with the name of a directory ("tag").
    """

    path: str
    kind: Kind


class Part(msgspec.Struct, frozen=True):
    """What ``layout`` has in ``directory``. ``lack`` is what the names alone show to be missing, or "".

    ``indexes`` have to be read to know the rest.
    """

    layout: str
    directory: str
    lack: str = ""
    indexes: tuple[Index, ...] = ()


class Local(msgspec.Struct, frozen=True):
    """What some ranks can do without: paths. ``why_all`` says why it is nothing where names do not tell."""

    spared: frozenset[str] = frozenset()
    why_all: str = ""


def by_directory(files: Files) -> dict[str, dict[str, int]]:
    """``files`` by the directory they are in."""
    directories: dict[str, dict[str, int]] = {}
    for path, size in files.items():
        directory, _, name = path.rpartition("/")
        directories.setdefault(directory, {})[name] = size
    return directories


def joined(directory: str, name: str) -> str:
    """The path of ``name`` in ``directory``."""
    return f"{directory}/{name}" if directory else name


def empty_of(names: Iterable[str], files: Files) -> Iterator[str]:
    """Those of ``names`` that have no byte yet."""
    return (name for name in names if files[name] == 0)
