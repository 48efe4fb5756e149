"""An origin as they are: each connection slow, many connections fast."""

from __future__ import annotations

from fusestripe.units import GIB, MIB
from tests.bench.case import Case, Options, Tell, take_turns
from tests.bench.lab import BUCKET, Lab
from tests.bench.peers import Fusestripe
from tests.bench.reading import dd, fetch_striped, fetch_whole
from tests.bench.result import Result, faster
from tests.support.proxy import Proxy

__all__ = ["DELAY", "RATE", "SHAPED"]

RATE = 12.5e6  # bytes/s a connection: 100 Mb/s
DELAY = 0.020  # seconds to the first byte
COUNT = 16
PLAIN_PART = 64 * MIB  # what the one stream reads; its rate is what counts


def run(lab: Lab, options: Options, tell: Tell) -> Result:
    """Cold, cache on, against a bare client with as many ranges in flight, and against one plain stream."""
    size = options.file_size(GIB, 192 * MIB)
    stripe = options.pick(8 * MIB, 2 * MIB)
    part = min(size, options.pick(PLAIN_PART, 16 * MIB))
    tell("storing a file")
    key = lab.stored(size).key
    with Proxy(lab.server.endpoint, rate=RATE, delay=DELAY) as proxy:

        def mount() -> float:
            with (
                lab.scratch() as directory,
                Fusestripe(proxy.endpoint, directory, stripe_count=COUNT, stripe_size=stripe) as mounted,
            ):
                return size / dd(mounted.path / key, size)

        def bare() -> float:
            store = lab.server.store(BUCKET, proxy.endpoint)
            return size / fetch_striped(store, key, size, stripe=stripe, in_flight=COUNT)

        def plain() -> float:
            return part / fetch_whole(lab.server.store(BUCKET, proxy.endpoint), key, part)

        sides = take_turns({"mount": mount, "bare client": bare, "one stream": plain}, options, tell)
    return Result(
        case=SHAPED.name,
        title=f"12.5 MB/s a connection, 20 ms to the first byte, {COUNT} stripes in flight, cold",
        sides=tuple(sides.values()),
        figures=(
            faster(sides["mount"], sides["bare client"], options.pick(0.95, 0.6)),
            faster(sides["mount"], sides["one stream"], options.pick(12.0, 6.0)),
        ),
    )


SHAPED = Case("shaped", "how near to sixteen connections is the mount, and how far from one?", run)
