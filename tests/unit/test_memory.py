import errno
import mmap

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from fusestripe.stripes.memory import Buffer, BufferPool
from fusestripe.units import MIB

USUAL = MIB


def pool(buffers: int = 16) -> BufferPool:
    return BufferPool(buffers * USUAL, USUAL)


def test_buffers_are_page_aligned_and_of_their_length() -> None:
    import ctypes

    for length in (1, 4096, USUAL - 1, USUAL):
        buffer = pool().try_take(length, urgent=True)
        assert buffer is not None
        assert len(buffer.view) == length
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer.view))
        assert address % mmap.PAGESIZE == 0


def test_memory_is_used_again_unless_someone_still_looks() -> None:
    buffers = pool()
    first = buffers.try_take(USUAL, urgent=True)
    assert first is not None
    memory = first.memory
    memory[:4] = b"old!"
    buffers.give(first)
    again = buffers.try_take(USUAL, urgent=True)
    assert again is not None
    assert again.memory is memory
    reply = again.view[:4]
    buffers.give(again)
    other = buffers.try_take(USUAL, urgent=True)
    assert other is not None
    assert other.memory is not memory
    assert bytes(reply) == b"old!"


def test_a_buffer_that_a_call_still_uses_is_not_used_again() -> None:
    import ctypes

    buffers = pool()
    buffer = buffers.try_take(USUAL, urgent=True)
    assert buffer is not None
    memory = buffer.memory
    in_use = ctypes.c_char.from_buffer(buffer.view)
    buffers.give(buffer)
    other = buffers.try_take(USUAL, urgent=True)
    assert other is not None
    assert other.memory is not memory
    del in_use


@given(st.lists(st.tuples(st.booleans(), st.integers(1, USUAL), st.booleans()), max_size=80))
def test_the_limit_holds_whatever_is_taken_and_given(steps: list[tuple[bool, int, bool]]) -> None:
    buffers = pool(8)
    taken: list[Buffer] = []
    for take, length, urgent in steps:
        if take:
            buffer = buffers.try_take(length, urgent=urgent)
            if buffer is not None:
                taken.append(buffer)
        elif taken:
            buffers.give(taken.pop())
        statistics = buffers.statistics()
        assert sum(len(buffer.memory) for buffer in taken) == statistics.used <= statistics.limit
        assert statistics.used <= statistics.peak


async def test_urgent_takers_are_served_first_and_in_turn(autojump_clock: trio.testing.MockClock) -> None:
    buffers = pool(16)
    all_of_it = [buffers.try_take(USUAL, urgent=True) for _ in range(16)]
    order: list[str] = []

    async def take(name: str, urgent: bool) -> None:
        await buffers.take(USUAL, urgent=urgent)
        order.append(name)

    async with trio.open_nursery() as nursery:
        for name, urgent in (("ahead", False), ("reader 1", True), ("reader 2", True)):
            nursery.start_soon(take, name, urgent)
            await trio.testing.wait_all_tasks_blocked()
        assert buffers.wanted == 3
        for buffer in all_of_it[:4]:
            assert buffer is not None
            buffers.give(buffer)
            await trio.testing.wait_all_tasks_blocked()
    assert order == ["reader 1", "reader 2", "ahead"]


async def test_a_taker_that_is_cancelled_leaves_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    buffers = pool(1)
    held = buffers.try_take(USUAL, urgent=True)
    assert held is not None
    with trio.move_on_after(1):
        await buffers.take(USUAL, urgent=True)
        pytest.fail("there is no room")
    assert buffers.wanted == 0
    buffers.give(held)
    assert buffers.statistics().used == 0


async def test_no_memory_of_the_system_is_an_error_and_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = pool(1)
    held = buffers.try_take(USUAL, urgent=True)
    assert held is not None
    async with trio.open_nursery() as nursery:

        async def take() -> None:
            with pytest.raises(OSError, match="Cannot allocate"):
                await buffers.take(USUAL // 4, urgent=True)

        nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()

        def no_memory(*_: object, **__: object) -> mmap.mmap:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

        monkeypatch.setattr(mmap, "mmap", no_memory)
        buffers.give(held)
    monkeypatch.undo()
    assert buffers.statistics().used == 0
    assert buffers.try_take(USUAL, urgent=True) is not None
