"""Asking again: within one time for all that is tried, however it fails, and never in a storm."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from fusestripe.errors import BadAnswer, CredentialsRefused, OriginError, OriginUnavailable, VersionChanged
from fusestripe.origins.base import Progress
from fusestripe.origins.retry import ENOUGH, FIRST_DELAY, Backoff, retried
from fusestripe.units import ObjectVersion
from tests.support.memory_origin import MemoryOrigin
from tests.unit.test_reader import STRIPE, House

TIMEOUT = 300.0
FAILURE = OriginUnavailable("no")


async def tries_until_given_up(backoff: Backoff, error: OriginError, work: Callable[[], None]) -> list[float]:
    """The times, from now on, at which something is tried that always fails with ``error``."""
    began, times = trio.current_time(), []
    while True:
        times.append(trio.current_time() - began)
        work()
        try:
            await backoff.after(error)
        except OriginError:
            return times


def nothing() -> None:
    pass


@pytest.mark.parametrize("error", [FAILURE, BadAnswer("no")], ids=lambda error: type(error).__name__)
async def test_waits_double_up_to_a_limit_and_end_in_time(
    autojump_clock: trio.testing.MockClock, error: OriginError
) -> None:
    times = await tries_until_given_up(Backoff(TIMEOUT, jitter=lambda: 1.0), error, nothing)
    waits = [after - before for before, after in itertools.pairwise(times)]
    assert waits[:8] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10])
    assert max(waits) == pytest.approx(10)
    assert 0.9 * TIMEOUT <= times[-1] <= TIMEOUT
    assert len(times) < 45


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
async def test_those_who_failed_together_come_back_apart(
    autojump_clock: trio.testing.MockClock, jitter: float
) -> None:
    times = await tries_until_given_up(Backoff(TIMEOUT, jitter=lambda: jitter), FAILURE, nothing)
    assert times[1] == pytest.approx(FIRST_DELAY * (0.5 + jitter / 2))


async def test_an_origin_says_how_long_to_wait(autojump_clock: trio.testing.MockClock) -> None:
    error = OriginUnavailable("later", throttled=True, retry_after=60)
    times = await tries_until_given_up(Backoff(TIMEOUT), error, nothing)
    assert times == pytest.approx([0, 60, 120, 180, 240, 270])


async def test_one_that_says_too_long_is_asked_once_more_before_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    error = OriginUnavailable("tomorrow", retry_after=86400)
    times = await tries_until_given_up(Backoff(TIMEOUT), error, nothing)
    assert times == pytest.approx([0, 270])


async def test_what_cannot_be_mended_is_told_at_once(autojump_clock: trio.testing.MockClock) -> None:
    error = VersionChanged("changed")
    assert await tries_until_given_up(Backoff(TIMEOUT), error, nothing) == [0]


async def test_a_few_bytes_now_and_then_give_no_more_time(autojump_clock: trio.testing.MockClock) -> None:
    """29 seconds of silence, some bytes, a failure, and all over again: one time for the sum of it."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    backoff = Backoff(TIMEOUT)

    def work() -> None:
        clock.jump(29)
        backoff.progressed(2**20)

    times = await tries_until_given_up(backoff, FAILURE, work)
    # What the first try waited for its bytes was before any failure.
    assert TIMEOUT <= times[-1] <= TIMEOUT + 2 * 29


async def test_waits_go_on_to_double_where_each_answer_brings_next_to_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    backoff = Backoff(TIMEOUT, jitter=lambda: 1.0)
    few = await tries_until_given_up(backoff, FAILURE, lambda: backoff.progressed(20))
    assert len(few) < 45
    backoff = Backoff(TIMEOUT, jitter=lambda: 1.0)
    enough = await tries_until_given_up(backoff, FAILURE, lambda: backoff.progressed(ENOUGH))
    assert len(enough) == pytest.approx(TIMEOUT / FIRST_DELAY, rel=0.01)


