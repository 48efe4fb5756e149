"""A small read far into a stripe does not wait for what lies before it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from fusestripe.errors import OriginUnavailable, VersionChanged
from fusestripe.units import KIB, MIB
from tests.support.memory_origin import MemoryOrigin
from tests.unit.test_reader import House, until

STRIPE = 2 * MIB
CONTENT = random.Random(9).randbytes(3 * STRIPE - 100)


class Slow(MemoryOrigin):
    """Whole stripes wait for ``go_on``; ``small`` is called before each other request."""

    def __init__(self) -> None:
        super().__init__({"file": CONTENT}, chunk=64 * KIB)
        self.go_on = threading.Event()
        self.small: Callable[[], None] = lambda: None
        self.gate = self.wait

    def wait(self, path: str, offset: int, length: int) -> None:
        if length > MIB:
            self.go_on.wait(20)
        else:
            self.small()


@pytest.fixture
def origin() -> Slow:
    return Slow()


async def test_the_end_of_a_file_is_there_before_its_stripe(
    nursery: trio.Nursery, tmp_path: Path, origin: Slow
) -> None:
    house = House(nursery, tmp_path, origin=origin, stripe_size=STRIPE)
    handle = await house.open()
    with trio.fail_after(10):
        end = await house.reader.read(handle, len(CONTENT) - 22, 22)
        assert bytes(end) == CONTENT[-22:]
        middle = await house.reader.read(handle, STRIPE + MIB, 64 * KIB)
        assert bytes(middle) == CONTENT[STRIPE + MIB :][: 64 * KIB]
    origin.go_on.set()
    with trio.fail_after(10):
        assert await house.read_all(handle, MIB) == CONTENT
        await house.settled(handle)
    # The stripes came once each, and nothing but what was read came twice.
    lengths = sorted(length for _, _, length in origin.ranges)
    assert lengths == [22, 64 * KIB, STRIPE - 100, STRIPE, STRIPE]


async def test_what_the_stripe_has_soon_is_not_asked_for(
    nursery: trio.Nursery, tmp_path: Path, origin: Slow
) -> None:
    origin.go_on.set()
    house = House(nursery, tmp_path, origin=origin, stripe_size=STRIPE)
    handle = await house.open()
    assert bytes(await house.reader.read(handle, STRIPE + 1000, 100)) == CONTENT[STRIPE + 1000 :][:100]
    assert [length for _, _, length in origin.ranges] == [STRIPE]


async def test_where_the_small_request_fails_the_stripe_has_it(
    nursery: trio.Nursery, tmp_path: Path, origin: Slow
) -> None:
    def fail() -> None:
        origin.go_on.set()
        raise OriginUnavailable("reset")

    origin.small = fail
    house = House(nursery, tmp_path, origin=origin, stripe_size=STRIPE)
    handle = await house.open()
    with trio.fail_after(10):
        assert bytes(await house.reader.read(handle, len(CONTENT) - 22, 22)) == CONTENT[-22:]


async def test_where_both_fail_the_error_is_the_stripes(
    nursery: trio.Nursery, tmp_path: Path, origin: Slow
) -> None:
    house = House(nursery, tmp_path, origin=origin, stripe_size=STRIPE)
    handle = await house.open()
    origin.replace("file", bytes(len(CONTENT)))
    origin.go_on.set()
    with trio.fail_after(10), pytest.raises(VersionChanged):
        await house.reader.read(handle, len(CONTENT) - 22, 22)


async def test_a_reader_that_goes_away_takes_nothing_along(
    nursery: trio.Nursery, tmp_path: Path, origin: Slow
) -> None:
    asked = threading.Event()
    answer = threading.Event()

    def hold() -> None:
        asked.set()
        answer.wait(20)

    origin.small = hold
    house = House(nursery, tmp_path, origin=origin, stripe_size=STRIPE)
    handle = await house.open()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as readers:
            readers.start_soon(house.reader.read, handle, len(CONTENT) - 22, 22)
            await until(asked.is_set)
            scope.cancel()
    origin.go_on.set()
    answer.set()
    with trio.fail_after(10):
        assert bytes(await house.reader.read(handle, len(CONTENT) - 22, 22)) == CONTENT[-22:]
    assert [length for _, _, length in origin.ranges].count(STRIPE - 100) == 1
