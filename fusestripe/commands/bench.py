"""`fusestripe bench`: what an origin gives to one stream and to many, and the settings that follow."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import mode

import click
import msgspec
import trio
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from fusestripe.commands.completing import urls
from fusestripe.commands.interrupts import interruptible
from fusestripe.commands.options import (
    config_option,
    json_option,
    o_option,
    print_json,
    read_flags,
    setting_options,
)
from fusestripe.config import Settings, load
from fusestripe.errors import ConfigError, FusestripeError, OriginError
from fusestripe.named import open_named
from fusestripe.origins.base import Entry, Origin, Superseded
from fusestripe.origins.registry import FACTORIES
from fusestripe.stripes.climb import Climb
from fusestripe.stripes.tuning import climb_for
from fusestripe.units import MIB, ObjectVersion, format_size

__all__ = ["Bench", "Rate", "bench", "choose", "judge", "measure", "settle"]

STREAMS = (4, 8, 16, 32)
SECONDS = 1.5
FIRST_SECONDS = 15.0
"""An origin from which not one byte has come by then is not measured."""
ROUNDS = 2
"""Each number of streams is measured so often, in turn, and is as good as its best time."""
TURNS = (1, *STREAMS) * ROUNDS
MEASUREMENTS = 400
"""Of a simulated read: enough to see where the number in flight settles."""
ONE_STREAM = 256 * MIB
"""Bytes one plain request asks for: at 100 MB/s it lasts as long as a measurement."""
ENOUGH = 0.95
"""The fewest streams that give this share of the best rate are advised: more would only load the origin."""


class Rate(msgspec.Struct, frozen=True):
    """``bytes`` that came in ``seconds`` over ``streams`` requests at once."""

    streams: int
    bytes: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds


class Bench(msgspec.Struct, frozen=True):
    """The result: rates in bytes a second, ``speedup`` of the advised ``stripe_count`` over one stream.

    ``default_finds`` is about the number that the default, -1, comes to by itself where it gives these rates.
    """

    url: str
    size: int
    rates: dict[str, float]
    stripe_size: int
    stripe_count: int
    speedup: float
    default_finds: int


@click.command(epilog="Example: fusestripe bench s3://bucket/checkpoints/model.pt")
@click.argument("url", shell_complete=urls)
@config_option
@setting_options("stripe_size")
@o_option
@json_option
def bench(url: str, config: str | None, options: tuple[str, ...], as_json: bool, **flags: str | None) -> None:
    """Measure one stream against 4, 8, 16 and 32 striped requests, a few seconds each.

    URL is a file of 64 MiB or more, or a directory, of which the largest file is read. Nothing is cached. A
    mount finds the number by itself while it reads; what it would find is told, and what to set to fix it.
    """
    settings = load(url, read_flags(options, flags), config=config, schemes=FACTORIES)
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("looking for a file", total=len(TURNS))

        def tell(streams: int) -> None:
            what = f"{streams} stream{'s' if streams > 1 else ''}"
            progress.update(task, advance=1, description=what)

        version, rates, climb = interruptible(lambda: measure_all(settings, tell))
    url = f"{version.origin.partition('?')[0]}/{version.path}"
    result = judge(url, version.size, rates, settings, climb)
    if as_json:
        print_json(result)
    else:
        show(result, rates)


def measure_all(settings: Settings, tell: Callable[[int], None]) -> tuple[ObjectVersion, list[Rate], Climb]:
    """The file that was read, and the best Rate of each number of streams, which ``tell`` hears before.

    And how a mount of its origin would look for the number.
    """
    version, origin = find_file(settings)
    size = settings.stripes.size
    best: dict[int, Rate] = {}
    try:
        for streams in TURNS:
            tell(streams)
            rate = measure(origin, version, streams, size, SECONDS)
            best[streams] = max(rate, best.get(streams, rate), key=lambda one: one.per_second)
    finally:
        origin.close()
    return version, list(best.values()), climb_for(origin, settings.stripes.memory // size)


def find_file(settings: Settings) -> tuple[ObjectVersion, Origin]:
    """The file to measure with. Raises ConfigError where it is too small, and OriginError."""
    route = settings.routes[0]
    named = trio.run(partial(open_named, route, timeout=settings.mount.timeout))
    origin = named.origin
    try:
        path, entry = (named.name, origin.stat(named.name)) if named.name else choose(origin, "")
        if entry.size < settings.stripes.size:
            raise ConfigError(  # noqa: TRY301
                f"the largest file at {route.source} has {format_size(entry.size)}, less than a stripe",
                mend="name one of 64 MiB or more, or a smaller --stripe-size",
            )
        return origin.version(path, entry), origin
    except BaseException:
        origin.close()
        raise


def choose(origin: Origin, directory: str) -> tuple[str, Entry]:
    """The largest file below ``directory``, as far as the first thousand or so names reach."""
    best: tuple[str, Entry] = ("", Entry("", is_dir=False))
    pending = [directory]
    seen = 0
    while pending and seen < 1000:
        path = pending.pop()
        for page in origin.list_dir(path):
            for entry in page:
                below = f"{path}/{entry.name}" if path else entry.name
                seen += 1
                if entry.is_dir:
                    pending.append(below)
                elif entry.size > best[1].size:
                    best = (below, entry)
            if seen >= 1000:
                break
    return best


def measure(origin: Origin, version: ObjectVersion, streams: int, stripe: int, seconds: float) -> Rate:
    """Read for ``seconds`` with ``streams`` requests at once: stripes round and round, or one long request.

    Bytes count as they arrive, and so does the time to the first of them, after which the seconds begin; a
    request that is under way when they are over is ended.
    """
    length = stripe if streams > 1 else min(version.size, ONE_STREAM)
    offsets = itertools.cycle(range(0, version.size - length + 1, length))
    tally = _Tally(seconds)
    begin = time.monotonic()

    def work() -> None:
        buffer = memoryview(bytearray(length))
        try:
            while tally.running:
                with tally.lock:
                    offset = next(offsets)
                origin.read_range(version, offset, buffer, tally.counter())
        except Superseded:
            return
        except FusestripeError as error:
            tally.fail(error)

    threads = [threading.Thread(target=work) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if tally.error is not None:
        raise tally.error
    if not tally.bytes:
        raise OriginError(
            f"not one byte came in {FIRST_SECONDS:g} s", mend="check the endpoint and the network"
        )
    return Rate(streams, tally.bytes, max(tally.last - begin, 1e-9))


class _Tally:
    """Bytes that arrive in many threads within ``seconds`` after the first, and the first error."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.lock = threading.Lock()
        self.bytes = 0
        self.last = 0.0
        self.error: FusestripeError | None = None
        self._deadline = time.monotonic() + FIRST_SECONDS

    @property
    def running(self) -> bool:
        return self.error is None and time.monotonic() < self._deadline

    def fail(self, error: FusestripeError) -> None:
        with self.lock:
            self.error = self.error or error

    def counter(self) -> _Counter:
        return _Counter(self)

    def add(self, length: int) -> None:
        """Raises Superseded once the time is over."""
        now = time.monotonic()
        if now > self._deadline:
            raise Superseded
        with self.lock:
            if not self.bytes:
                self._deadline = now + self._seconds
            self.bytes += length
            self.last = max(self.last, now)


