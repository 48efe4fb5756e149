"""The reader over a real cache directory: right bytes, few requests, nothing lost by cancellation."""

from __future__ import annotations

import gc
import logging
import random
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from fusestripe.cache.health import DiskHealth
from fusestripe.cache.store import CacheStore
from fusestripe.cache.threads import DiskThreads
from fusestripe.errors import OriginUnavailable, VersionChanged
from fusestripe.openfiles import OpenFiles
from fusestripe.origins.base import Progress
from fusestripe.origins.retry import SETTLED_SECONDS
from fusestripe.prefetcher import Prefetcher
from fusestripe.readback import ReadBack
from fusestripe.reader import Handle, Reader
from fusestripe.smallreads import SmallReads
from fusestripe.stripes.fetch import Fetcher
from fusestripe.stripes.memory import BufferPool
from fusestripe.stripes.resident import ResidentStripes
from fusestripe.stripes.traffic import TrafficTable
from fusestripe.stripes.tuning import FixedStreams
from fusestripe.units import GIB, KIB, MIB, ObjectVersion
from fusestripe.windows import Windows
from tests.support.memory_origin import MemoryOrigin

STRIPE = 64 * KIB
CONTENT = random.Random(7).randbytes(20 * STRIPE + 12_345)


class House:
    """A reader and what it stands on; ``again`` is another one on the same cache directory."""

    def __init__(
        self,
        nursery: trio.Nursery,
        cache_dir: Path | None,
        *,
        origin: MemoryOrigin | None = None,
        buffers: int = 64,
        count: int = 4,
        cache_size: int = GIB,
        timeout: float = 5,
        patience: float = 30,
        stripe_size: int = STRIPE,
    ) -> None:
        self.origin = origin or MemoryOrigin({"file": CONTENT})
        self.pool = BufferPool(buffers * stripe_size, stripe_size)
        self.cache = (
            None
            if cache_dir is None
            else CacheStore(cache_dir, stripe_size=stripe_size, size=cache_size, reserve=0)
        )
        self.stripes = ResidentStripes(self.pool, nursery)
        self.traffic = TrafficTable(lambda _origin: FixedStreams(count), buffers)
        self.fetcher = Fetcher(stripes=self.stripes, traffic=self.traffic, threads=buffers, timeout=timeout)
        self.disk = disk = DiskThreads(
            DiskHealth() if self.cache is None else self.cache.health, within=patience
        )
        self.files = files = OpenFiles(self.cache, disk)
        read_back = ReadBack(files, self.stripes, disk, nursery, stripe_size=stripe_size)
        windows = Windows(self.pool, self.traffic, stripe_size)
        self.reader = Reader(
            stripes=self.stripes,
            pool=self.pool,
            fetcher=self.fetcher,
            files=files,
            small=SmallReads(self.stripes, disk, stripe_size),
            disk=disk,
            read_back=read_back,
            windows=windows,
            stripe_size=stripe_size,
        )
        self.prefetcher = Prefetcher(
            stripes=self.stripes,
            reader=self.reader,
            files=files,
            read_back=read_back,
            windows=windows,
            stripe_size=stripe_size,
        )

    def version(self, path: str = "file") -> ObjectVersion:
        return self.origin.version(path, self.origin.stat(path))

    async def open(self, path: str = "file") -> Handle:
        return await self.reader.open(self.origin, self.version(path))

    async def read_all(self, handle: Handle, request: int = 10_000) -> bytes:
        parts = []
        for offset in range(0, handle.version.size, request):
            parts.append(bytes(await self.reader.read(handle, offset, request)))
        return b"".join(parts)

    async def settled(self, handle: Handle) -> None:
        """Until all of a file that was read is in the cache, and nothing goes on with its stripes.

        A stripe is present a moment before its work is over, and only then competes for memory.
        """
        with trio.fail_after(20):
            await self.stripes.settle()
        assert handle.file.cached is not None
        assert handle.file.cached.complete


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.005)


async def test_a_sequential_read_fetches_each_stripe_once(nursery: trio.Nursery, tmp_path: Path) -> None:
    house = House(nursery, tmp_path)
    handle = await house.open()
    assert await house.read_all(handle) == CONTENT
    assert sorted(house.origin.ranges) == sorted(
        ("file", offset, min(STRIPE, len(CONTENT) - offset)) for offset in range(0, len(CONTENT), STRIPE)
    )


