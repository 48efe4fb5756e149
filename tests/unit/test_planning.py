"""What a prefetch would do: counted to the byte before anything is fetched, and true afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from fusestripe.cache.files import CacheDirectory
from fusestripe.errors import CacheError
from fusestripe.namespace.routes import RouteTable
from fusestripe.namespace.tree import Tree
from fusestripe.planning import Absent, Plan, PlannedFile, Share, Shares, make_plan
from fusestripe.prefetcher import Pin, Report, prefetch
from fusestripe.selection import Selected
from fusestripe.units import GIB
from tests.support.memory_origin import MemoryOrigin
from tests.unit.test_reader import CONTENT, STRIPE, House, until

SIZE = 4 * STRIPE
FILES = {f"d/file{number}": CONTENT[number : number + SIZE] for number in range(6)}


class Shop:
    def __init__(self, nursery: trio.Nursery, cache: Path, *, cache_size: int = GIB) -> None:
        self.house = House(nursery, cache, origin=MemoryOrigin(FILES), cache_size=cache_size)
        self.tree = Tree(RouteTable({"r": self.house.origin}), nursery, ttl=60, negative_ttl=5, timeout=5)

    async def plan(self, *paths: str, shares: Shares | None = None) -> Plan:
        selected = Selected(tuple(f"r/{path}" for path in paths))
        return await make_plan(self.tree, self.house.files, selected, directory="cache", shares=shares)

    async def bring(self, *paths: str, pin: Pin | None = None, check: bool = False) -> list[Report]:
        ended: list[Report] = []

        async def send(report: Report) -> None:
            if report.state in ("done", "missing", "failed"):
                ended.append(report)

        named = [f"r/{path}" for path in paths]
        await prefetch(self.tree, self.house.prefetcher, named, send, check=check, pin=pin)
        await self.rest()
        return ended

    async def rest(self) -> None:
        """Until nothing uses a file any more: one that is whole is read back, and held, a little longer."""
        cache = self.house.cache
        assert cache is not None
        await until(lambda: cache.statistics().held == 0)


async def test_files_and_bytes_and_where_from(nursery: trio.Nursery, tmp_path: Path) -> None:
    shop = Shop(nursery, tmp_path)
    file = await shop.house.files.hold(shop.house.origin, shop.house.version("d/file0"))
    for index in (1, 2):
        await shop.house.reader.bring(file, index)
    await shop.house.files.let_go(file)
    shop.house.origin.ranges.clear()
    plan = await shop.plan("d/file0", "d/file1", "d/nothing")
    assert shop.house.origin.ranges == []
    assert plan.each == (PlannedFile("r/d/file0", SIZE, 2 * STRIPE), PlannedFile("r/d/file1", SIZE, 0))
    assert (plan.files, plan.bytes, plan.cached) == (2, 2 * SIZE, 2 * STRIPE)
    assert plan.shares == (Share("origin", "memory://", 2, 2 * SIZE - 2 * STRIPE),)
    assert [failure.path for failure in plan.failures] == ["r/d/nothing"]
    assert plan.room is not None
    assert (plan.fits, plan.why, plan.room.evicted) == (True, "", 0)
    done = await shop.bring("d/file0", "d/file1")
    assert sum(report.fetched for report in done) == plan.bytes - plan.cached
    after = await shop.plan("d/file0", "d/file1")
    assert (after.cached, after.shares) == (2 * SIZE, ())


async def test_peers_have_their_place(nursery: trio.Nursery, tmp_path: Path) -> None:
    async def shares(absent: Sequence[Absent]) -> list[Share]:
        return [Share("peers", "node-2", len(absent), sum(one.missing for one in absent))]

    plan = await Shop(nursery, tmp_path).plan("d", shares=shares)
    assert plan.shares == (Share("peers", "node-2", 6, 6 * SIZE),)


async def test_what_has_to_go_for_it(nursery: trio.Nursery, tmp_path: Path) -> None:
    shop = Shop(nursery, tmp_path, cache_size=4 * SIZE)
    await shop.bring("d/file0", "d/file1", "d/file2")
    plan = await shop.plan("d/file2", "d/file3", "d/file4")
    assert plan.room is not None
    assert (plan.fits, plan.cached, plan.room.need) == (True, SIZE, 2 * SIZE)
    assert (plan.room.evicted, plan.room.evicted_bytes) == (1, SIZE)
    assert plan.room.kept == SIZE  # what is wanted itself does not make room
    done = await shop.bring("d/file2", "d/file3", "d/file4")
    assert [report.state for report in done] == ["done"] * 3


async def test_what_does_not_fit(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(nursery, tmp_path, cache_size=4 * SIZE)
    plan = await shop.plan("d")
    assert (plan.fits, plan.why) == (False, "1.5 MiB more are too much for a cache of 1 MiB")
    assert "--cache-size" in plan.mend
    # Pinned files do not make room, nor does what is in use.
    await shop.bring("d/file0", pin=Pin())
    await shop.bring("d/file1")
    file = await shop.house.files.hold(shop.house.origin, shop.house.version("d/file1"))
    plan = await shop.plan("d/file2", "d/file3")
    assert plan.fits
    plan = await shop.plan("d/file2", "d/file3", "d/file4")
    assert "512 KiB of it cannot be evicted" in plan.why
    assert "unpin" in plan.mend
    await shop.house.files.let_go(file)
    assert (await shop.plan("d/file2", "d/file3", "d/file4")).fits

    monkeypatch.setattr(CacheDirectory, "free", lambda _: STRIPE)
    plan = await shop.plan("d/file2", "d/file3")
    assert plan.why == "512 KiB more are too much for the disk, which has 320 KiB for them"
    assert "free some space" in plan.mend


async def test_a_plan_is_no_use_of_what_is_there(nursery: trio.Nursery, tmp_path: Path) -> None:
    shop = Shop(nursery, tmp_path)
    await shop.bring("d/file0")
    # To let go of it was the last use.
    ledgers = {path: path.stat().st_atime_ns for path in tmp_path.rglob("*.ledger")}
    everything = sorted(tmp_path.rglob("*"))
    await shop.plan("d")
    assert {path: path.stat().st_atime_ns for path in tmp_path.rglob("*.ledger")} == ledgers
    assert sorted(tmp_path.rglob("*")) == everything


async def test_whoever_only_looks_with_a_smaller_limit_in_mind_evicts_nothing(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    await Shop(nursery, tmp_path).bring("d")
    shop = Shop(nursery, tmp_path, cache_size=3 * SIZE)
    plan = await shop.plan("d/file0", "d/file1")
    assert (plan.cached, plan.fits) == (2 * SIZE, True)
    assert not (await shop.plan("d")).fits
    everything = sorted(tmp_path.rglob("*"))
    assert [report.done for report in await shop.bring("d", check=True)] == [SIZE] * 6
    with pytest.raises(CacheError, match="are more than the"):
        await shop.bring("d")
    assert sorted(tmp_path.rglob("*")) == everything
    await shop.bring("d/file0")
    assert len(list(tmp_path.rglob("*.data"))) == 3, "who uses it makes room"


async def test_a_cache_that_does_not_tell(nursery: trio.Nursery, tmp_path: Path) -> None:
    shop = Shop(nursery, tmp_path)
    shop.house.files._cache = None
    plan = await shop.plan("d/file0")
    assert (plan.room, plan.fits, plan.cached) == (None, False, 0)
    assert "does not say" in plan.why
