"""A system that has no thread left (pids.max, ulimit -u): reads are late, and neither wrong nor refused."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from fusestripe.errors import OriginUnavailable
from tests.unit.test_reader import CONTENT, STRIPE, House

SMALL = 1000


class Threads:
    """Of all that are to be started ``share`` are refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.share = 0.0
        self.refused = 0
        self._random = random.Random(11)
        self._run_sync = trio.to_thread.run_sync
        monkeypatch.setattr(trio.to_thread, "run_sync", self._start)

    async def _start(self, *arguments: Any, **options: Any) -> object:
        if self._random.random() < self.share:
            self.refused += 1
            raise RuntimeError("can't start new thread")
        return await self._run_sync(*arguments, **options)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    monkeypatch.setattr("fusestripe.cache.threads.AGAIN_SECONDS", 0.01)
    return Threads(monkeypatch)


@pytest.mark.parametrize("request_size", [SMALL, 10_000, STRIPE])
async def test_every_fifth_is_refused(
    nursery: trio.Nursery, tmp_path: Path, threads: Threads, request_size: int
) -> None:
    """In order, from the origin and then from the cache."""
    for house in (House(nursery, tmp_path, timeout=60), House(nursery, tmp_path)):
        handle = await house.open()
        threads.share = 0.2
        with trio.fail_after(60):
            assert await house.read_all(handle, request_size) == CONTENT
        threads.share = 0.0
        await house.reader.close(handle)
    assert threads.refused


async def test_small_reads_here_and_there(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: Threads
) -> None:
    monkeypatch.setattr("fusestripe.smallreads.WORTH_WAITING", SMALL)
    places = random.Random(3).sample(range(len(CONTENT) - SMALL), 30)
    for house in (House(nursery, tmp_path, timeout=60), House(nursery, tmp_path)):
        handle = await house.open()
        threads.share = 0.2
        with trio.fail_after(60):
            for place in places:
                data = bytes(await house.reader.read(handle, place, SMALL))
                assert data == CONTENT[place : place + SMALL]
        threads.share = 0.0
        await house.reader.close(handle)
    assert threads.refused


async def test_none_at_all_is_an_error_in_time_and_then_all_is_well(
    nursery: trio.Nursery, threads: Threads
) -> None:
    house = House(nursery, None, timeout=0.5)
    handle = await house.open()
    threads.share = 1.0
    with trio.fail_after(20), pytest.raises(OriginUnavailable, match="no thread for a request"):
        await house.reader.read(handle, 0, STRIPE)
    threads.share = 0.0
    with trio.fail_after(20):
        data = b""
        while data != CONTENT:
            with suppress(OriginUnavailable):  # what failed stays so for a moment
                data = await house.read_all(handle)
            await trio.sleep(0.05)
