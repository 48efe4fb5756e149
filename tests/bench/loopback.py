"""An origin as fast as the machine: what the way through the mount costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fusestripe.units import GIB, MIB, format_size
from tests.bench.case import Case, Options, Tell, take_turns
from tests.bench.lab import BUCKET, Lab
from tests.bench.peers import OTHERS, Fusestripe, Mount
from tests.bench.programs import PEERS
from tests.bench.reading import dd, fetch_striped
from tests.bench.result import Figure, Result, Side, faster

__all__ = ["COLD", "MEMORY"]

STRIPE = 8 * MIB
COUNT = 16
OVERHEAD = 200 * MIB  # what the daemon may have resident beyond its budget


def run_cold(lab: Lab, options: Options, tell: Tell) -> Result:
    """Cold, cache on, against a bare client that keeps nothing and other mounts with their caches."""
    size = options.file_size(GIB, 128 * MIB)
    tell("storing a file")
    key = lab.stored(size).key
    endpoint = lab.server.endpoint

    def through(kind: Callable[[str, Path], Mount]) -> Callable[[], float]:
        def measure() -> float:
            with lab.scratch() as directory, kind(endpoint, directory) as mounted:
                return size / dd(mounted.path / key, size)

        return measure

    def bare() -> float:
        store = lab.server.store(BUCKET)
        return size / fetch_striped(store, key, size, stripe=STRIPE, in_flight=COUNT)

    others = OTHERS if options.peers else ()
    measures = {"mount": through(Fusestripe), "bare client": bare}
    measures |= {kind.name: through(kind) for kind in others}
    sides = take_turns(measures, options.rounds, tell)
    against = [faster(sides["mount"], sides[kind.name], options.pick(1.0, 0.2)) for kind in others]
    return Result(
        case=COLD.name,
        title=f"{format_size(size)} over loopback, cold, cache on",
        sides=tuple(sides.values()),
        figures=(faster(sides["mount"], sides["bare client"], options.pick(0.5, 0.1)), *against),
        notes=("server and clients share the machine's cores",),
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
