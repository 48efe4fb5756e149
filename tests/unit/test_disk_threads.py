"""Threads that wait for the disk: bounded in time and in number, and back when the disk is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from fusestripe.cache.health import DiskHealth
from fusestripe.cache.threads import DiskHangs, DiskThreads, NoThread
from tests.support.mounted import until


class Disk:
    """Calls that wait until it answers."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = 0
        self.undone: list[int] = []

    def call(self, value: int = 0) -> int:
        self.asked += 1
        assert self.answers.wait(60)
        return value


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.answers.set()


@pytest.fixture
def health() -> DiskHealth:
    return DiskHealth()


async def recovers(health: DiskHealth) -> None:
    with trio.fail_after(20):
        while health.state != "normal":
            await trio.sleep(0.005)


async def test_a_call_that_comes_back(health: DiskHealth) -> None:
    threads = DiskThreads(health, within=20)

    def fails() -> None:
        raise OSError(5, "Input/output error")

    assert await threads.run(lambda: 7) == 7
    with pytest.raises(OSError, match="Input/output error"):
        await threads.run(fails)
    done: list[int] = []
    await threads.finish(partial(done.append, 1))
    threads.at_rest(partial(done.append, 2))
    assert done == [1, 2]
    assert health.state == "normal"


async def test_a_disk_that_hangs_and_answers_again(
    health: DiskHealth, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    threads = DiskThreads(health, threads=3, within=0.1)
    refused: list[str] = []

    async def ask() -> None:
        with pytest.raises(DiskHangs) as caught:
            await threads.run(partial(disk.call, 7), undo=disk.undone.append)
        refused.append(caught.value.message)

    with caplog.at_level(logging.WARNING), trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(ask)
        # Three have a thread; those that waited for one have been sent away, and so is whoever comes now.
        assert (len(refused), disk.asked) == (50, 3)
        await ask()
        assert (health.state, health.worth_trying, disk.asked) == ("down", False, 3)
        finished: list[int] = []
        await threads.finish(partial(finished.append, 1))
        threads.at_rest(partial(finished.append, 2))
        assert finished == []
        assert len(caplog.records) == 1

        disk.answers.set()
        await recovers(health)
    assert (finished, disk.undone) == ([1, 2], [7, 7, 7])
    assert await threads.run(lambda: 8) == 8
    assert [record.getMessage() for record in caplog.records][1:] == ["cache disk: answers again"]


async def test_where_the_system_has_no_thread_the_slots_are_given_back(
    health: DiskHealth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has to run in the end runs once there is one."""
    threads = DiskThreads(health, threads=1, within=20)
    refusals = iter([True] * 3)
    run_sync = trio.to_thread.run_sync

    async def start(*arguments: Any, **options: Any) -> object:
        if next(refusals, False):
            raise RuntimeError("can't start new thread")
        return await run_sync(*arguments, **options)

    monkeypatch.setattr("fusestripe.cache.threads.AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(trio.to_thread, "run_sync", start)
    with pytest.raises(NoThread, match="can't start new thread"):
        await threads.run(lambda: 7, background=True)
    finished: list[int] = []
    with trio.fail_after(20):
        await threads.finish(partial(finished.append, 1))
    assert finished == [1]
    assert await threads.run(lambda: 8) == 8
    assert health.state == "normal"


async def test_what_was_put_off_and_fails_harms_nothing(health: DiskHealth, disk: Disk) -> None:
    threads = DiskThreads(health, threads=1, within=0.1)

    def fails(_: object = None) -> None:
        raise ValueError("not held")

    finished: list[int] = []
    with pytest.raises(DiskHangs):
        await threads.run(disk.call, undo=fails)
    await threads.finish(fails)
    await threads.finish(partial(finished.append, 1))
    disk.answers.set()
    await recovers(health)
    assert finished == [1]
    assert await threads.run(lambda: 8) == 8


async def test_finish_of_a_call_that_is_left_behind_runs_it_once(health: DiskHealth, disk: Disk) -> None:
    threads = DiskThreads(health, threads=1, within=0.1)
    await threads.finish(disk.call)
    assert health.state == "down"
    disk.answers.set()
    await recovers(health)
    assert disk.asked == 1


async def test_a_call_that_has_begun_is_not_cancelled_and_one_that_has_not_is(
    health: DiskHealth, disk: Disk
) -> None:
    threads = DiskThreads(health, threads=1, within=20)
    results: list[int] = []

    async def ask(value: int) -> None:
        results.append(await threads.run(partial(disk.call, value)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, 1)
        await trio.to_thread.run_sync(until, lambda: disk.asked == 1)
        nursery.start_soon(ask, 2)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        disk.answers.set()
    assert (results, disk.asked) == ([1], 1)
    assert await threads.run(lambda: 8) == 8


async def test_a_disk_that_is_slow_but_moves_is_no_reason_to_refuse(health: DiskHealth) -> None:
    """Waiting for a thread is not waiting for the disk."""
    threads = DiskThreads(health, threads=1, within=0.5)
    pause = threading.Event()

    async with trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(threads.run, partial(pause.wait, 0.03))
    assert health.state == "normal"


async def test_a_loop_that_has_ended_is_told_nothing(health: DiskHealth, disk: Disk) -> None:
    """As when a prefetch ends while its disk hangs: what is put off is done when the disk answers."""
    closed = threading.Event()

    async def main() -> None:
        threads = DiskThreads(health, within=0.1)
        with pytest.raises(DiskHangs):
            await threads.run(disk.call)
        threads.at_rest(closed.set)

    await trio.to_thread.run_sync(trio.run, main)
    assert not closed.is_set()
    disk.answers.set()
    assert await trio.to_thread.run_sync(closed.wait, 20)
    await recovers(health)
