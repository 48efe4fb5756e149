"""A request far behind its fellows: a second one is sent after it, and the first whole answer wins."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from fusestripe.errors import OriginUnavailable, VersionChanged
from fusestripe.origins.base import Progress, Superseded
from fusestripe.stripes.memory import Buffer
from fusestripe.stripes.traffic import HEDGED_SHARE
from fusestripe.units import ObjectVersion
from tests.support.memory_origin import MemoryOrigin
from tests.unit.test_reader import STRIPE, House, until

STRIPES = 60
CONTENT = random.Random(3).randbytes(STRIPES * STRIPE)
LATE = 40
"""By then enough others came for their pace to be known, and for one to be asked for twice."""

Behave = Callable[[memoryview, Progress], None]


class Stalling(MemoryOrigin):
    """The first request for a stripe in ``stalled`` does what ``behave`` says after ``after`` bytes.

    ``second`` is called before the others that are for one of them.
    """

    def __init__(self, stalled: set[int], behave: Behave, *, after: int = 0) -> None:
        super().__init__({"file": CONTENT}, chunk=4096)
        self.stalled = stalled
        self.behave = behave
        self.after = after
        self.second: Callable[[], None] = lambda: None
        self.times: Counter[int] = Counter()
        self.ended: list[BaseException | None] = []

    def read_range(self, version: ObjectVersion, offset: int, into: memoryview, progress: Progress) -> None:
        """As it should be, but for what is stalled."""
        index = offset // STRIPE
        self.times[index] += 1
        if index not in self.stalled:
            super().read_range(version, offset, into, progress)
        elif self.times[index] > 1:
            self.second()
            super().read_range(version, offset, into, progress)
        else:
            try:
                if self.after:
                    super().read_range(version, offset, into[: self.after], progress)
                self.behave(into, progress)
                super().read_range(version, offset, into, progress)
            except BaseException as error:
                self.ended.append(error)
                raise
            self.ended.append(None)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with other work holds requests up too; those are not meant here."""
    monkeypatch.setattr("fusestripe.stripes.pace.IDLE_GRACE", 0.5)
    monkeypatch.setattr("fusestripe.stripes.pace.GRACE", 0.5)


@contextmanager
def held() -> Iterator[threading.Event]:
    """An event on which a request may wait: set at the latest at the end."""
    event = threading.Event()
    try:
        yield event
    finally:
        event.set()


async def read_all(house: House) -> bytes:
    with trio.fail_after(20):
        return await house.read_all(await house.open(), STRIPE)


def used_after_trim(house: House) -> int:
    """Bytes of memory that something still needs."""
    for _ in range(2):
        house.stripes.trim()
    return house.pool.statistics().used


