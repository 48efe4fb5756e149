"""Many readers of one cold file: threads on one descriptor, and processes."""

from __future__ import annotations

from functools import partial

import msgspec

from fusestripe.units import GIB, MIB, format_size
from tests.bench.case import Case, Options, Tell, take_turns
from tests.bench.lab import Lab
from tests.bench.peers import Fusestripe
from tests.bench.reading import dd_at_once, read_regions
from tests.bench.result import Figure, Result, Side, faster
from tests.bench.shaped import COUNT, DELAY, RATE
from tests.support.proxy import Proxy

__all__ = ["INTERLEAVED", "SIXTEEN"]

THREADS = 8
PROCESSES = 16
TWICE = 1.02  # of the file's bytes, what the origin may be asked for


class _Origin(msgspec.Struct, frozen=True):
    """What the readers are in front of: bytes a second of a connection (0: no limit), seconds of delay."""

    name: str
    rate: float
    delay: float


ORIGINS = (_Origin("12.5 MB/s, 20 ms", RATE, DELAY), _Origin("loopback", 0.0, 0.0))


def run_interleaved(lab: Lab, options: Options, tell: Tell) -> Result:
    """Eight threads on one descriptor, each with a region of its own, against one reader in order."""
    size = options.file_size(GIB, 128 * MIB)
    stripe = options.pick(8 * MIB, 2 * MIB)
    tell("storing a file")
    key = lab.stored(size).key

    def measure(proxy: Proxy, threads: int) -> float:
        with (
            lab.scratch() as directory,
            Fusestripe(proxy.endpoint, directory, stripe_count=COUNT, stripe_size=stripe) as mounted,
        ):
            return size / read_regions(mounted.path / key, size, threads)

    sides: dict[str, Side] = {}
    figures = []
    for origin in ORIGINS:
        one, many = f"one reader, {origin.name}", f"{THREADS} threads, {origin.name}"
        with Proxy(lab.server.endpoint, rate=origin.rate, delay=origin.delay) as proxy:
            measures = {many: partial(measure, proxy, THREADS), one: partial(measure, proxy, 1)}
            sides |= take_turns(measures, options, tell)
        name = f"{THREADS} threads / one, {origin.name}"
        figures.append(faster(sides[many], sides[one], options.pick(0.9, 0.2), name))
    return Result(
        case=INTERLEAVED.name,
        title=f"{format_size(size)}, {THREADS} threads on one descriptor, each in its own region, cold",
        sides=tuple(sides.values()),
        figures=tuple(figures),
        notes=(f"{COUNT} stripes in flight",),
    )


def run_sixteen(lab: Lab, options: Options, tell: Tell) -> Result:
    """Sixteen processes read one cold file at once, against one that does."""
    size = options.file_size(GIB, 64 * MIB)
    tell("storing a file")
    key = lab.stored(size).key
    asked: list[float] = []
    with Proxy(lab.server.endpoint) as proxy:

        def measure(processes: int) -> float:
            with lab.scratch() as directory, Fusestripe(proxy.endpoint, directory) as mounted:
                proxy.reset()
                rate = processes * size / dd_at_once(mounted.path / key, size, processes)
                asked.append(proxy.statistics().bytes_sent / size)
            return rate

        one, many = "one process", f"{PROCESSES} processes, all together"
        measures = {many: partial(measure, PROCESSES), one: partial(measure, 1)}
        sides = take_turns(measures, options, tell)
    return Result(
        case=SIXTEEN.name,
        title=f"{format_size(size)} over loopback, {PROCESSES} processes at once, cold",
        sides=tuple(sides.values()),
        figures=(
            Figure("the origin's bytes / the file's", max(asked), TWICE, at_least=False),
            faster(sides[many], sides[one], options.pick(0.9, 0.3), f"{PROCESSES} processes / one"),
        ),
        notes=(
            "a proxy that only counts is before the server",
            "the origin's bytes: of all rounds the most",
        ),
    )


INTERLEAVED = Case("interleaved", "are eight threads on one descriptor eight readers?", run_interleaved)
SIXTEEN = Case("sixteen", "what do sixteen readers of one file cost the origin?", run_sixteen)
