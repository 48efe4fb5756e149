"""Everything at once for a long time: does what the daemon takes level off, and is every byte right?"""

from __future__ import annotations

import errno
import mmap
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil

from fusestripe.units import KIB, MIB
from tests.bench.case import Case, Options, Tell
from tests.bench.lab import BUCKET, Lab
from tests.bench.peers import Fusestripe
from tests.bench.reading import start_dd
from tests.bench.result import Figure, Result, Side, Unit
from tests.support import blocks

__all__ = ["SOAK"]

FILES = 40
# The second half of the files are replaced again and again; a map of one of those could end in SIGBUS.
KEPT = FILES // 2
SMALLEST, LARGEST = 64 * KIB, 16 * MIB
READERS = 4
# Much less than the files, so that stripes are evicted all the time.
SETTINGS = {"cache_size": 96 * MIB, "memory": 64 * MIB, "stripe_size": MIB, "ttl": 2, "negative_ttl": 1}
SAMPLES = 90
# The median of the last third of the time, against that of the second.
LEVEL, SHORT_LEVEL = 1.1, 1.5


class Sample(msgspec.Struct, frozen=True):
    """What the daemon has at a moment: bytes resident, and how many of the others."""

    resident: int
    threads: int
    descriptors: int
    inodes: int


class _Tree:
    """The files in the bucket, and readers of them who know what each byte must be."""

    def __init__(self, lab: Lab, top: Path) -> None:
        self._lab = lab
        self._top = top
        self._versions = [0] * FILES
        sizes = random.Random(1)
        self._sizes = [sizes.randrange(SMALLEST, LARGEST) for _ in range(FILES)]

    def store(self, number: int) -> None:
        """The next version of a file."""
        version = self._versions[number] + 1
        self._lab.server.put(BUCKET, self._name(number), blocks.content(number, version, self._sizes[number]))
        self._versions[number] = version

    def replace(self, chance: random.Random) -> None:
        """One of the files is another from now on."""
        self.store(chance.randrange(KEPT, FILES))

    def whole(self, chance: random.Random) -> None:
        """A file from its beginning to its end."""
        number = chance.randrange(FILES)
        with open(self._path(number), "rb", buffering=0) as file:
            data = bytearray()
            while piece := file.read(MIB):
                data += piece
        if len(data) != self._sizes[number]:
            raise RuntimeError(f"{self._name(number)}: {len(data)} bytes came, not {self._sizes[number]}")
        blocks.check(data, number, 0)

    def here_and_there(self, chance: random.Random) -> None:
        """Short reads anywhere."""
        number = chance.randrange(FILES)
        with open(self._path(number), "rb", buffering=0) as file:
            for _ in range(20):
                block = chance.randrange(self._sizes[number] // blocks.BLOCK)
                data = os.pread(file.fileno(), chance.choice((1, 4)) * blocks.BLOCK, block * blocks.BLOCK)
                blocks.check(data, number, block)

    def mapped(self, chance: random.Random) -> None:
        """Pages anywhere in a map."""
        number = chance.randrange(KEPT)
        with (
            open(self._path(number), "rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        ):
            for _ in range(50):
                block = chance.randrange(self._sizes[number] // blocks.BLOCK)
                start = block * blocks.BLOCK
                blocks.check(mapped[start : start + blocks.BLOCK], number, block)

    def walk(self, _chance: random.Random) -> None:
        """Look at every name, and at one that is not there."""
        found = sum(len(files) for _directory, _directories, files in os.walk(self._top))
        if found != FILES or (self._top / "missing").exists():
            raise RuntimeError(f"{found} files are shown, not {FILES}")

    def killed(self, chance: random.Random) -> None:
        """A reader that is killed somewhere on its way."""
        with start_dd(self._path(chance.randrange(FILES))) as reader:
            time.sleep(chance.random() / 10)
            reader.kill()

    def _name(self, number: int) -> str:
        return f"soak/{number % 4}/{number:02}.bin"

    def _path(self, number: int) -> Path:
        return self._top / self._name(number)


def run(lab: Lab, options: Options, tell: Tell) -> Result:
    """Readers of all kinds, replaced objects, evictions, for ``options.soak`` seconds."""
    with (
        lab.scratch() as directory,
        Fusestripe(lab.server.endpoint, directory, complaints=True, **SETTINGS) as mounted,
    ):
        tree = _Tree(lab, mounted.path)
        tell("storing files")
        for number in range(FILES):
            tree.store(number)
        samples, count = _soak(tree, mounted, options.soak, tell)
        status = mounted.daemon.status()
        unexpected = [line for line in mounted.daemon.complaints() if "changed" not in line]
    if unexpected:
        raise RuntimeError(f"{len(unexpected)} lines in the log, the first: {unexpected[0]}")
    wanted = options.pick(LEVEL, SHORT_LEVEL)
    return Result(
        case=SOAK.name,
        title=f"{options.soak:g} s of {count} reads in all ways, while files are replaced and evicted",
        sides=tuple(_side(name, samples, unit) for name, unit in KINDS.items()),
        figures=tuple(_growth(name, samples, wanted) for name in KINDS),
        notes=(
            "the median of the last third of the time against that of the third before",
            f"{status['cache']['evictions']} objects evicted; every byte was compared",
        ),
    )


KINDS: dict[str, Unit] = {"resident": "B", "threads": "ratio", "descriptors": "ratio", "inodes": "ratio"}


def _side(name: str, samples: Sequence[Sample], unit: Unit) -> Side:
    return Side(name, tuple(float(getattr(sample, name)) for sample in samples), unit)


def _growth(name: str, samples: Sequence[Sample], wanted: float) -> Figure:
    values = [getattr(sample, name) for sample in samples]
    third = len(values) // 3
    before, last = statistics.median(values[third : 2 * third]), statistics.median(values[2 * third :])
    return Figure(f"{name}, last third / second", last / before, wanted, at_least=False)


def _soak(tree: _Tree, mounted: Fusestripe, seconds: float, tell: Tell) -> tuple[list[Sample], int]:
    """The samples, and how often something was read."""
    over = threading.Event()
    kinds = (tree.whole, tree.here_and_there, tree.mapped, tree.walk, tree.killed)

    def work(seed: int, choices: Sequence[Callable[[random.Random], None]], pause: float) -> int:
        chance, count = random.Random(seed), 0
        try:
            while not over.wait(pause):
                _do(chance.choice(choices), chance)
                count += 1
        finally:
            over.set()  # a failure ends the run
        return count

    with ThreadPoolExecutor(READERS + 1) as pool:
        readers = [pool.submit(work, seed, kinds, 0.0) for seed in range(READERS)]
        writer = pool.submit(work, READERS, (tree.replace,), 0.5)
        try:
            samples = _watch(mounted, seconds, over, tell)
        finally:
            over.set()
        writer.result()
        return samples, sum(reader.result() for reader in readers)


def _do(kind: Callable[[random.Random], None], chance: random.Random) -> None:
    try:
        kind(chance)
    except OSError as error:
        if error.errno != errno.ESTALE:  # which is right for a file that was replaced meanwhile
            raise


def _watch(mounted: Fusestripe, seconds: float, over: threading.Event, tell: Tell) -> list[Sample]:
    process = psutil.Process(mounted.daemon.pid)
    samples: list[Sample] = []
    begun = time.monotonic()
    while (spent := time.monotonic() - begun) < seconds and not over.wait(seconds / SAMPLES):
        inodes = int(mounted.daemon.status()["inodes"])
        resident = process.memory_info().rss
        samples.append(Sample(resident, process.num_threads(), process.num_fds(), inodes))
        tell(f"{spent:.0f} of {seconds:.0f} s, {resident // MIB} MiB, {inodes} inodes")
    return samples


SOAK = Case("soak", "does what the daemon takes level off?", run)
