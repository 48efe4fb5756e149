"""An origin as fast as the machine: what the way through the mount costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fusestripe.units import GIB, MIB, format_size
from tests.bench.bare import Task, fetch
from tests.bench.case import Case, Options, Tell, take_turns
from tests.bench.lab import Lab
from tests.bench.peers import OTHERS, Fusestripe, Mount
from tests.bench.programs import PEERS
from tests.bench.reading import dd
from tests.bench.result import Figure, Result, Side, faster, times

__all__ = ["COLD", "MEMORY"]

STRIPE = 8 * MIB
COUNT = 16
OURS, BARE = "mount", "bare client"
OVERHEAD = 200 * MIB  # what the daemon may have resident beyond its budget


def run_cold(lab: Lab, options: Options, tell: Tell) -> Result:
    """Cold, cache on, against a bare client that keeps nothing and other mounts with their caches."""
    size = options.file_size(GIB, 128 * MIB)
    tell("storing a file")
    key = lab.stored(size).key
    endpoint = lab.server.endpoint
    cpu: dict[str, list[float]] = {OURS: [], BARE: []}

    def ours() -> float:
        with lab.scratch() as directory, Fusestripe(endpoint, directory) as mounted:
            before = mounted.cpu_seconds()
            seconds = dd(mounted.path / key, size)
            cpu[OURS].append((mounted.cpu_seconds() - before) / (size / 1e9))
        return size / seconds

    def bare() -> float:
        fetched = fetch(Task(endpoint, key, size, STRIPE, COUNT))
        cpu[BARE].append(fetched.cpu / (size / 1e9))
        return size / fetched.seconds

    def through(kind: type[Mount]) -> float:
        with lab.scratch() as directory, kind(endpoint, directory) as mounted:
            return size / dd(mounted.path / key, size)

    others = OTHERS if options.peers else ()
    measures: dict[str, Callable[[], float]] = {OURS: ours, BARE: bare}
    measures |= {kind.name: partial(through, kind) for kind in others}
    sides = take_turns(measures, options, tell)
    used = {name: Side(f"{name}, processor a GB", tuple(values), "s") for name, values in cpu.items()}
    return Result(
        case=COLD.name,
        title=f"{format_size(size)} over loopback, cold, cache on",
        sides=(*sides.values(), *used.values()),
        figures=(
            faster(sides[OURS], sides[BARE], options.pick(0.65, 0.1)),
            *(faster(sides[OURS], sides[kind.name], options.pick(2.0, 0.2)) for kind in others),
            times(used[OURS], used[BARE], options.pick(1.6, 10.0), "processor a GB, mount / bare client"),
        ),
        notes=(
            "server and clients share the machine's cores",
            "the daemon's processor time until the last byte is read; reading back comes later",
        ),
    )


def run_memory(lab: Lab, options: Options, tell: Tell) -> Result:
    """The most memory that the daemon has resident while it reads a file much larger than its budget."""
    budget = options.pick(GIB, 128 * MIB)
    size = options.file_size(4 * GIB, 512 * MIB)
    tell(f"storing a file of {format_size(size)}")
    key = lab.stored(size).key
    tell("reading it")
    with (
        lab.scratch() as directory,
        Fusestripe(lab.server.endpoint, directory, memory=budget) as mounted,
    ):
        rate = size / dd(mounted.path / key, size)
        peak = mounted.peak_memory()
    return Result(
        case=MEMORY.name,
        title=f"{format_size(size)} with --memory {format_size(budget)}, cold",
        sides=(Side("mount", (rate,)), Side("resident at most", (float(peak),), "B")),
        figures=(Figure("resident at most", peak, budget + OVERHEAD, "B", at_least=False),),
    )


COLD = Case(
    "cold", "what does the way through the mount cost where the origin costs nothing?", run_cold, peers=PEERS
)
MEMORY = Case("memory", "does the daemon keep its memory budget?", run_memory)
