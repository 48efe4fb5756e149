"""The first byte of a cold file on an origin that is far away."""

from __future__ import annotations

from fusestripe.units import KIB, MIB
from tests.bench.case import Case, Options, Tell
from tests.bench.lab import BUCKET, Lab
from tests.bench.peers import Fusestripe
from tests.bench.reading import first_bytes, first_bytes_bare
from tests.bench.result import Result, Side, slowness
from tests.bench.shaped import DELAY, RATE
from tests.support.proxy import Proxy

__all__ = ["FIRST_BYTE"]

COUNTS = (1, 4 * KIB)
FILE = 12 * MIB  # more than a stripe: what is waited for is not the file
ALLOWED = 0.020  # seconds on top of a bare round trip


def run(lab: Lab, options: Options, tell: Tell) -> Result:
    """pread of 1 byte and of 4 KiB of a file that is open, less a bare request for the same bytes."""
    files = options.pick(10, 4)
    tell("storing files")
    keys = iter([lab.store_new(FILE).key for _ in range(files * len(COUNTS))])
    sides: dict[str, list[float]] = {}
    with (
        lab.scratch() as directory,
        Proxy(lab.server.endpoint, rate=RATE, delay=DELAY) as proxy,
        Fusestripe(proxy.endpoint, directory) as mounted,
    ):
        store = lab.server.store(BUCKET, proxy.endpoint)
        for number in range(files):
            tell(f"file {number + 1} of {files}")
            for count in COUNTS:
                key = next(keys)
                sides.setdefault(f"bare client, {count} B", []).append(first_bytes_bare(store, key, count))
                sides.setdefault(f"mount, {count} B", []).append(first_bytes(mounted.path / key, count))
    measured = {name: Side(name, tuple(values), "s") for name, values in sides.items()}
    allowed = options.pick(ALLOWED, 0.5)
    return Result(
        case=FIRST_BYTE.name,
        title="first bytes of a cold file that is open, 20 ms away",
        sides=tuple(measured.values()),
        figures=tuple(
            slowness(
                f"mount, {count} B, beyond a round trip",
                measured[f"mount, {count} B"],
                measured[f"bare client, {count} B"],
                allowed,
            )
            for count in COUNTS
        ),
    )


FIRST_BYTE = Case("first-byte", "how long does a reader wait for the first byte?", run)
