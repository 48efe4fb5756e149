"""Prefetching: every byte is on the disk and checked, bad ones are mended, failures name their cause."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from fusestripe.cache import pair as pair_module
from fusestripe.cache.files import CacheDirectory
from fusestripe.errors import CacheError, NotFound
from fusestripe.namespace.routes import RouteTable
from fusestripe.namespace.tree import Tree
from fusestripe.openfiles import OpenFile
from fusestripe.origins.base import Progress
from fusestripe.prefetcher import FILES_AT_ONCE, Headway, Pin, Report, outermost, prefetch
from fusestripe.units import GIB, ObjectVersion
from tests.support.memory_origin import MemoryOrigin
from tests.unit.test_reader import CONTENT, STRIPE, House, until


def damage(cache: Path, offset: int) -> None:
    """Overwrite four bytes of the only file in the cache."""
    (data,) = cache.glob("objects/*/*.data")
    with data.open("r+b") as file:
        file.seek(offset)
        file.write(b"oops")


async def open_file(house: House) -> OpenFile:
    return await house.files.hold(house.origin, house.version())


async def test_every_byte_is_brought_and_checked(nursery: trio.Nursery, tmp_path: Path) -> None:
    house = House(nursery, tmp_path)
    file = await open_file(house)
    with pytest.raises(CacheError):
        await house.prefetcher.check(file, Headway())
    headway = Headway()
    await house.prefetcher.prefetch(file, headway)
    assert (headway.checked, headway.fetched, headway.cached) == (len(CONTENT), len(CONTENT), 0)
    house.origin.ranges.clear()
    for look in (house.prefetcher.check, house.prefetcher.prefetch):
        headway = Headway()
        await look(file, headway)
        assert (headway.checked, headway.fetched, headway.cached) == (len(CONTENT), 0, len(CONTENT))
    assert house.origin.ranges == []


async def test_what_was_there_and_what_had_to_be_fetched_are_told_apart(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    house = House(nursery, tmp_path)
    file = await open_file(house)
    for index in (1, 2, 3):
        await house.reader.bring(file, index)
    damage(tmp_path, 3 * STRIPE + 100)  # there, but not right
    (report,) = await run(house, nursery)
    assert (report.state, report.done) == ("done", len(CONTENT))
    assert (report.cached, report.fetched) == (2 * STRIPE, len(CONTENT) - 2 * STRIPE)


async def test_bytes_of_a_stripe_count_as_they_arrive(nursery: trio.Nursery, tmp_path: Path) -> None:
    """A stripe of a slow origin may take seconds."""
    seen, release = threading.Event(), threading.Event()

    class Halting(MemoryOrigin):
        def read_range(
            self, version: ObjectVersion, offset: int, into: memoryview, progress: Progress
        ) -> None:
            def halt(done: int) -> None:
                progress(done)
                if not release.is_set() and done == STRIPE // 2:
                    seen.set()
                    assert release.wait(20)

            super().read_range(version, offset, into, halt)

    origin = Halting({"file": CONTENT[:STRIPE]}, chunk=STRIPE // 4)
    house = House(nursery, tmp_path, origin=origin)
    told: list[tuple[int, int]] = []

    async def send(report: Report) -> None:
        told.append((report.done, report.fetched))
        if told[-1] == (0, STRIPE // 2):
            release.set()

    with trio.fail_after(20):
        await prefetch(tree_of(house, nursery), house.prefetcher, [""], send, check=False, pin=None)
    assert seen.is_set()
    assert told[-1] == (STRIPE, STRIPE)
    assert told == sorted(told)


async def test_a_bad_stripe_that_is_still_in_memory_is_fetched_again(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    house = House(nursery, tmp_path)
    file = await open_file(house)
    await house.prefetcher.prefetch(file, Headway())
    stripes = range(len(CONTENT) // STRIPE)
    kept = next(index for index in stripes if (house.version(), index) in house.stripes)
    damage(tmp_path, kept * STRIPE + 100)
    await house.prefetcher.prefetch(file, Headway())
    await house.prefetcher.check(file, Headway())


async def test_a_stripe_that_is_read_back_wrong_is_fetched_again(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(nursery, tmp_path)
    file = await open_file(house)
    await house.reader.bring(file, 3)
    damage(tmp_path, 3 * STRIPE + 100)
    await house.prefetcher.prefetch(file, Headway())
    assert house.origin.ranges.count(("file", 3 * STRIPE, STRIPE)) == 2


async def test_no_room_and_a_failing_disk_are_told_apart(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = House(nursery, tmp_path / "small", cache_size=4 * STRIPE)
    with pytest.raises(CacheError, match="does not fit into the cache"):
        await small.prefetcher.prefetch(await open_file(small), Headway())

    house = House(nursery, tmp_path / "broken")
    file = await open_file(house)
    await house.reader.bring(file, 0)

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(pair_module, "write_direct", broken)
    monkeypatch.setattr(pair_module, "write_at", broken)
    with pytest.raises(CacheError, match="Input/output error"):
        await house.reader.bring(file, 1)
    with pytest.raises(CacheError, match="the cache disk failed"):
        await house.reader.bring(file, 2)


async def test_what_was_kept_in_memory_while_there_was_no_room_is_saved_later(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    house = House(nursery, tmp_path, origin=MemoryOrigin({"file": CONTENT[: 2 * STRIPE]}))
    assert house.cache is not None
    file = await open_file(house)
    assert file.cached is not None
    house.cache._space.limit = 0
    handle = await house.open()
    await house.read_all(handle)
    await until(lambda: all(house.stripes._stripes[key].settled.is_set() for key in house.stripes._stripes))
    assert file.cached.present_bytes == 0
    house.cache._space.limit = GIB
    house.cache._space.released(was_used=True)
    await house.prefetcher.prefetch(file, Headway())
    assert file.cached.complete


async def test_idle_stripes_make_way_for_the_check(nursery: trio.Nursery, tmp_path: Path) -> None:
    house = House(nursery, tmp_path, buffers=4, origin=MemoryOrigin({"file": CONTENT[: 4 * STRIPE]}))
    file = await open_file(house)
    with trio.fail_after(20):
        await house.prefetcher.prefetch(file, Headway())
        for index in range(4):  # idle, of no use to anybody
            house.stripes.find((file.version, index)) or house.reader._begin(file, index, urgent=True)
        await trio.sleep(0.2)
        await house.prefetcher.check(file, Headway())


def tree_of(house: House, nursery: trio.Nursery) -> Tree:
    return Tree(RouteTable({"": house.origin}), nursery, ttl=60, negative_ttl=5, timeout=5)


async def run(
    house: House, nursery: trio.Nursery, *, pin: Pin | None = None, paths: Sequence[str] = ("",)
) -> list[Report]:
    ended: list[Report] = []

    async def send(report: Report) -> None:
        if report.state in ("done", "failed"):
            ended.append(report)

    await prefetch(tree_of(house, nursery), house.prefetcher, paths, send, check=False, pin=pin)
    return ended


async def test_more_than_the_cache_holds_is_refused_before_a_byte_is_fetched(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 4 * STRIPE
    files = {f"d/file{number:02}": CONTENT[number : number + size] for number in range(13)}
    house = House(nursery, tmp_path, origin=MemoryOrigin(files), cache_size=12 * size)
    with pytest.raises(CacheError) as refused:
        await run(house, nursery)
    assert refused.value.message == "13 files of 3.2 MiB are more than the 3 MiB that the cache holds"
    assert refused.value.mend == "name fewer files, or raise --cache-size"
    assert house.origin.ranges == []
    # Ten fit, and what is named twice counts once.
    fits = [*(f"d/file{number:02}" for number in range(10)), *["d/file00"] * 4, "d/nothing"]
    assert [report.state for report in await run(house, nursery, paths=fits)].count("done") == 10

    monkeypatch.setattr(CacheDirectory, "free", lambda _: STRIPE)
    with pytest.raises(CacheError, match="that its disk has for the cache") as refused:
        await run(house, nursery)
    assert "cache-size" not in refused.value.mend
    assert "free some space on that disk" in refused.value.mend


async def test_a_full_disk_is_no_matter_of_the_limit(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(nursery, tmp_path)
    file = await open_file(house)
    monkeypatch.setattr(CacheDirectory, "free", lambda _: 0)
    with pytest.raises(CacheError, match="the disk of the cache is full") as refused:
        await house.prefetcher.prefetch(file, Headway())
    assert "free some space on that disk" in refused.value.mend

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(CacheDirectory, "free", lambda _: GIB)
    other = House(nursery, tmp_path / "other")
    file = await open_file(other)
    monkeypatch.setattr(pair_module, "write_direct", full)
    monkeypatch.setattr(pair_module, "write_at", full)
    with pytest.raises(CacheError, match="the disk of the cache is full"):
        await other.prefetcher.prefetch(file, Headway())


def test_what_lies_in_something_else_that_is_named_counts_once() -> None:
    assert outermost(["a/b", "a", "ab", "c/d", "c/d"]) == ["a", "ab", "c/d"]
    assert outermost(["a", ""]) == [""]
    assert outermost([]) == []


async def test_what_is_done_is_not_evicted_for_what_comes_later(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 4 * STRIPE
    files = {f"file{number:02}": CONTENT[number : number + size] for number in range(24)}
    house = House(nursery, tmp_path, origin=MemoryOrigin(files), cache_size=12 * size)

    async def unknown() -> None:  # another mount fills the cache after it has been asked
        return

    monkeypatch.setattr(house.files, "capacity", unknown)
    reports = await run(house, nursery)
    done = [report.path for report in reports if report.state == "done"]
    assert len(reports) == len(files) > len(done) >= 1
    assert all("does not fit" in report.error for report in reports if report.state == "failed")
    await until(lambda: len(house.files) == 0)  # one that is whole is read back, and held, a little longer
    for path in done:
        file = await house.files.hold(house.origin, house.version(path))
        await house.prefetcher.check(file, Headway())
        await house.files.let_go(file)


async def test_nothing_of_a_file_that_has_failed_is_under_way(nursery: trio.Nursery, tmp_path: Path) -> None:
    """It would be saved later, and a file that is done evicted for it."""
    others, release = threading.Event(), threading.Event()

    class Failing(MemoryOrigin):
        def read_range(
            self, version: ObjectVersion, offset: int, into: memoryview, progress: Progress
        ) -> None:
            if offset == 0:
                assert others.wait(20)
                raise NotFound("it is gone")
            others.set()
            assert release.wait(20)
            super().read_range(version, offset, into, progress)

    house = House(nursery, tmp_path, origin=Failing({"file": CONTENT}))
    ended = trio.Event()

    async def prefetch_it() -> None:
        (report,) = await run(house, nursery)
        assert (report.state, report.error) == ("failed", "it is gone")
        ended.set()

    async with trio.open_nursery() as tasks:
        tasks.start_soon(prefetch_it)
        await until(lambda: house.fetcher.statistics().errors == 1)
        with trio.move_on_after(0.3):
            await ended.wait()
        assert not ended.is_set()
        release.set()
    assert len(house.files) == 0
    assert len(house.origin.ranges) <= FILES_AT_ONCE


async def test_what_is_pinned_outlives_what_is_read_later(nursery: trio.Nursery, tmp_path: Path) -> None:
    size = 4 * STRIPE
    files = {f"file{number}": CONTENT[number : number + size] for number in range(2)}
    house = House(nursery, tmp_path, origin=MemoryOrigin(files), cache_size=4 * size)
    assert [report.state for report in await run(house, nursery, pin=Pin())] == ["done"] * 2
    for number in range(6):
        house.origin.replace(f"later{number}", CONTENT[:size])
        handle = await house.open(f"later{number}")
        await house.read_all(handle)
        await house.reader.close(handle)
    for path in files:
        file = await house.files.hold(house.origin, house.version(path))
        await house.prefetcher.check(file, Headway())
        await house.files.let_go(file)


async def test_a_large_tree_is_no_task_for_each_file(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"file{number:03}": b"x" for number in range(300)}
    house = House(nursery, tmp_path, origin=MemoryOrigin(files))
    most = 0
    real = house.files.hold

    async def hold(origin: MemoryOrigin, version: object, *, use: bool) -> OpenFile:
        nonlocal most
        most = max(most, trio.lowlevel.current_statistics().tasks_living)
        return await real(origin, version, use=use)  # type: ignore[arg-type]

    monkeypatch.setattr(house.files, "hold", hold)
    assert len(await run(house, nursery)) == len(files)
    assert most < 100
