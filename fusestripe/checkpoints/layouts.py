"""All layouts at once: the parts of a checkpoint, what is missing from them, and what some ranks need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fusestripe.checkpoints import dcp, deepspeed, huggingface, megatron
from fusestripe.checkpoints.indexes import Unreadable, lacking
from fusestripe.checkpoints.parts import Directories, Files, Local, Part, by_directory
from fusestripe.checkpoints.ranks import Ranks

__all__ = ["Named", "layout_of", "missing_from", "needed_by", "parts_of"]

Named = Mapping[str, "dict[str, int] | Unreadable"]
"""What each index names, by its path: files, and how long each is at least."""

_FINDERS = (megatron.find, deepspeed.find, dcp.find, huggingface.find)
_SPARED: Mapping[str, Callable[[str, Directories, Ranks], Local]] = {
    dcp.NAME: dcp.spared,
    deepspeed.NAME: deepspeed.spared,
    megatron.NAME: megatron.spared,
}


def parts_of(files: Files) -> list[Part]:
    """The parts of the checkpoint with these files; none where no layout is known."""
    directories = by_directory(files)
    return [part for find in _FINDERS for part in find(directories)]


def layout_of(parts: Sequence[Part]) -> str:
    """The name for people: of each layout once, in the order of parts; "" for none."""
    return ", ".join(dict.fromkeys(part.layout for part in parts))


def missing_from(parts: Sequence[Part], files: Files, named: Named) -> str:
    """Why the checkpoint is not whole, in a few words; "" where it is, as far as one can tell."""
    for part in parts:
        if part.lack:
            return part.lack
    for part in parts:
        for index in part.indexes:
            names = named[index.path]
            lack = f"{index.path} {names}" if isinstance(names, Unreadable) else lacking(index, names, files)
            if lack:
                return lack
    return ""


def needed_by(parts: Sequence[Part], files: Files, ranks: Ranks) -> Local:
    """What ``ranks`` can do without, of all parts together."""
    directories = by_directory(files)
    spared: frozenset[str] = frozenset()
    reasons = []
    for part in parts:
        find = _SPARED.get(part.layout)
        if find is None:
            reasons.append(f"{part.layout} does not say which rank reads what")
            continue
        local = find(part.directory, directories, ranks)
        spared |= local.spared
        if local.why_all:
            reasons.append(local.why_all)
    if not parts:
        reasons.append("it is of no layout that is known")
    return Local(spared, "; ".join(dict.fromkeys(reasons)))
