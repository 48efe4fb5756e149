"""A cache disk that does not answer costs some seconds once, whatever it was asked: reads and opens go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from fusestripe.cache import pair
from fusestripe.cache.store import CacheStore
from fusestripe.errors import CacheError
from fusestripe.prefetcher import Headway
from fusestripe.reader import Handle
from tests.support.caches import STRIPE as STRIPE_OF_CACHE
from tests.support.caches import fill, load, sample
from tests.support.hung_disk import HungDisk
from tests.support.memory_origin import MemoryOrigin
from tests.unit.test_reader import CONTENT, STRIPE, House, until

PATIENCE = 0.3
# Of a reader, while the disk hangs: each way to find that out takes PATIENCE once.
BOUND = 20.0


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[HungDisk]:
    disk = HungDisk(monkeypatch)
    yield disk
    disk.answer()


def house(nursery: trio.Nursery, directory: Path, origin: MemoryOrigin) -> House:
    return House(nursery, directory, origin=origin, patience=PATIENCE)


async def filled(nursery: trio.Nursery, directory: Path, origin: MemoryOrigin) -> None:
    first = house(nursery, directory, origin)
    handle = await first.open()
    await first.read_all(handle)
    await first.settled(handle)
    await first.reader.close(handle)


async def recovered(it: House) -> None:
    assert it.cache is not None
    health = it.cache.health
    await until(lambda: health.state == "normal")


@pytest.mark.parametrize("when", ["before open", "before reading", "while reading", "before close"])
@pytest.mark.parametrize("cached", [True, False], ids=["warm", "cold"])
async def test_reads_go_on_while_the_disk_hangs(
    nursery: trio.Nursery, tmp_path: Path, disk: HungDisk, cached: bool, when: str
) -> None:
    origin = MemoryOrigin({"file": CONTENT, "other": CONTENT[::-1]})
    if cached:
        await filled(nursery, tmp_path, origin)
    it = house(nursery, tmp_path, origin)
    assert it.cache is not None

    with trio.fail_after(BOUND):
        if when == "before open":
            disk.hang()
        handle = await it.open()
        if when == "before reading":
            disk.hang()
        first = bytes(await it.reader.read(handle, 0, STRIPE))
        if when == "while reading":
            disk.hang()
        # Small reads here and there, which look into the cache file, and then all of it.
        small = [bytes(await it.reader.read(handle, at, 100)) for at in range(0, len(CONTENT), 300_001)]
        assert first + (await it.read_all(handle))[STRIPE:] == CONTENT
        assert small == [CONTENT[at : at + 100] for at in range(0, len(CONTENT), 300_001)]
        if when == "before close":
            disk.hang()
        other = await it.open("other")
        assert await it.read_all(other) == CONTENT[::-1]
        await it.reader.close(handle)
        await it.reader.close(other)
    await until(lambda: it.cache is not None and it.cache.statistics().health == "down")
    assert 1 <= disk.waiting <= 8
    assert not disk.loop_waited

    disk.answer()
    await recovered(it)
    await until(lambda: it.cache is not None and it.cache.statistics().held == 0)
    with trio.fail_after(BOUND):
        again = await it.open()
        assert await it.read_all(again) == CONTENT
        await it.prefetcher.prefetch(again.file, Headway())  # all of it is kept now
        assert await it.read_all(again) == CONTENT


async def test_what_a_read_left_behind_brings_reaches_nobody(
    nursery: trio.Nursery, tmp_path: Path, disk: HungDisk
) -> None:
    """The late read writes garbage into memory that it was given: into no stripe that came meanwhile."""
    origin = MemoryOrigin({"file": CONTENT})
    await filled(nursery, tmp_path, origin)
    it = House(nursery, tmp_path, origin=origin, patience=PATIENCE, buffers=6, count=2)
    handle = await it.open()
    disk.hang("preadv")
    with trio.fail_after(BOUND):
        views = [await it.reader.read(handle, 0, STRIPE)]
        assert disk.waiting
        disk.answer()
        while disk.waiting:
            views = [await it.reader.read(handle, 0, STRIPE)]
            assert bytes(views[0]) == CONTENT[:STRIPE]
        await recovered(it)
        for _ in range(3):
            assert await it.read_all(handle) == CONTENT
    assert it.pool.statistics().peak <= 6 * STRIPE


async def test_a_prefetch_says_that_the_disk_hangs(
    nursery: trio.Nursery, tmp_path: Path, disk: HungDisk
) -> None:
    it = house(nursery, tmp_path, MemoryOrigin({"file": CONTENT}))
    handle: Handle = await it.open()
    disk.hang()
    with trio.fail_after(BOUND), pytest.raises(CacheError, match="does not answer"):
        await it.prefetcher.prefetch(handle.file, Headway())
    disk.answer()
    await recovered(it)
    with trio.fail_after(BOUND):
        await it.prefetcher.prefetch(handle.file, Headway())


def test_a_read_that_does_not_wait_does_not_wait_for_another_thread_either(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop reads so: it must not stand behind a thread whose write of the ledger hangs."""
    what = sample()
    fill(store, what)
    obj = store.acquire(what.version)
    assert load(obj, what, 0) is not None
    into = memoryview(bytearray(100))
    assert obj.read(0, into, nowait=True)
    hangs, answers = threading.Event(), threading.Event()

    def write_at(fd: int, data: bytes, offset: int) -> None:
        hangs.set()
        assert answers.wait(60)

    obj.save(1, memoryview(bytes(STRIPE_OF_CACHE)))  # other bytes: the ledger changes
    assert load(obj, what, 0) is not None
    monkeypatch.setattr(pair, "write_at", write_at)
    thread = threading.Thread(target=obj.save, args=(1, what.stripe(1)))
    thread.start()
    try:
        assert hangs.wait(20)
        began = time.monotonic()
        assert not obj.read(0, into, nowait=True)
        assert time.monotonic() - began < 10
    finally:
        answers.set()
        thread.join()
    assert load(obj, what, 0) is not None
    assert obj.read(0, into, nowait=True)
    store.release(obj)
