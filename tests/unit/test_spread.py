"""A file that lies in pieces on many servers is read from several of them at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio

from fusestripe.prefetcher import Headway
from fusestripe.units import ObjectVersion
from tests.support.memory_origin import MemoryOrigin
from tests.unit.test_reader import CONTENT, STRIPE, House, until

BLOCK = 4 * STRIPE


class BlocksOrigin(MemoryOrigin):
    """Blocks of four stripes; no range is answered before ``open_gate`` is set."""

    def __init__(self, content: bytes) -> None:
        super().__init__({"file": content})
        self.open_gate = threading.Event()
        self.gate = lambda *_: self.open_gate.wait(20)

    def spread(self, version: ObjectVersion) -> int:
        return BLOCK

    def blocks(self) -> list[int]:
        """The blocks that were asked for, in order."""
        return [offset // BLOCK for _, offset, _ in self.ranges]


async def test_what_is_in_flight_lies_in_different_blocks(nursery: trio.Nursery, tmp_path: Path) -> None:
    origin = BlocksOrigin(CONTENT)
    house = House(nursery, tmp_path, origin=origin, count=4)
    handle = await house.open()
    nursery.start_soon(house.reader.read, handle, 0, STRIPE)
    await until(lambda: len(origin.ranges) == 4)
    assert sorted(origin.blocks()) == [0, 1, 2, 3]
    origin.open_gate.set()
    assert await house.read_all(handle) == CONTENT
    assert len(origin.ranges) == -(-len(CONTENT) // STRIPE), "each stripe once"


async def test_the_memory_limits_how_far_it_reaches(nursery: trio.Nursery, tmp_path: Path) -> None:
    origin = BlocksOrigin(CONTENT)
    house = House(nursery, tmp_path, origin=origin, count=4, buffers=6)
    handle = await house.open()
    nursery.start_soon(house.reader.read, handle, 0, STRIPE)
    await until(lambda: len(origin.ranges) == 4)
    assert max(origin.blocks()) == 1
    origin.open_gate.set()
    assert await house.read_all(handle) == CONTENT


@pytest.mark.parametrize("count", [1, 3])
async def test_prefetch_reads_blocks_side_by_side(nursery: trio.Nursery, tmp_path: Path, count: int) -> None:
    origin = BlocksOrigin(CONTENT)
    origin.open_gate.set()
    house = House(nursery, tmp_path, origin=origin, count=count)
    handle = await house.open()
    await house.prefetcher.prefetch(handle.file, Headway())
    assert len(origin.ranges) == -(-len(CONTENT) // STRIPE)
    # All but one of those in flight may be late to ask, while that one goes on to the next batch.
    first = origin.blocks()[: 4 * count - (count - 1)]
    assert set(first) == set(range(count)), "one batch of blocks after another"
    if count == 3:
        assert set(origin.blocks()[:3]) == {0, 1, 2}
