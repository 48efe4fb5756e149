"""What is said of an origin that sends nothing."""

from __future__ import annotations

import logging
import threading

import pytest
import trio
import trio.testing

from fusestripe.errors import OriginUnavailable
from fusestripe.origins.base import Progress
from fusestripe.stripes.silence import LOUD_SECONDS, Silence
from fusestripe.units import ObjectVersion
from tests.support.memory_origin import MemoryOrigin
from tests.unit.test_reader import CONTENT, STRIPE, House, until

FAILED = OriginUnavailable("no answer in time")


async def test_it_is_counted_from_the_last_byte_or_the_first_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    silence = Silence("s3://bucket")
    await trio.sleep(100)
    assert silence.seconds == 0
    with silence.asking():
        await trio.sleep(3)
        with silence.asking():
            assert silence.seconds == 3
            silence.failed(FAILED)
            await trio.sleep(2)
        assert (silence.seconds, silence.why) == (5, "no answer in time")
        silence.broken()
        await trio.sleep(1)
        assert (silence.seconds, silence.why) == (1, "")
    assert silence.seconds == 0


async def test_the_log_has_a_line_at_its_begin_and_one_at_its_end(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    silence = Silence("s3://bucket")

    async def listen(seconds: float) -> list[str]:
        caplog.clear()
        for _ in range(int(seconds)):
            await trio.sleep(1)
            silence.look()
        return [record.getMessage() for record in caplog.records]

    with silence.asking():
        assert await listen(LOUD_SECONDS - 1) == []
        silence.failed(FAILED)
        assert await listen(60) == ["s3://bucket has sent nothing for 10 s: no answer in time"]
        silence.broken()
        assert await listen(5) == ["s3://bucket: bytes come again"]
        assert await listen(20) == ["s3://bucket has sent nothing for 10 s"]
    assert await listen(20) == ["s3://bucket: nobody waits for it any more"]


async def test_a_reader_that_waits_is_an_origin_that_is_silent(nursery: trio.Nursery) -> None:
    """Over failed requests too, and no longer once its bytes come."""
    speaks, asked = threading.Event(), threading.Event()

    class Quiet(MemoryOrigin):
        def read_range(
            self, version: ObjectVersion, offset: int, into: memoryview, progress: Progress
        ) -> None:
            if not asked.is_set():
                asked.set()
                raise FAILED
            assert speaks.wait(20)
            super().read_range(version, offset, into, progress)

    house = House(nursery, None, origin=Quiet({"file": CONTENT}), timeout=30)
    handle = await house.open()

    def silent() -> tuple[float, str]:
        now = house.traffic.of(house.origin).statistics()
        return now.silent, now.why

    assert silent() == (0.0, "")
    async with trio.open_nursery() as readers:
        readers.start_soon(house.reader.read, handle, 0, STRIPE)
        await until(lambda: silent()[0] > 0.3)
        assert silent()[1] == "no answer in time"
        speaks.set()
    assert silent()[1] == ""
