"""Megatron-LM: `iter_0000123/`, and `latest_checkpointed_iteration.txt`, written last, with the number.

In the old format there is a directory for each piece of the model, `mp_rank_{tp}` or `mp_rank_{tp}_{pp}`,
and with experts one number more. With torch_dist the files are those of torch.distributed.checkpoint.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from fusestripe.checkpoints.parts import Directories, Local, Part, joined
from fusestripe.checkpoints.ranks import Ranks

__all__ = ["NAME", "TRACKER", "find", "iteration_of", "spared"]

NAME = "Megatron"
TRACKER = "latest_checkpointed_iteration.txt"
_PIECE = re.compile(r"mp_rank_([0-9]+)(?:_([0-9]+))?(?:_([0-9]+))?")
_ITERATION = re.compile(r"\s*([0-9]{1,12})\s*")

Place = tuple[int, ...]


def iteration_of(data: bytes) -> str:
    """The directory that the tracker names: of an iteration, or "release"; "" for neither."""
    text = data.decode("ascii", "replace")
    number = _ITERATION.fullmatch(text)
    if number is not None:
        return f"iter_{int(number[1]):07d}"
    return "release" if text.strip() == "release" else ""


def find(directories: Directories) -> list[Part]:
    """The parts of this layout; the directory of each is that above the pieces."""
    return [
        Part(NAME, above, next(_lacks(above, pieces, directories), ""))
        for above, pieces in _pieces(directories).items()
    ]


def _pieces(directories: Directories) -> dict[str, dict[Place, str]]:
    """The pieces below each directory: their paths by their numbers."""
    found: dict[str, dict[Place, str]] = defaultdict(dict)
    for path in directories:
        above, _, name = path.rpartition("/")
        match = _PIECE.fullmatch(name)
        if match is not None:
            found[above][tuple(int(number) for number in match.groups() if number is not None)] = path
    return found


def _lacks(above: str, pieces: dict[Place, str], directories: Directories) -> Iterator[str]:
    for length in sorted({len(place) for place in pieces}):
        alike = {place: path for place, path in pieces.items() if len(place) == length}
        names = sorted({name for path in alike.values() for name in directories[path]})
        sizes = [max(place[axis] for place in alike) + 1 for axis in range(length)]
        if math.prod(sizes) > len(alike):  # names may have any number in them: nothing is made for each
            gap = next(place for place in _places(sizes) if place not in alike)
            yield f"{joined(above, _name_of(gap))} is missing"
        for _, path in sorted(alike.items()):
            for name in names:
                size = directories[path].get(name)
                if not size:
                    yield f"{path}/{name} is {'missing' if size is None else 'empty'}"


def _places(sizes: Sequence[int]) -> Iterator[Place]:
    """All places below ``sizes``, the last number fastest; one at a time."""
    if not sizes:
        yield ()
        return
    for first in range(sizes[0]):
        for others in _places(sizes[1:]):
            yield (first, *others)


def _name_of(place: Place) -> str:
    first, *others = place
    return "_".join((f"mp_rank_{first:02d}", *(f"{number:03d}" for number in others)))


def spared(directory: str, directories: Directories, ranks: Ranks) -> Local:
    """The pieces of other ranks, in Megatron's usual order: tp innermost, pp outermost."""
    pieces = _pieces(directories)[directory]
    lengths = {len(place) for place in pieces}
    if len(lengths) > 1 or max(lengths) > 2:
        return Local(why_all="names with experts do not tell which rank reads what")
    tp_size = max(place[0] for place in pieces) + 1
    pp_size = max((place[1] for place in pieces if len(place) > 1), default=0) + 1
    if pp_size > 1 and ranks.world is None:
        return Local(
            why_all="which pipeline a rank is in follows from the number of all ranks: --ranks 0-7/64"
        )
    world = ranks.world or tp_size
    if world % (tp_size * pp_size):
        return Local(why_all=f"{world:,} ranks are not a multiple of {tp_size} x {pp_size}")
    each = world // pp_size
    wanted = {(rank % tp_size, rank // each if pp_size > 1 else 0) for rank in ranks.ranks}
    return Local(
        frozenset(
            f"{path}/{name}"
            for place, path in pieces.items()
            if (place[0], place[1] if len(place) > 1 else 0) not in wanted
            for name in directories[path]
        )
    )
