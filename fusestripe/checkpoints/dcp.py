"""torch.distributed.checkpoint: `.metadata`, which names the files, and `__{rank}_{number}.distcp`.

`.metadata` is written last, and renamed into its place. Where ranks save without each other, each has a
`__{rank}.metadata`. Megatron's torch_dist has the same files, with some beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fusestripe.checkpoints.parts import Directories, Files, Index, Local, Part, joined
from fusestripe.checkpoints.ranks import Ranks, shown

__all__ = ["METADATA", "NAME", "find", "needs_metadata", "spared"]

NAME = "torch.distributed.checkpoint"
_DATA = re.compile(r"__([0-9]+)_[0-9]+\.distcp")
_OF_RANK = re.compile(r"__([0-9]+)\.metadata")
METADATA = ".metadata"


def find(directories: Directories) -> list[Part]:
    """The parts of this layout."""
    return [
        _part(directory, files)
        for directory, files in directories.items()
        if any(name == METADATA or _DATA.fullmatch(name) or _OF_RANK.fullmatch(name) for name in files)
    ]


def _part(directory: str, files: Files) -> Part:
    if METADATA in files:
        return Part(NAME, directory, indexes=(Index(joined(directory, METADATA), "dcp"),))
    own = _ranks_in(files, _OF_RANK)
    if not own:
        return Part(NAME, directory, lack=f"{joined(directory, METADATA)} is missing")
    last = max(own | _ranks_in(files, _DATA))
    for rank in range(last + 1):
        if rank not in own:
            return Part(NAME, directory, lack=f"{joined(directory, f'__{rank}.metadata')} is missing")
    names = (joined(directory, f"__{rank}.metadata") for rank in sorted(own))
    return Part(NAME, directory, indexes=tuple(Index(name, "dcp") for name in names))


def needs_metadata(names: Iterable[str]) -> bool:
    """Whether a directory with these has files of data, and not what tells of them."""
    names = set(names)
    return METADATA not in names and any(map(_DATA.fullmatch, names))


def spared(directory: str, directories: Directories, ranks: Ranks) -> Local:
    """The files that other ranks wrote: each rank is taken to read what it wrote, in as many processes."""
    files = directories[directory]
    writers = _ranks_in(files, _DATA)
    world = max(writers, default=-1) + 1
    if ranks.world is not None and ranks.world != world:
        return Local(why_all=f"{world:,} ranks wrote it and {ranks.world:,} read it")
    strangers = [rank for rank in ranks.ranks if rank not in writers]
    if strangers:
        return Local(why_all=f"{shown(strangers)} wrote no file of it")
    wanted = set(ranks.ranks)
    return Local(
        frozenset(
            joined(directory, name)
            for name in files
            if (match := _DATA.fullmatch(name)) is not None and int(match[1]) not in wanted
        )
    )


def _ranks_in(files: Files, pattern: re.Pattern[str]) -> set[int]:
    return {int(match[1]) for name in files if (match := pattern.fullmatch(name)) is not None}