class _Counter:
    """The Progress of one request."""

    def __init__(self, tally: _Tally) -> None:
        self._tally = tally
        self._before = 0

    def __call__(self, done: int) -> None:
        self._tally.add(done - self._before)
        self._before = done


def settle(climb: Climb, rates: Sequence[Rate]) -> int:
    """The number in flight that ``climb`` comes to at an origin that gives ``rates``."""
    counts = []
    for _ in range(MEASUREMENTS):
        climb.gave(rate_of(climb.count, rates))
        counts.append(climb.count)
    return mode(counts[MEASUREMENTS // 2 :])  # now and then it tries another


def rate_of(count: int, rates: Sequence[Rate]) -> float:
    """Bytes a second for ``count`` streams: on the line between two measured ones, beyond as the last."""
    for less, more in itertools.pairwise(rates):
        if count <= more.streams:
            share = (count - less.streams) / (more.streams - less.streams)
            return less.per_second + share * (more.per_second - less.per_second)
    return rates[-1].per_second


def judge(url: str, size: int, rates: Sequence[Rate], settings: Settings, climb: Climb) -> Bench:
    """The fewest streams that give nearly the best rate, and what they gain over the first, a single one."""
    striped = [rate for rate in rates if rate.streams > 1]
    best = max(rate.per_second for rate in striped)
    advised = next(rate for rate in striped if rate.per_second >= ENOUGH * best)
    return Bench(
        url=url,
        size=size,
        rates={str(rate.streams): rate.per_second for rate in rates},
        stripe_size=settings.stripes.size,
        stripe_count=advised.streams,
        speedup=advised.per_second / rates[0].per_second,
        default_finds=settle(climb, rates),
    )


def show(result: Bench, rates: Sequence[Rate]) -> None:
    """For people."""
    console = Console(highlight=False)
    console.print(f"{result.url} ({format_size(result.size)})", markup=False, soft_wrap=True)
    table = Table()
    table.add_column("streams", justify="right")
    table.add_column("MB/s", justify="right")
    table.add_column("against one", justify="right")
    for rate in rates:
        name = "1, plain" if rate.streams == 1 else f"{rate.streams}"
        gain = f"{rate.per_second / rates[0].per_second:.1f} x"
        style = "bold" if rate.streams == result.stripe_count else ""
        table.add_row(name, f"{rate.per_second / 1e6:.1f}", gain, style=style)
    console.print(table)
    size = f"--stripe-size {format_size(result.stripe_size).replace(' ', '')}"
    more = " or more" if result.default_finds >= STREAMS[-1] else ""  # nothing beyond was measured
    for line in (
        f"{result.stripe_count} streams are the fewest that give {ENOUGH:.0%} of the best",
        f"the default (--stripe-count -1) finds the number itself: some {result.default_finds}{more} here",
        f"to set it: --stripe-count {result.stripe_count} {size}",
    ):
        console.print(line, soft_wrap=True)