async def test_an_origin_that_is_slow_but_well_has_all_the_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    backoff = Backoff(TIMEOUT)
    for _ in range(1000):
        clock.jump(20)
        backoff.progressed(2**20)
    await backoff.after(FAILURE)
    clock.jump(TIMEOUT / 2)
    backoff.progressed(2**20)
    await backoff.after(FAILURE)
    assert backoff.ends - trio.current_time() == pytest.approx(TIMEOUT / 2, rel=0.01)


async def test_calls_are_made_again_within_the_same_time(autojump_clock: trio.testing.MockClock) -> None:
    calls = 0

    def call() -> str:
        nonlocal calls
        calls += 1
        if calls < 5:
            raise FAILURE
        return "well"

    assert await retried(call, limiter=trio.CapacityLimiter(1), timeout=TIMEOUT) == "well"
    calls = -1000
    with pytest.raises(OriginUnavailable):
        await retried(call, limiter=trio.CapacityLimiter(1), timeout=TIMEOUT)
    assert trio.current_time() < 2 * TIMEOUT
    assert calls < -1000 + 100


class Hanging(MemoryOrigin):
    """Its calls never end by themselves: a name service, or a network filesystem, without an answer."""

    def __init__(self) -> None:
        super().__init__({"file": bytes(STRIPE)})
        self.goes_on = threading.Event()
        self.calls = 0

    def read_range(self, version: ObjectVersion, offset: int, into: memoryview, progress: Progress) -> None:
        self.calls += 1
        self.goes_on.wait(20)
        super().read_range(version, offset, into, progress)


async def test_a_call_that_hangs_is_left_behind(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusestripe.stripes.request.HANGS_AFTER", 0.1)
    origin = Hanging()
    house = House(nursery, tmp_path, origin=origin, timeout=0.2)
    try:
        handle = await house.open()
        with trio.fail_after(5), pytest.raises(OriginUnavailable, match="no answer in time"):
            await house.reader.read(handle, 0, STRIPE)
        assert origin.calls == 1
        assert house.fetcher.statistics().errors == 1
    finally:
        origin.goes_on.set()


class Down(MemoryOrigin):
    """It fails whatever is asked."""

    def __init__(self, error: OriginError) -> None:
        super().__init__({"file": bytes(STRIPE)})
        self.error = error
        self.calls = 0

    def read_range(self, version: ObjectVersion, offset: int, into: memoryview, progress: Progress) -> None:
        self.calls += 1
        raise self.error


@pytest.mark.parametrize(
    "error", [FAILURE, CredentialsRefused("expired"), VersionChanged("changed")], ids=lambda error: str(error)
)
async def test_the_log_has_one_line_once_somebody_wants_the_stripe(
    nursery: trio.Nursery, tmp_path: Path, caplog: pytest.LogCaptureFixture, error: OriginError
) -> None:
    """Whoever wants it within a second gets the same error; credentials are tried anew."""
    caplog.set_level(logging.INFO, "fusestripe.stripes.fetch")
    origin = Down(error)
    house = House(nursery, tmp_path, origin=origin, timeout=0.2)
    handle = await house.open()
    with pytest.raises(type(error)):
        await house.reader.bring(handle.file, 0)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    calls = origin.calls
    for _ in range(3):
        with pytest.raises(type(error), match=error.message):
            await house.reader.read(handle, 0, 4096)
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR"]
    assert origin.calls == (calls + 3 if isinstance(error, CredentialsRefused) else calls)


async def test_one_error_may_be_that_of_several_requests(nursery: trio.Nursery, tmp_path: Path) -> None:
    """As where many wait for one answer (see Confirmation): each waits and tries again by itself."""
    origin = Down(OriginUnavailable("no"))
    origin.files["file"] = bytes(8 * STRIPE)
    house = House(nursery, tmp_path, origin=origin, timeout=0.5)
    handle = await house.open()
    failed = 0

    async def read(index: int) -> None:
        nonlocal failed
        with pytest.raises(OriginUnavailable):
            await house.reader.read(handle, index * STRIPE, 4096)
        failed += 1

    async with trio.open_nursery() as readers:
        for index in range(8):
            readers.start_soon(read, index)
    assert failed == 8
