"""Which directory is the newest checkpoint: by the numbers in the names, and by what a tracker file says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import msgspec

from fusestripe.checkpoints.deepspeed import LATEST
from fusestripe.checkpoints.indexes import tag_of
from fusestripe.checkpoints.megatron import TRACKER, iteration_of

__all__ = ["LATEST", "TRACKERS", "Tracker", "are_alike", "is_named_so", "order", "tracked"]

_NUMBER = re.compile(r"[0-9]+")
_TEMPORARY = re.compile(r"(^|[-_.])(tmp|temp|temporary|partial|incomplete)([-_.]|$)|^\.", re.IGNORECASE)
_SAYS_SO = re.compile(r"(?<![a-z])(global_?)?(ckpt|checkpoint|epoch|iter|step)[-_=a-z]*[0-9]", re.IGNORECASE)

TRACKERS: Mapping[str, Callable[[bytes], str]] = {LATEST: tag_of, TRACKER: iteration_of}
"""Files that name the newest checkpoint beside them once it is whole, and how they are read."""


class Tracker(msgspec.Struct, frozen=True):
    """The file ``name`` says that ``directory`` is the newest checkpoint that is whole."""

    name: str
    directory: str


def order(names: Iterable[str]) -> list[str]:
    """Those of ``names`` that have a number in them, the newest first; not those that say they are temporary.

    By all their numbers where they differ in nothing else (epoch=3-step=100, 2026-11-30), else by the last.
    """
    numbered = [name for name in names if _NUMBER.search(name) and not _TEMPORARY.search(name)]
    alike = len({_skeleton(name) for name in numbered}) <= 1

    def key(name: str) -> tuple[list[int], str]:
        numbers = [int(number) for number in _NUMBER.findall(name)]
        return (numbers if alike else numbers[-1:]), name

    return sorted(numbered, key=key, reverse=True)


def tracked(names: Iterable[str], tracker: Tracker) -> tuple[list[str], list[str]]:
    """Those of ``names`` that are newer than what the tracker names, and the others, the newest first.

    Only those that are named like it count.
    """
    wanted = tracker.directory
    if not _NUMBER.search(wanted):
        return order(name for name in names if name != wanted), [name for name in names if name == wanted]
    ordered = order({wanted, *(name for name in names if _skeleton(name) == _skeleton(wanted))})
    place = ordered.index(wanted)
    return ordered[:place], ordered[place:]


def are_alike(name: str, other: str) -> bool:
    """Whether they differ in their numbers alone."""
    return _skeleton(name) == _skeleton(other)


def is_named_so(name: str) -> bool:
    """Whether it says itself that it is a checkpoint."""
    return _SAYS_SO.search(name) is not None


def _skeleton(name: str) -> str:
    return _NUMBER.sub("#", name)