@pytest.mark.parametrize("cached", [True, False])
async def test_random_reads_are_right(nursery: trio.Nursery, tmp_path: Path, cached: bool) -> None:
    house = House(nursery, tmp_path if cached else None, buffers=6)
    handle = await house.open()
    chance = random.Random(11)
    for _ in range(400):
        offset = chance.randrange(len(CONTENT) + 5000)
        length = chance.choice([1, 100, 4096, STRIPE, 3 * STRIPE])
        data = await house.reader.read(handle, offset, length)
        assert bytes(data) == CONTENT[offset : offset + length]


async def test_what_is_cached_is_not_asked_for_again(nursery: trio.Nursery, tmp_path: Path) -> None:
    first = House(nursery, tmp_path)
    handle = await first.open()
    await first.read_all(handle)
    await first.settled(handle)
    second = House(nursery, tmp_path)
    handle = await second.open()
    assert await second.read_all(handle) == CONTENT
    assert second.origin.ranges == []


async def test_two_readers_of_one_stripe_make_one_request(nursery: trio.Nursery, tmp_path: Path) -> None:
    house = House(nursery, tmp_path)
    go_on = threading.Event()
    house.origin.gate = lambda *_: go_on.wait(20)
    one, other = await house.open(), await house.open()
    got: list[bytes] = []

    async def read(handle: Handle) -> None:
        got.append(bytes(await house.reader.read(handle, 5, 100)))

    async with trio.open_nursery() as readers:
        with trio.CancelScope() as first:
            readers.start_soon(read, other)
            await until(lambda: len(house.origin.ranges) == 1)
            # The one who came first goes; the fetch and the other go on.
            first.cancel()
            await read(one)
        go_on.set()
    assert got == [CONTENT[5:105]]
    assert house.origin.ranges == [("file", 0, STRIPE)]


async def test_bytes_are_given_before_the_stripe_is_whole(nursery: trio.Nursery, tmp_path: Path) -> None:
    origin = MemoryOrigin({"file": CONTENT}, chunk=4096)
    go_on = threading.Event()
    plain = origin.read_range

    def slow(version: ObjectVersion, offset: int, into: memoryview, progress: Progress) -> None:
        def stop_half_way(done: int) -> None:
            progress(done)
            if done >= STRIPE // 2:
                go_on.wait(20)

        plain(version, offset, into, stop_half_way)

    origin.read_range = slow  # type: ignore[method-assign]
    house = House(nursery, tmp_path, origin=origin)
    handle = await house.open()
    with trio.fail_after(10):
        assert bytes(await house.reader.read(handle, 0, 4096)) == CONTENT[:4096]
    go_on.set()


async def test_a_fetch_goes_on_where_it_broke_off(nursery: trio.Nursery, tmp_path: Path) -> None:
    origin = MemoryOrigin({"file": CONTENT}, chunk=4096)
    plain = origin.read_range
    broken: list[int] = []

    def breaks(
        version: ObjectVersion, offset: int, into: memoryview, progress: Callable[[int], None]
    ) -> None:
        def then_breaks(done: int) -> None:
            progress(done)
            if offset < STRIPE and done == 8192 and len(broken) < 3:
                broken.append(offset)
                raise OriginUnavailable("reset")

        plain(version, offset, into, then_breaks)

    origin.read_range = breaks  # type: ignore[method-assign]
    house = House(nursery, tmp_path, origin=origin)
    handle = await house.open()
    assert bytes(await house.reader.read(handle, 0, STRIPE)) == CONTENT[:STRIPE]
    assert broken == [0, 8192, 16384]


async def test_a_replaced_file_is_an_error_and_never_a_mixture(nursery: trio.Nursery, tmp_path: Path) -> None:
    house = House(nursery, tmp_path, count=1)
    handle = await house.open()
    assert bytes(await house.reader.read(handle, 0, 100)) == CONTENT[:100]
    house.origin.replace("file", bytes(len(CONTENT)))
    with pytest.raises(VersionChanged):
        await house.reader.read(handle, 15 * STRIPE, 100)
    fresh = await house.open()
    assert bytes(await house.reader.read(fresh, 15 * STRIPE, 100)) == bytes(100)


async def test_a_version_that_was_put_back_is_there_again(nursery: trio.Nursery, tmp_path: Path) -> None:
    """After a second, and though another handle of it is open."""
    house = House(nursery, tmp_path, count=1)
    handle = await house.open()
    files = house.origin.files
    content = files.pop("file")
    for _ in range(2):
        with pytest.raises(VersionChanged):
            await house.reader.read(handle, 0, 100)
    files["file"] = content
    await trio.sleep(SETTLED_SECONDS)
    fresh = await house.open()
    assert bytes(await house.reader.read(fresh, 0, 100)) == CONTENT[:100]


