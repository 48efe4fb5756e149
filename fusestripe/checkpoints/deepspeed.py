"""DeepSpeed: a directory for each tag (`global_step9000`), and `latest`, written last, that names one.

In it are `mp_rank_{mp}_model_states.pt` (with ZeRO stage 3 `zero_pp_rank_{dp}_mp_rank_{mp}_model_states.pt`)
and `[bf16_]zero_pp_rank_{dp}_mp_rank_{mp}_optim_states.pt`, where dp counts the ranks that share the
optimizer's state. With experts there is `expp_rank_{n}_mp_rank_{mp}_optim_states.pt`; with pipelines
`layer_{n}-model_{mp}-model_states.pt`, and mp counts pipelines too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from fusestripe.checkpoints.indexes import NAMES_MAXIMUM
from fusestripe.checkpoints.parts import Directories, Files, Index, Local, Part, empty_of, joined
from fusestripe.checkpoints.ranks import Ranks

__all__ = ["LATEST", "NAME", "find", "spared"]

NAME = "DeepSpeed"
LATEST = "latest"
_SHARD = re.compile(
    r"(?P<of>(?:bf16_|fp16_)?zero_pp_rank_|expp_rank_)?(?(of)(?P<dp>[0-9]+)_)mp_rank_(?P<mp>[0-9]+)"
    r"(?P<kind>_model_states\.pt|_?optim_states\.pt)"
)
_LAYER = re.compile(r"layer_[0-9]+-.*model_states\.pt")


class _Set:
    """The shards of one directory: by their kind, which (dp, mp) there are; dp is -1 where there is none."""

    def __init__(self, files: Files) -> None:
        self.kinds: dict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)
        self.names: dict[str, tuple[int, int]] = {}
        for name in files:
            match = _SHARD.fullmatch(name)
            if match is not None:
                place = int(match["dp"] or -1), int(match["mp"])
                self.kinds[match["of"] or "", match["kind"]].add(place)
                self.names[name] = place
        places = [place for kind, places in self.kinds.items() if kind[0] != "expp_rank_" for place in places]
        self.dp_size = max((dp for dp, _ in places), default=-1) + 1
        self.mp_size = max((mp for _, mp in self.names.values()), default=-1) + 1

    def missing(self) -> Iterator[str]:
        """The names that belong to the set and are not there."""
        for (of, kind), places in sorted(self.kinds.items()):
            dps = range(max(dp for dp, _ in places) + 1) if of == "expp_rank_" else range(self.dp_size)
            for dp in dps if of else (-1,):
                for mp in range(self.mp_size):
                    if (dp, mp) not in places:
                        yield f"{of}{dp}_mp_rank_{mp:02d}{kind}" if of else f"mp_rank_{mp:02d}{kind}"
        if not any("model" in kind for _, kind in self.kinds):
            yield "mp_rank_00_model_states.pt"


def find(directories: Directories) -> list[Part]:
    """The parts of this layout."""
    parts = []
    with_shards = [path for path, files in directories.items() if any(map(_SHARD.fullmatch, files))]
    for directory, files in directories.items():
        shards = _Set(files)
        if shards.names:
            absent = next(shards.missing(), None)
            empty = next(empty_of(sorted(shards.names), files), None)
            lack = f"{joined(directory, absent)} is missing" if absent else ""
            lack = lack or (f"{joined(directory, empty)} is empty" if empty else "")
            parts.append(Part(NAME, directory, lack))
        inside = joined(directory, "")
        is_above = any(other != directory and other.startswith(inside) for other in with_shards)
        if is_above and files.get(LATEST, NAMES_MAXIMUM + 1) <= NAMES_MAXIMUM:
            parts.append(Part(NAME, directory, indexes=(Index(joined(directory, LATEST), "tag"),)))
    return parts


def spared(directory: str, directories: Directories, ranks: Ranks) -> Local:
    """The shards of other ranks: rank = dp * (number of mp) + mp, in as many processes as saved it."""
    files = directories[directory]
    shards = _Set(files)
    if not shards.names:
        return Local()
    if shards.mp_size > 1 and any(_LAYER.fullmatch(name) for name in files):
        return Local(why_all="names of pipelines do not tell which rank reads what")
    if not shards.dp_size:
        if shards.mp_size == 1:
            return Local()  # one file for everybody
        places = {(-1, rank % shards.mp_size) for rank in ranks.ranks}
    else:
        world = shards.dp_size * shards.mp_size
        if (ranks.world or world) != world or max(ranks.ranks) >= world:
            reader = f"{ranks.world:,} read it" if ranks.world else f"rank {max(ranks.ranks):,} reads it"
            return Local(why_all=f"{world:,} ranks wrote it and {reader}")
        places = {(rank // shards.mp_size, rank % shards.mp_size) for rank in ranks.ranks}
    mps = {mp for _, mp in places}
    return Local(
        frozenset(
            joined(directory, name)
            for name, (dp, mp) in shards.names.items()
            if not (mp in mps if dp == -1 or name.startswith("expp_rank_") else (dp, mp) in places)
        )
    )
