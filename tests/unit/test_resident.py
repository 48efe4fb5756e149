"""Single flight, partial stripes, cancellation and memory, on trio's virtual clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from fusestripe.errors import OriginUnavailable
from fusestripe.stripes.memory import BufferPool
from fusestripe.stripes.resident import ResidentStripes, Stripe
from fusestripe.units import MIB, ObjectVersion

VERSION = ObjectVersion("test://", "file", 64 * MIB, "1")
SIZE = MIB

Table = Callable[[trio.Nursery], ResidentStripes]


def table(nursery: trio.Nursery, buffers: int = 4) -> ResidentStripes:
    return ResidentStripes(BufferPool(buffers * SIZE, SIZE), nursery)


def filled_with(byte: int, *, gate: trio.Event | None = None) -> Callable[[Stripe], Awaitable[None]]:
    async def work(stripe: Stripe) -> None:
        await stripe.provide()
        if gate is not None:
            await gate.wait()
        stripe.view[:] = bytes([byte]) * stripe.length
        stripe.complete()

    return work


async def test_readers_of_one_stripe_share_one_run_and_none_depends_on_another(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    stripes = table(nursery)
    gate = trio.Event()
    key = (VERSION, 0)
    stripe = stripes.begin(key, SIZE, filled_with(7, gate=gate), urgent=True)
    assert stripes.find(key) is stripe
    answers: list[bytes] = []

    async def read() -> None:
        await stripes.wait(stripe, 10)
        answers.append(bytes(stripe.view[:10]))

    with trio.move_on_after(1) as first:
        await read()
    assert first.cancelled_caught
    async with trio.open_nursery() as readers:
        readers.start_soon(read)
        readers.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
    assert answers == [b"\7" * 10] * 2


async def test_a_reader_gets_its_bytes_before_the_stripe_is_whole(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    stripes = table(nursery)
    go_on = trio.Event()

    async def work(stripe: Stripe) -> None:
        await stripe.provide()
        stripe.view[:100] = b"a" * 100
        await trio.to_thread.run_sync(stripe.advance, 100)
        await go_on.wait()
        stripe.view[100:] = b"b" * (stripe.length - 100)
        stripe.complete()

    stripe = stripes.begin((VERSION, 0), SIZE, work, urgent=True)
    await stripes.wait(stripe, 100)
    assert bytes(stripe.view[:100]) == b"a" * 100
    with trio.move_on_after(1):
        await stripes.wait(stripe, 101)
        pytest.fail("byte 100 is not there yet")
    go_on.set()
    await stripes.wait(stripe, SIZE)
    assert bytes(stripe.view[100:102]) == b"bb"


async def test_a_failure_reaches_every_reader_and_the_next_one_tries_again(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    stripes = table(nursery)
    gate = trio.Event()

    async def fails(stripe: Stripe) -> None:
        await gate.wait()
        raise OriginUnavailable("down")

    stripe = stripes.begin((VERSION, 0), SIZE, fails, urgent=True)
    failures: list[str] = []

    async def read() -> None:
        try:
            await stripes.wait(stripe, 1)
        except OriginUnavailable as error:
            failures.append(str(error))

    async with trio.open_nursery() as readers:
        readers.start_soon(read)
        readers.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
    assert failures == ["down", "down"]
    assert stripes.find((VERSION, 0)) is None
    again = stripes.begin((VERSION, 0), SIZE, filled_with(1), urgent=True)
    await stripes.wait(again, SIZE)


async def test_more_stripes_than_memory_are_all_read(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    stripes = table(nursery, buffers=4)
    answers: dict[int, bytes] = {}

    async def read(index: int) -> None:
        key = (VERSION, index)
        stripe = stripes.find(key) or stripes.begin(key, SIZE, filled_with(index), urgent=True)
        await stripes.wait(stripe, SIZE)
        answers[index] = bytes(stripe.view[-3:])

    with trio.fail_after(60):
        async with trio.open_nursery() as readers:
            for index in range(50):
                readers.start_soon(read, index)
    assert answers == {index: bytes([index]) * 3 for index in range(50)}


async def test_read_ahead_takes_no_memory_from_a_reader(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    stripes = table(nursery, buffers=2)
    never = trio.Event()
    for index in range(2):
        stripes.begin((VERSION, index), SIZE, filled_with(0, gate=never), urgent=True)
    await trio.testing.wait_all_tasks_blocked()
    assert stripes.begin_ahead((VERSION, 2), SIZE, filled_with(0)) is None
    assert stripes.find((VERSION, 2)) is None
    never.set()


async def test_what_readers_are_done_with_goes_first(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    stripes = table(nursery, buffers=3)
    for index in range(3):
        stripe = stripes.begin((VERSION, index), SIZE, filled_with(index), urgent=True)
        await stripe.settled.wait()
    stripes.release((VERSION, 2))
    await stripes.begin((VERSION, 3), SIZE, filled_with(3), urgent=True).settled.wait()
    assert stripes.find((VERSION, 2)) is None
    assert stripes.find((VERSION, 0)) is not None


async def test_memory_of_stripes_that_were_read_is_used_again_before_new_is_taken(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    pool = BufferPool(64 * SIZE, SIZE)
    stripes = ResidentStripes(pool, nursery)
    for index in range(50):
        stripe = stripes.begin((VERSION, index), SIZE, filled_with(index % 256), urgent=True)
        await stripe.settled.wait()
        stripes.release(stripe.key)
    assert pool.statistics().peak <= 10 * SIZE


async def test_a_stripe_that_fails_right_after_its_bytes_came_is_an_error(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    stripes = table(nursery)

    async def work(stripe: Stripe) -> None:
        await stripe.provide()
        await trio.testing.wait_all_tasks_blocked()
        stripe.advance(100)  # wakes the reader, in the same turn in which the stripe fails
        raise OriginUnavailable("changed")

    stripe = stripes.begin((VERSION, 0), SIZE, work, urgent=True)
    with pytest.raises(OriginUnavailable):
        await stripes.wait(stripe, 100)


async def test_a_trim_leaves_what_was_asked_for_since_the_last(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    stripes = table(nursery)
    for index in range(2):
        await stripes.begin((VERSION, index), SIZE, filled_with(1), urgent=True).settled.wait()
    stripes.trim()
    assert (VERSION, 0) in stripes
    assert stripes.find((VERSION, 0)) is not None
    stripes.trim()
    assert (VERSION, 0) in stripes
    assert (VERSION, 1) not in stripes


async def test_a_stripe_without_memory_fails_and_the_next_try_works(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stripes = table(nursery)

    async def no_memory(*_: object, **__: object) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(BufferPool, "take", no_memory)
    stripe = stripes.begin((VERSION, 0), SIZE, filled_with(1), urgent=True)
    with pytest.raises(OSError, match="no memory"):
        await stripes.wait(stripe, 1)
    monkeypatch.undo()
    again = stripes.begin((VERSION, 0), SIZE, filled_with(1), urgent=True)
    await stripes.wait(again, SIZE)


async def test_the_end_waits_for_saves_and_for_no_origin(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    stripes = table(nursery)
    saved: list[int] = []

    async def save(stripe: Stripe) -> None:
        await filled_with(1)(stripe)
        await trio.sleep(5)
        saved.append(stripe.key[1])

    for index in range(2):
        stripes.begin((VERSION, index), SIZE, save, urgent=True)
    stripes.begin((VERSION, 2), SIZE, filled_with(2, gate=trio.Event()), urgent=True)  # which never comes
    await trio.testing.wait_all_tasks_blocked()
    start = trio.current_time()
    await stripes.settle()
    assert sorted(saved) == [0, 1]
    assert trio.current_time() - start == pytest.approx(5)
