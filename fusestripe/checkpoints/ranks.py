"""The global ranks that run on one node: as they are named, or as the job's environment tells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from fusestripe.errors import ConfigError
from fusestripe.slurm import expand_nodes

__all__ = ["Ranks", "parse_ranks", "ranks_of_node", "shown"]

_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")
_TASKS = re.compile(r"([0-9]{1,7})(?:\(x([0-9]{1,7})\))?")
_MEND = 'name them: --ranks 0-7, or "0-7/64" for 64 in all'

RANKS_MAXIMUM = 4096


class Ranks(msgspec.Struct, frozen=True):
    """Global ranks, in order, and of how many in all (None: unknown)."""

    ranks: tuple[int, ...]
    world: int | None = None

    def __str__(self) -> str:
        """ "ranks 0-7 of 64"."""
        return shown(self.ranks) + (f" of {self.world:,}" if self.world else "")


def shown(ranks: Iterable[int]) -> str:
    """``ranks``, which are in order, for people: "rank 3", "ranks 0-7, 9"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    text = ", ".join("-".join(map(str, run)) for run in runs)
    return f"rank{'' if len(runs) == 1 and len(runs[0]) == 1 else 's'} {text}"


def parse_ranks(text: str) -> Ranks:
    """The ranks in "0-7", "0,2,4-6" or "0-7/64", where 64 is the number of all. Raises ConfigError."""
    named, slash, world = text.partition("/")
    refused = ConfigError(f"{text!r} are no ranks", mend='write them like 0-7, 0,2,4 or "0-7/64"')
    ranks: set[int] = set()
    for piece in named.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise refused
        ranks.update(range(int(match[1]), min(int(match[2] or match[1]), int(match[1]) + RANKS_MAXIMUM) + 1))
        if len(ranks) > RANKS_MAXIMUM:
            raise ConfigError(f"{text!r} are too many ranks for one node", mend=_MEND)
    if not slash:
        return Ranks(tuple(sorted(ranks)))
    if not _RANGE.fullmatch(world) or "-" in world or int(world) <= max(ranks):
        raise refused
    return Ranks(tuple(sorted(ranks)), int(world))


def ranks_of_node(environ: Mapping[str, str]) -> Ranks:
    """The ranks of this node in the job whose environment is ``environ``: torchrun's, or Slurm's.

    A Prolog of Slurm is told the names of the nodes, and neither the number of this one nor the tasks: what
    it has is one process for each GPU of the job, as many on each node. Slurm is taken to number tasks node
    after node. Where it starts one task on each of several nodes, or on a node with several GPUs, that task
    is taken for a launcher of one process for each GPU. Raises ConfigError where the environment does not
    tell.
    """
    found = _of_torchrun(environ) or _of_slurm(environ)
    if found is None:
        raise ConfigError("the environment does not say which ranks run on this node", mend=_MEND)
    return found


def _of_torchrun(environ: Mapping[str, str]) -> Ranks | None:
    here, world = _number(environ, "LOCAL_WORLD_SIZE"), _number(environ, "WORLD_SIZE")
    if not here:
        return None
    rank, local, group = (_number(environ, name) for name in ("RANK", "LOCAL_RANK", "GROUP_RANK"))
    if rank is not None and local is not None and rank >= local:
        first = rank - local
    elif group is not None:
        first = group * here
    else:
        return None
    return _ranks(first, here, world)


def _of_slurm(environ: Mapping[str, str]) -> Ranks | None:
    node, nodes = _node(environ)
    if node is None:
        return None
    if environ.get("SLURM_DISTRIBUTION", "block").split(":")[0] not in ("block", "pack", "nopack", "*", ""):
        raise ConfigError("Slurm does not number this job's tasks node after node", mend=_MEND)
    gpus = _number(environ, "SLURM_GPUS_ON_NODE") or _count(environ.get("SLURM_JOB_GPUS", ""))
    tasks, each = _tasks(environ, nodes), _number(environ, "SLURM_NTASKS_PER_NODE")
    if gpus and set(tasks or [each or 1]) == {1}:
        return _ranks(node * gpus, gpus, gpus * nodes if nodes else None)
    if tasks is not None and node < len(tasks):
        return _ranks(sum(tasks[:node]), tasks[node], sum(tasks))
    return _ranks(node * each, each, each * nodes if nodes else None) if each else None


def _node(environ: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Which node of how many this is."""
    nodes = _number(environ, "SLURM_JOB_NUM_NODES") or _number(environ, "SLURM_NNODES")
    node = _number(environ, "SLURM_NODEID")
    listed, name = environ.get("SLURM_JOB_NODELIST", ""), environ.get("SLURMD_NODENAME", "")
    if node is not None or not listed or not name:
        return node, nodes
    names = expand_nodes(listed, _MEND)
    return (names.index(name) if name in names else None), len(names)


def _count(numbers: str) -> int:
    """How many there are in "0,1,2" or "0-3"; 0 where it is no such thing."""
    matches = [_RANGE.fullmatch(piece) for piece in numbers.split(",")]
    pairs = [(int(match[1]), int(match[2] or match[1])) for match in matches if match is not None]
    return sum(last - first + 1 for first, last in pairs) if len(pairs) == len(matches) else 0


def _tasks(environ: Mapping[str, str], nodes: int | None) -> list[int] | None:
    """Tasks on each node; None where that is not said."""
    counts: list[int] = []
    for piece in filter(None, environ.get("SLURM_TASKS_PER_NODE", "").split(",")):
        match = _TASKS.fullmatch(piece)
        if match is None:
            return None
        counts += [int(match[1])] * int(match[2] or 1)
    each = _number(environ, "SLURM_NTASKS_PER_NODE")
    return counts or ([each] * nodes if each and nodes else None)


def _ranks(first: int, count: int, world: int | None) -> Ranks | None:
    if count < 1 or (world is not None and world < first + count):
        return None
    return Ranks(tuple(range(first, first + count)), world)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else None
