"""Origins of several shapes: is the number in flight that the mount finds as good as the best fixed one?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from fusestripe.units import GIB, MIB
from tests.bench.bare import Task, start_fetch
from tests.bench.case import Case, Options, Tell, take_turns
from tests.bench.flow import Window, watch
from tests.bench.lab import Lab
from tests.bench.peers import Fusestripe
from tests.bench.reading import start_dd
from tests.bench.result import Figure, Result, Side, faster
from tests.support.proxy import Proxy

__all__ = ["TUNED"]

STRIPE = 8 * MIB
MEMORY = GIB
COUNTS = (8, 16, 32, 64)
FOUND = -1  # stripe_count: find it


class Shape(msgspec.Struct, frozen=True):
    """An origin: bytes a second of a connection and of all, seconds to the first byte; 0: no limit."""

    name: str
    rate: float
    delay: float
    total_rate: float = 0.0


FIRST = Shape("12.5 MB/s, 30 ms", 12.5e6, 0.030)
OTHERS = (
    Shape("10 MB/s, 100 ms", 10e6, 0.100),
    Shape("100 MB/s, 5 ms", 100e6, 0.005),
    Shape("200 MB/s in all", 0.0, 0.0, 200e6),
)


class Reading(msgspec.Struct, frozen=True):
    """What each side reads, when it is judged, and the fixed numbers among which the best is searched."""

    key: str
    size: int
    window: Window
    counts: tuple[int, ...]
    options: Options


def run(lab: Lab, options: Options, tell: Tell) -> Result:
    """The first shape against the bare client, the others against the mount itself with fixed numbers."""
    size = options.file_size(8 * GIB, 384 * MIB)
    tell("storing a file")
    reading = Reading(
        key=lab.stored(size).key,
        size=size,
        window=options.pick(Window(3.0, 9.0), Window(0.3, 1.0)),
        counts=options.pick(COUNTS, COUNTS[:2]),
        options=options,
    )
    sides, figures = _measure(lab, reading, FIRST, _bare, "bare client", options.pick(0.95, 0.2), tell)
    for shape in options.pick(OTHERS, OTHERS[-1:]):
        more, judged = _measure(lab, reading, shape, _mount, "mount", options.pick(0.9, 0.2), tell)
        sides, figures = [*sides, *more], [*figures, *judged]
    window = reading.window
    return Result(
        case=TUNED.name,
        title=f"the number in flight as found, from second {window.since:g} to {window.until:g}, cold",
        sides=tuple(sides),
        figures=tuple(figures),
        notes=(
            f"the best fixed number is that of one search over {', '.join(map(str, reading.counts))}",
            "fixed: the bare client for the first shape, the mount for the others",
            "what passes the proxy, less what is asked for a second time",
        ),
    )


def _measure(
    lab: Lab,
    reading: Reading,
    shape: Shape,
    fixed: Callable[[Lab, Proxy, Reading, int], float],
    name: str,
    wanted: float,
    tell: Tell,
) -> tuple[list[Side], list[Figure]]:
    """Search with ``fixed``, and take turns with the best."""
    with Proxy(lab.server.endpoint, rate=shape.rate, total_rate=shape.total_rate, delay=shape.delay) as proxy:
        searched: dict[int, float] = {}
        for count in reading.counts:
            tell(f"{shape.name}: {name} with {count} in flight")
            searched[count] = fixed(lab, proxy, reading, count)
        best = max(searched, key=searched.__getitem__)
        ours, theirs = f"mount, {shape.name}", f"{name}, {best}, {shape.name}"
        sides = take_turns(
            {
                ours: partial(_mount, lab, proxy, reading, FOUND),
                theirs: partial(fixed, lab, proxy, reading, best),
            },
            reading.options,
            tell,
        )
    others = [
        Side(f"{name}, {count}, {shape.name}", (rate,)) for count, rate in searched.items() if count != best
    ]
    figure = faster(sides[ours], sides[theirs], wanted, f"found / best fixed, {shape.name}")
    return [*sides.values(), *others], [figure]


def _mount(lab: Lab, proxy: Proxy, reading: Reading, count: int) -> float:
    settings = {"stripe_count": count, "stripe_size": STRIPE, "memory": MEMORY}
    with lab.scratch() as directory, Fusestripe(proxy.endpoint, directory, **settings) as mounted:
        proxy.reset()
        flow = watch(proxy, start_dd(mounted.path / reading.key), reading.window)
        hedged = mounted.daemon.status()["origin"]["hedged"]
    if flow.unread > MEMORY + hedged:
        raise RuntimeError(f"{flow.unread} bytes came that nobody read, more than the memory holds")
    return (flow.bytes - float(hedged)) / flow.seconds


def _bare(_lab: Lab, proxy: Proxy, reading: Reading, count: int) -> float:
    proxy.reset()
    task = Task(proxy.endpoint, reading.key, reading.size, STRIPE, count)
    flow = watch(proxy, start_fetch(task), reading.window)
    return flow.bytes / flow.seconds


TUNED = Case("tuned", "does the mount find how many stripes to have in flight?", run)
