"""`ls -l` of a large directory whose metadata the mount knows already."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from tests.bench.case import Case, Options, Tell, take_turns
from tests.bench.lab import BUCKET, Lab
from tests.bench.peers import Fusestripe
from tests.bench.result import Figure, Result

__all__ = ["LISTING"]

DIRECTORY = "listing"
WANTED = 20_000.0  # entries a second
TTL = 3600


def run(lab: Lab, options: Options, tell: Tell) -> Result:
    """Entries a second, once the directory has been listed."""
    entries = options.pick(100_000, 2_000)
    tell(f"storing {entries:,} empty objects")
    lab.server.put_many(BUCKET, ((f"{DIRECTORY}/entry-{number:06}", b"") for number in range(entries)))
    with lab.scratch() as directory, Fusestripe(lab.server.endpoint, directory, ttl=TTL) as mounted:
        tell("listing them for the first time")
        first = ls(mounted.path / DIRECTORY, entries)

        def again() -> float:
            return entries / ls(mounted.path / DIRECTORY, entries)

        sides = take_turns({"mount": again}, options, tell, "1/s")
    return Result(
        case=LISTING.name,
        title=f"ls -l of {entries:,} entries, warm",
        sides=tuple(sides.values()),
        figures=(Figure("entries a second", sides["mount"].median, options.pick(WANTED, 1_000.0), "1/s"),),
        notes=(f"empty objects on the S3 server; for the first time, with their listing, {first:.1f} s",),
    )


def ls(path: Path, entries: int) -> float:
    """Seconds that `ls -l` takes for a directory of so many entries."""
    start = time.perf_counter()
    done = subprocess.run(
        ["ls", "-l", str(path)], stdout=subprocess.PIPE, check=True, env={**os.environ, "LC_ALL": "C"}
    )
    seconds = time.perf_counter() - start
    found = done.stdout.count(b"\n") - 1  # below the line with the total
    if found != entries:
        raise RuntimeError(f"{found} entries are listed, not {entries}")
    return seconds


LISTING = Case("listing", "how fast is a large directory that is known?", run)
