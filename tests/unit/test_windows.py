"""How far ahead: more where other nodes ask the origin as well, within the memory."""

from __future__ import annotations

import pytest
import trio

from fusestripe.openfiles import OpenFile
from fusestripe.stripes.memory import BufferPool
from fusestripe.stripes.traffic import TrafficTable
from fusestripe.stripes.tuning import FixedStreams
from fusestripe.units import ObjectVersion
from fusestripe.windows import Windows
from tests.support.memory_origin import MemoryOrigin

STRIPE = 4096


@pytest.mark.parametrize(
    ("buffers", "nodes", "in_flight"),
    [(128, 1, 4), (128, 2, 8), (128, 4, 16), (128, 500, 16), (24, 500, 9), (8, 500, 4)],
)
async def test_stripes_in_flight_by_the_nodes_that_share(
    nursery: trio.Nursery, buffers: int, nodes: int, in_flight: int
) -> None:
    traffic = TrafficTable(lambda _origin: FixedStreams(4), buffers)
    windows = Windows(BufferPool(buffers * STRIPE, STRIPE), traffic, STRIPE, nodes=lambda: nodes)
    file = OpenFile(MemoryOrigin(), ObjectVersion("s3://b", "file", 1 << 30, "tag"), None)
    assert windows.in_flight(file) == in_flight
    windows.touch(file)
    wanted = list(windows.wanted(file, [iter([(0, 1 << 30)])], lambda index: False))
    assert in_flight <= len(wanted) <= buffers * 3 // 4
