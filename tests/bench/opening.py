"""Opening a file and its first byte, on an origin that is far away: counted in round trips."""

from __future__ import annotations

from fusestripe.units import MIB
from tests.bench.case import Case, Options, Tell
from tests.bench.lab import BUCKET, Lab, StoredObject, write_random
from tests.bench.peers import Fusestripe
from tests.bench.reading import first_bytes_bare, open_and_read
from tests.bench.result import Figure, Result, Side, slowness
from tests.bench.shaped import RATE
from tests.support.proxy import Proxy

__all__ = ["OPEN"]

DELAY = 0.030  # seconds to the first byte
ALLOWED = 0.010  # seconds on top of the round trips
STRIPE = 8 * MIB
TRIP = "bare client"
PLACES = {"at the top": "", "in a directory": "directory/"}
# The round trips that may be taken where nothing is known of the file, and by another open within the TTL.
TRIPS = {"cold": 2, "known": 1, "last byte": 1}


def run(lab: Lab, options: Options, tell: Tell) -> Result:
    """A mount that knows nothing opens a file and reads its first byte; then another part by another open."""
    tell("storing files")
    with lab.scratch() as directory:
        path = write_random(directory / "data.bin", options.pick(64 * MIB, 24 * MIB))
        stored = {place: lab.store_file(path, prefix) for place, prefix in PLACES.items()}
    found: dict[str, list[float]] = {}
    with Proxy(lab.server.endpoint, rate=RATE, delay=DELAY) as proxy:
        for number in range(options.pick(10, 2)):
            for place, file in stored.items():
                tell(f"round {number + 1}: {place}")
                for name, seconds in _measure(lab, proxy, file).items():
                    found.setdefault(f"{name}, {place}", []).append(seconds)
    for file in stored.values():
        lab.remove(file)
    sides = {name: Side(name, tuple(values), "s") for name, values in found.items()}
    wanted = options.pick(ALLOWED, 0.5)
    return Result(
        case=OPEN.name,
        title="open and one byte of a cold file, 30 ms away",
        sides=tuple(sides.values()),
        figures=tuple(_figure(sides, read, place, wanted) for read in TRIPS for place in PLACES),
        notes=("known, last byte: within the TTL, the two ends of stripes that are not there yet",),
    )


def _figure(sides: dict[str, Side], read: str, place: str, wanted: float) -> Figure:
    trips = TRIPS[read]
    bare = sides[f"{TRIP}, {place}"]
    allowed = Side("round trips", tuple(trips * seconds for seconds in bare.rounds), "s")
    return slowness(f"{read}, {place}, beyond {trips}", sides[f"{read}, {place}"], allowed, wanted)


def _measure(lab: Lab, proxy: Proxy, file: StoredObject) -> dict[str, float]:
    trip = first_bytes_bare(lab.server.store(BUCKET, proxy.endpoint), file.key, 1)
    with lab.scratch() as directory, Fusestripe(proxy.endpoint, directory) as mounted:
        path = mounted.path / file.key
        return {
            TRIP: trip,
            "cold": open_and_read(path, 0),
            "known": open_and_read(path, file.size - 2 * STRIPE),
            "last byte": open_and_read(path, file.size - 1),
        }


OPEN = Case("open", "how many round trips does it take to open a file and read a byte?", run)
