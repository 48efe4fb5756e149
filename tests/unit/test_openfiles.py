"""Files in use: each held once, whatever opens and closes at the same time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from fusestripe.cache.object import CachedObject
from fusestripe.cache.store import CacheStore
from fusestripe.cache.threads import DiskThreads
from fusestripe.openfiles import OpenFile, OpenFiles
from fusestripe.units import GIB, KIB, MIB, ObjectVersion
from tests.support.memory_origin import MemoryOrigin

VERSION = ObjectVersion("memory://", "file", MIB, "0")


async def test_two_that_open_at_once_while_one_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CacheStore(tmp_path, stripe_size=64 * KIB, size=GIB, reserve=0)
    files = OpenFiles(store, DiskThreads(store.health))
    origin = MemoryOrigin()
    both_acquire = threading.Barrier(2)
    releasing, may_release = threading.Event(), threading.Event()
    acquire, release = store.acquire, store.release

    def acquire_together(version: ObjectVersion, *, use: bool) -> CachedObject:
        both_acquire.wait(20)
        return acquire(version, use=use)

    def release_slowly(held: CachedObject, *, use: bool) -> None:
        releasing.set()
        may_release.wait(20)
        release(held, use=use)

    monkeypatch.setattr(store, "acquire", acquire_together)
    monkeypatch.setattr(store, "release", release_slowly)
    held: list[OpenFile] = []

    async def hold() -> None:
        held.append(await files.hold(origin, VERSION))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        nursery.start_soon(hold)
        # The slower of the two is giving its second use mark back while the faster closes.
        await trio.to_thread.run_sync(releasing.wait, 20)
        assert len(held) == 1
        nursery.start_soon(files.let_go, held[0])
        await trio.testing.wait_all_tasks_blocked()
        may_release.set()
    assert len(held) == 2
    assert len(files) == 1
    assert store.statistics().held == 1
    await files.let_go(held[1])
    assert len(files) == 0
    assert store.statistics().held == 0
    store.close()