async def test_an_origin_that_stays_down_is_an_error_in_bounded_time(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    house = House(nursery, tmp_path, timeout=0.5)
    handle = await house.open()

    def down(*_: object) -> None:
        raise OriginUnavailable("connection refused")

    house.origin.gate = down
    with trio.fail_after(10), pytest.raises(OriginUnavailable):
        await house.reader.read(handle, 0, 100)
    asked = house.fetcher.statistics().requests
    with pytest.raises(OriginUnavailable):
        await house.reader.read(handle, 0, 100)
    assert house.fetcher.statistics().requests == asked, "the kernel's second question waits for nothing"
    house.origin.gate = lambda *_: None
    with trio.fail_after(10):
        while (data := await _read_or_none(house, handle)) is None:
            await trio.sleep(0.05)
    assert data == CONTENT[:100]


async def test_the_time_out_counts_from_the_last_byte_and_not_from_the_failure(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    house = House(nursery, tmp_path, timeout=0.5, origin=MemoryOrigin({"file": CONTENT[:STRIPE]}))
    handle = await house.open()

    def fall_silent(version: ObjectVersion, offset: int, into: memoryview, progress: Progress) -> None:
        into[:100] = CONTENT[offset : offset + 100]
        progress(100)
        time.sleep(0.6)  # the origin's silence, as long as the time-out
        raise OriginUnavailable("no answer in time")

    house.origin.read_range = fall_silent  # type: ignore[method-assign]
    with trio.fail_after(10), pytest.raises(OriginUnavailable):
        await house.reader.read(handle, 1000, 100)
    assert house.fetcher.statistics().requests == 1


async def test_a_fetch_that_failed_holds_no_memory(
    nursery: trio.Nursery, tmp_path: Path, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    caplog.set_level(logging.CRITICAL)  # pytest keeps what is logged, the error with it
    gc.disable()  # cycles would hold it until the next collection, which may be long after
    request.addfinalizer(gc.enable)
    house = House(nursery, tmp_path, timeout=0.1, origin=MemoryOrigin({"file": CONTENT[:STRIPE]}))
    handle = await house.open()
    memory: list[weakref.ref[object]] = []

    def break_off(version: ObjectVersion, offset: int, into: memoryview, progress: Progress) -> None:
        memory.append(weakref.ref(into.obj))
        raise OriginUnavailable("the connection broke")

    house.origin.read_range = break_off  # type: ignore[method-assign]
    with trio.fail_after(10), pytest.raises(OriginUnavailable):
        await house.reader.read(handle, 0, 100)
    assert memory
    with trio.fail_after(10):
        while any(left() for left in memory):
            await trio.sleep(0.01)  # the thread that delivered the error is about to let go of it
            house.stripes.trim()
            house.pool.trim()


async def _read_or_none(house: House, handle: Handle) -> bytes | None:
    try:
        return bytes(await house.reader.read(handle, 0, 100))
    except OriginUnavailable:
        return None


async def test_a_flipped_byte_in_the_cache_is_fetched_again(nursery: trio.Nursery, tmp_path: Path) -> None:
    first = House(nursery, tmp_path)
    handle = await first.open()
    await first.read_all(handle)
    await first.settled(handle)
    (data,) = tmp_path.glob("objects/*/*.data")
    with data.open("r+b") as file:
        file.seek(3 * STRIPE + 17)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    second = House(nursery, tmp_path)
    handle = await second.open()
    assert await second.read_all(handle) == CONTENT
    assert second.origin.ranges == [("file", 3 * STRIPE, STRIPE)]


async def test_memory_stays_within_its_budget_for_many_files(nursery: trio.Nursery, tmp_path: Path) -> None:
    content = {f"file{number}": CONTENT[number:] for number in range(24)}
    house = House(nursery, tmp_path, origin=MemoryOrigin(content), buffers=16, count=8)

    async def read(path: str) -> None:
        handle = await house.open(path)
        assert await house.read_all(handle, request=30_000) == content[path]
        await house.reader.close(handle)

    async with trio.open_nursery() as readers:
        for path in content:
            readers.start_soon(read, path)
    statistics = house.pool.statistics()
    assert statistics.peak <= 16 * STRIPE
    cache = house.cache
    assert cache is not None
    await until(lambda: len(house.files) == 0 and cache.statistics().held == 0)


async def test_read_ahead_uses_the_given_number_of_requests(nursery: trio.Nursery, tmp_path: Path) -> None:
    house = House(nursery, tmp_path, count=6)
    go_on = threading.Event()
    house.origin.gate = lambda *_: go_on.wait(20)
    handle = await house.open()
    async with trio.open_nursery() as readers:
        readers.start_soon(house.reader.read, handle, 0, 2 * STRIPE)
        await until(lambda: len(house.origin.ranges) == 6)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(house.origin.ranges) == 6
        go_on.set()


async def test_reads_past_the_end_are_short_and_empty_files_are_empty(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    house = House(nursery, tmp_path, origin=MemoryOrigin({"file": b"abc", "empty": b""}))
    handle = await house.open()
    assert bytes(await house.reader.read(handle, 1, MIB)) == b"bc"
    assert bytes(await house.reader.read(handle, 3, 10)) == b""
    assert bytes(await house.reader.read(handle, 99, 10)) == b""
    empty = await house.open("empty")
    assert bytes(await house.reader.read(empty, 0, 10)) == b""


async def test_read_ahead_starts_within_the_first_stripe(nursery: trio.Nursery, tmp_path: Path) -> None:
    house = House(nursery, tmp_path, count=4)
    handle = await house.open()
    for offset in range(0, STRIPE // 2, 1024):  # as small as the kernel's are without root, to scale
        await house.reader.read(handle, offset, 1024)
    await until(lambda: len(house.origin.ranges) >= 4)


async def test_a_look_finds_what_is_in_memory_and_read_ahead_follows(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    house = House(nursery, tmp_path)
    handle = await house.open()
    assert house.reader.look(handle, 0, 1000) is None
    size, request = len(CONTENT), 16 * KIB
    got = bytearray()
    slow = 0
    for offset in range(0, size, request):
        view = house.reader.look(handle, offset, request)
        if view is None:
            slow += 1
            view = await house.reader.read(handle, offset, request)
        else:
            house.reader.looked(handle, offset, len(view))
        got += view
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert got == CONTENT
    assert slow < 4  # the rest was ahead of the reader
    assert house.reader.statistics().bytes == size
    assert len(house.origin.ranges) == len(range(0, size, STRIPE))
    await house.reader.close(handle)


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        (0, 0, b""),
        (len(CONTENT), 10, b""),
        (len(CONTENT) + 5, 10, b""),
        (len(CONTENT) - 5, 10, CONTENT[-5:]),
        (STRIPE - 1, 2, None),  # two stripes
        (STRIPE, STRIPE, CONTENT[STRIPE : 2 * STRIPE]),
    ],
)
async def test_the_edges_of_a_look(
    nursery: trio.Nursery, tmp_path: Path, offset: int, length: int, expected: bytes | None
) -> None:
    house = House(nursery, tmp_path)
    handle = await house.open()
    assert await house.read_all(handle) == CONTENT
    await house.settled(handle)  # else a stripe saved later takes the place of those looked for
    await house.reader.read(handle, STRIPE, STRIPE)
    await house.reader.read(handle, len(CONTENT) - 5, 5)
    found = house.reader.look(handle, offset, length)
    assert (None if found is None else bytes(found)) == expected
    await house.reader.close(handle)


async def test_looks_of_threads_while_memory_is_given_back(nursery: trio.Nursery, tmp_path: Path) -> None:
    """Never a byte of another stripe, however the memory changes hands under the view."""
    house = House(nursery, tmp_path, buffers=6, count=2)
    handle = await house.open()
    stop = threading.Event()
    wrong: list[int] = []
    found = 0

    def look_around(seed: int) -> None:
        nonlocal found
        chosen = random.Random(seed)
        while not stop.is_set():
            offset = chosen.randrange(len(CONTENT))
            length = min(chosen.choice((1, 4096, 30_000)), STRIPE - offset % STRIPE)
            view = house.reader.look(handle, offset, length)
            if view is not None:
                found += 1
                if bytes(view) != CONTENT[offset : offset + length]:
                    wrong.append(offset)

    async with trio.open_nursery() as threads:
        for seed in range(3):
            threads.start_soon(trio.to_thread.run_sync, look_around, seed)
        for _ in range(5):
            assert await house.read_all(handle) == CONTENT
        stop.set()
    assert wrong == []
    assert found > 0
    await house.reader.close(handle)