@pytest.mark.parametrize("after", [0, 4096, STRIPE - 4096])
async def test_one_that_stalls_is_asked_for_again_from_where_it_is(
    nursery: trio.Nursery, tmp_path: Path, after: int
) -> None:
    with held() as release:
        origin = Stalling({LATE}, lambda *_: _wait(release), after=after)
        house = House(nursery, tmp_path, origin=origin)
        assert await read_all(house) == CONTENT
        asked = [(offset, length) for _, offset, length in origin.ranges if offset // STRIPE == LATE]
        assert (LATE * STRIPE + after, STRIPE - after) in asked
        assert house.fetcher.statistics().hedged == STRIPE - after
        assert house.traffic.of(house.origin).statistics().hedged == STRIPE - after
        assert origin.times[LATE] == 2
        assert house.fetcher.statistics().errors == 0


async def test_what_the_first_one_writes_when_it_has_lost_meets_nobody(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    with held() as release:

        def scribble(into: memoryview, progress: Progress) -> None:
            _wait(release)
            into[:] = bytes(len(into))
            progress(len(into))

        origin = Stalling({LATE}, scribble)
        house = House(nursery, tmp_path, origin=origin, buffers=64)
        handle = await house.open()
        with trio.fail_after(20):
            for index in range(LATE):
                await house.reader.read(handle, index * STRIPE, STRIPE)
            view = await house.reader.read(handle, LATE * STRIPE, STRIPE)
            assert isinstance(view, memoryview)
            release.set()
            await until(lambda: bool(origin.ended))
            assert isinstance(origin.ended[0], Superseded)
            assert bytes(view) == CONTENT[LATE * STRIPE : (LATE + 1) * STRIPE]
            assert await house.read_all(handle, STRIPE) == CONTENT
            await house.settled(handle)
    other = House(nursery, tmp_path)
    assert await other.read_all(await other.reader.open(origin, handle.version), STRIPE) == CONTENT
    assert origin.times[LATE] == 2


async def test_bytes_asked_for_twice_stay_few(nursery: trio.Nursery, tmp_path: Path) -> None:
    with held() as release:
        origin = Stalling(set(range(24, STRIPES, 6)), lambda *_: _wait(release, 1.5))
        house = House(nursery, tmp_path, origin=origin)
        assert await read_all(house) == CONTENT
        statistics = house.fetcher.statistics()
        assert statistics.hedged < HEDGED_SHARE * statistics.bytes
        assert 0 < sum(times - 1 for times in origin.times.values()) <= 3


async def test_the_first_one_may_still_win(nursery: trio.Nursery, tmp_path: Path) -> None:
    with held() as release:
        origin = Stalling({LATE}, lambda *_: _wait(release))

        def unavailable() -> None:
            release.set()
            raise OriginUnavailable("reset")

        origin.second = unavailable
        house = House(nursery, tmp_path, origin=origin)
        assert await read_all(house) == CONTENT
        assert origin.ended == [None]
        assert house.fetcher.statistics().retries == 0


async def test_both_fail_and_it_is_asked_again(nursery: trio.Nursery, tmp_path: Path) -> None:
    with held() as release:

        def fail(*_: object) -> None:
            _wait(release)
            raise OriginUnavailable("reset")

        origin = Stalling({LATE}, fail)

        def fail_once() -> None:
            if origin.times[LATE] == 2:
                release.set()
                raise OriginUnavailable("reset")

        origin.second = fail_once
        house = House(nursery, tmp_path, origin=origin)
        assert await read_all(house) == CONTENT
        assert house.fetcher.statistics().retries == 1


async def test_a_version_that_is_gone_is_told_at_once(nursery: trio.Nursery, tmp_path: Path) -> None:
    with held() as release:
        origin = Stalling({LATE}, lambda *_: _wait(release))

        def changed() -> None:
            raise VersionChanged("file")

        origin.second = changed
        house = House(nursery, tmp_path, origin=origin)
        with pytest.raises(VersionChanged):
            await read_all(house)
        assert not release.is_set()


async def test_memory_comes_back_whoever_wins(nursery: trio.Nursery, tmp_path: Path) -> None:
    with held() as release:
        origin = Stalling({LATE}, lambda *_: _wait(release))
        house = House(nursery, None, origin=origin, buffers=16)
        assert await read_all(house) == CONTENT
        assert house.fetcher.statistics().hedged
        await until(lambda: used_after_trim(house) == 0)


async def test_one_that_has_told_its_last_byte_is_not_late(nursery: trio.Nursery, tmp_path: Path) -> None:
    """Its origin may take time to vouch for them, or to close what it has open."""
    origin = Stalling(set(), lambda *_: None)
    plain = origin.read_range

    def linger(version: ObjectVersion, offset: int, into: memoryview, progress: Progress) -> None:
        plain(version, offset, into, progress)
        if offset == LATE * STRIPE:
            _wait(threading.Event(), 1.5)

    origin.read_range = linger  # type: ignore[method-assign]
    house = House(nursery, tmp_path, origin=origin)
    assert await read_all(house) == CONTENT
    assert origin.times[LATE] == 1
    assert house.fetcher.statistics().hedged == 0


async def test_where_there_is_no_memory_now_there_may_be_later(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held() as release:
        origin = Stalling({LATE}, lambda *_: _wait(release))
        house = House(nursery, tmp_path, origin=origin)
        spare, refused = house.stripes.spare, 0

        def none_at_first(length: int) -> Buffer | None:
            nonlocal refused
            refused += 1
            return None if refused < 3 else spare(length)

        monkeypatch.setattr(house.stripes, "spare", none_at_first)
        assert await read_all(house) == CONTENT
        assert refused == 3


async def test_few_are_doubled_at_once_and_losers_count_until_they_end(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusestripe.stripes.traffic.HEDGED_THREADS", 64)
    with held() as release:
        origin = Stalling({LATE, LATE + 5}, lambda *_: _wait(release))
        house = House(nursery, tmp_path, origin=origin, timeout=60)
        traffic = house.traffic.of(origin)
        traffic.fetched = 100 * len(CONTENT)  # as after a long life
        handle = await house.open()
        with trio.fail_after(20):
            for index in range(LATE + 1):
                await house.reader.read(handle, index * STRIPE, STRIPE)
            assert traffic.doubles == 1
            with trio.move_on_after(2):
                await house.reader.read(handle, (LATE + 5) * STRIPE, STRIPE)
            assert origin.times[LATE + 5] == 1
            release.set()
            assert await house.read_all(handle, STRIPE) == CONTENT
            await until(lambda: traffic.doubles == 0)


async def test_cancelled_while_both_are_under_way(tmp_path: Path) -> None:
    with held() as release:
        origin = Stalling({LATE}, lambda *_: _wait(release))
        second = threading.Event()

        def stall_too() -> None:
            second.set()
            _wait(release)

        origin.second = stall_too
        async with trio.open_nursery() as nursery:
            house = House(nursery, None, origin=origin)
            nursery.start_soon(read_all, house)
            await until(second.is_set)
            nursery.cancel_scope.cancel()
        assert used_after_trim(house) == 0


def _wait(event: threading.Event, seconds: float = 30) -> None:
    event.wait(seconds)
