"""How many stripes are in flight, with a simulated origin on a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import trio
import trio.testing

from fusestripe.stripes.climb import Climb
from fusestripe.stripes.memory import Buffer
from fusestripe.stripes.resident import Stripe
from fusestripe.stripes.tuning import FixedStreams, TunedStreams
from fusestripe.units import MIB, ObjectVersion

STRIPE = 8 * MIB
TICK = 0.01


async def no_memory() -> Buffer:
    raise AssertionError


class Simulation:
    """An origin that gives each of ``n`` streams ``rate(n)`` bytes/s, from ``delay`` seconds on."""

    def __init__(self, rate: Callable[[int], float], delay: float, start: int = 16, most: int = 64) -> None:
        self.rate = rate
        self.delay = delay
        self.streams = TunedStreams(Climb(start, most))
        self.running: dict[Stripe, float] = {}
        self.arrived = 0.0
        self.next = 0

    def begin(self, version: ObjectVersion) -> None:
        stripe = Stripe((version, self.next), STRIPE, no_memory)
        self.next += 1
        self.streams.began(stripe)
        self.running[stripe] = trio.current_time() + self.delay

    def tick(self) -> None:
        each = self.rate(len(self.running)) * TICK if self.running else 0
        for stripe, since in list(self.running.items()):
            if trio.current_time() < since:
                continue
            before = stripe.filled
            stripe.filled = min(STRIPE, stripe.filled + math.ceil(each))
            self.arrived += stripe.filled - before
            if stripe.filled == STRIPE:
                self.streams.ended(stripe)
                del self.running[stripe]

    async def run(
        self,
        seconds: float,
        versions: list[ObjectVersion],
        limit: int = 10_000,
        reads: Callable[[float], bool] = lambda now: True,
    ) -> float:
        """Bytes a second in the last half of the time; ``limit`` is what the readers want at most.

        ``reads`` says when they want anything.
        """
        half = 0.0
        for step in range(int(seconds / TICK)):
            for version in versions if reads(step * TICK) else ():
                while (
                    sum(stripe.key[0] == version for stripe in self.running) < self.streams.share(version)
                    and len(self.running) < limit
                ):
                    self.begin(version)
            self.tick()
            await trio.sleep(TICK)
            if step == int(seconds / TICK) // 2:
                half = self.arrived
        return (self.arrived - half) / (seconds / 2)


def version(name: str) -> ObjectVersion:
    return ObjectVersion("s3://b", name, 1 << 40, "tag")


@pytest.mark.parametrize(
    ("each", "total", "delay"),
    [(12.5, math.inf, 0.03), (10, math.inf, 0.1), (100, 1000, 0.005), (200, 200, 0.02), (12.5, 400, 0.03)],
)
async def test_it_finds_what_the_origin_gives(
    autojump_clock: trio.testing.MockClock, each: float, total: float, delay: float
) -> None:
    origin = Simulation(lambda count: min(each, total / count) * 1e6, delay)
    rate = await origin.run(6, [version("a")])
    best = max(
        count * min(each, total / count) * 1e6 * 1 / (1 + delay * min(each, total / count) * 1e6 / STRIPE)
        for count in range(1, 65)
    )
    assert rate >= 0.9 * best


async def test_less_that_readers_want_says_nothing(autojump_clock: trio.testing.MockClock) -> None:
    origin = Simulation(lambda count: 12.5e6, 0.03)
    await origin.run(5, [version("a")], limit=6)
    assert origin.streams.share(version("a")) == 16


async def test_files_share_what_there_is(autojump_clock: trio.testing.MockClock) -> None:
    origin = Simulation(lambda count: 200e6 / count, 0.01)
    files = [version(name) for name in "abcd"]
    await origin.run(3, files)
    shares = {origin.streams.share(file) for file in files}
    assert len(shares) == 1
    share = shares.pop()
    assert 1 <= share <= 8
    assert share == -(-origin.streams.allowed // len(files))  # the number is that of all files together
    assert origin.streams.share(version("new")) >= 1


async def test_many_answers_that_ask_for_less_at_once_count_as_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    streams = TunedStreams(Climb(16, 64))
    for _ in range(16):
        streams.throttled()
    assert streams.share(version("a")) == 11
    await trio.sleep(2)
    streams.throttled()
    assert streams.share(version("a")) == streams.allowed == 7
    assert streams.tuned


def test_a_fixed_number_is_of_each_file() -> None:
    streams = FixedStreams(5)
    assert streams.share(version("a")) == streams.share(version("b")) == streams.allowed == 5
    assert not streams.tuned


async def test_pauses_of_the_readers_do_not_count_against_a_number(
    autojump_clock: trio.testing.MockClock,
) -> None:
    origin = Simulation(lambda count: 50e6, 0.01)
    await origin.run(12, [version("a")], reads=lambda now: now % 0.7 < 0.5)
    assert origin.streams.allowed >= 48
