"""An origin of which one answer in fifty stalls for ten seconds."""

from __future__ import annotations

from fusestripe.units import GIB, MIB
from tests.bench.case import Case, Options, Tell, take_turns
from tests.bench.lab import BUCKET, Lab
from tests.bench.peers import Fusestripe
from tests.bench.reading import dd
from tests.bench.result import Figure, Result, times
from tests.bench.shaped import COUNT, DELAY, RATE
from tests.support.proxy import Fault, Proxy

__all__ = ["STALLS"]

EVERY = 50
SECONDS = 10
CLEAN, STALLING = "mount", "mount, answers stall"
HEDGED_SHARE = 0.05


def run(lab: Lab, options: Options, tell: Tell) -> Result:
    """The time for a cold file with stalls and without, and how much was asked for a second time."""
    size = options.file_size(2 * GIB, 128 * MIB)
    stripe = options.pick(8 * MIB, MIB)
    tell("storing a file")
    key = lab.stored(size).key
    faults = stalls(key, size, stripe)
    shares: list[float] = []
    with Proxy(lab.server.endpoint, rate=RATE, delay=DELAY) as proxy:

        def read() -> float:
            with (
                lab.scratch() as directory,
                Fusestripe(proxy.endpoint, directory, stripe_count=COUNT, stripe_size=stripe) as mounted,
            ):
                seconds = dd(mounted.path / key, size)
                origin = mounted.daemon.status()["origin"]
            shares.append(origin["hedged"] / origin["bytes"])
            return seconds

        def clean() -> float:
            proxy.set_faults(())
            return read()

        def stalling() -> float:
            proxy.set_faults(faults)
            return read()

        sides = take_turns({CLEAN: clean, STALLING: stalling}, options, tell, "s")
    return Result(
        case=STALLS.name,
        title=f"every {EVERY}th answer stalls for {SECONDS} s, before its head or within its body, cold",
        sides=tuple(sides.values()),
        figures=(
            times(sides[STALLING], sides[CLEAN], options.pick(1.3, 8.0), "seconds, with stalls / without"),
            Figure("bytes asked for twice, at most", 100 * max(shares), 100 * HEDGED_SHARE, "%", False),
        ),
        notes=(f"12.5 MB/s a connection, 20 ms, {COUNT} stripes in flight",),
    )


def stalls(key: str, size: int, stripe: int) -> list[Fault]:
    """Every fiftieth GET of the object, by turns before the head and in the middle of the body."""
    match = f"GET /{BUCKET}/{key} "
    numbers = range(EVERY, 2 * (size // stripe), EVERY)
    places = (f"stall:{SECONDS}", f"stall:{SECONDS}:{stripe // 2}")
    return [Fault(places[turn % len(places)], match=match, nth=number) for turn, number in enumerate(numbers)]


STALLS = Case("stalls", "how much does it cost that a few answers stall?", run)
