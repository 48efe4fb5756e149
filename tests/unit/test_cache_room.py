"""Room and eviction: what is held or pinned stays, the limit and the reserve are kept."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import time
from pathlib import Path

import pytest

from fusestripe.cache import pair as pair_module
from fusestripe.cache.catalogue import CacheCatalogue
from fusestripe.cache.files import CacheDirectory, FileSet
from fusestripe.cache.health import Counters
from fusestripe.cache.space import Space
from fusestripe.cache.store import CacheStore
from tests.support.caches import (
    STRIPE,
    check,
    disk_use,
    file_of,
    fill,
    full_store,
    open_store,
    present_files,
    sample,
)

BLOCK = 4096


def test_the_oldest_goes_first_and_the_limit_is_kept(directory: Path) -> None:
    store = full_store(directory)
    limit = store.statistics().limit
    store.release(store.acquire(sample("file-0", 4 * STRIPE).version))  # used again: file-1 is the oldest now
    fill(store, sample("file-4", 4 * STRIPE))
    assert disk_use(directory) <= limit
    statistics = store.statistics()
    assert statistics.used <= limit
    assert statistics.evictions >= 1
    found = present_files(store)
    assert {0, 3, 4} <= set(found)
    assert 1 not in found
    store.close()


def test_last_use_outlives_the_store(directory: Path) -> None:
    store = full_store(directory)
    store.release(store.acquire(sample("file-0", 4 * STRIPE).version))
    limit = store.statistics().limit
    store.close()
    store = open_store(directory, size=limit)
    fill(store, sample("file-4", 4 * STRIPE))
    found = present_files(store)
    assert 0 in found
    assert 1 not in found
    store.close()


def test_what_is_held_or_pinned_stays_and_then_there_is_no_room(directory: Path) -> None:
    store = full_store(directory)
    files = [sample(f"file-{number}", 4 * STRIPE) for number in range(5)]
    held = [store.acquire(files[number].version) for number in (0, 1)]
    store.pin(files[2].version)
    store.pin(files[3].version, until=time.time() + 3600)
    obj = store.acquire(files[4].version)
    assert not obj.save(0, files[4].stripe(0))
    assert store.statistics().no_room >= 1
    assert store.statistics().write_errors == 0
    assert all(check(one, what) == 4 for one, what in zip(held, files, strict=False))
    store.release(held[1])
    assert obj.save(0, files[4].stripe(0))
    assert present_files(store) == [0, 2, 3, 4]
    store.close()


def test_a_pin_that_has_ended_is_none(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = full_store(directory)
    files = [sample(f"file-{number}", 4 * STRIPE) for number in range(5)]
    now = time.time()
    for number in range(4):
        store.pin(files[number].version, until=now + 3600 + number)
    obj = store.acquire(files[4].version)
    assert not obj.save(0, files[4].stripe(0))
    store.release(obj)
    monkeypatch.setattr(time, "time", lambda: now + 3601.5)
    with CacheCatalogue(directory) as catalogue:
        pins = {entry.version.path: entry.pinned_until for entry in catalogue.entries()}
    assert pins == {"file-0": 0, "file-1": 0, "file-2": now + 3602, "file-3": now + 3603}
    fill(store, files[4])
    assert {2, 3, 4} <= set(present_files(store))
    store.close()


@pytest.mark.parametrize("other", [None, 7200.0])
def test_of_several_pins_the_longest_holds(directory: Path, other: float | None) -> None:
    """Two jobs that want the same file do not cut each other short."""
    store = full_store(directory)
    version = sample("file-0", 4 * STRIPE).version
    now = time.time()
    longest = None if other is None else now + other
    for until in (now + 60, longest, now + 3600):
        store.pin(version, until)
    store.close()
    with CacheCatalogue(directory) as catalogue:
        found = [entry.pinned_until for entry in catalogue.entries() if entry.pinned]
        assert found == [math.inf if longest is None else longest]
        assert catalogue.unpin() == 1
        assert [entry for entry in catalogue.entries() if entry.pinned] == []


def test_what_another_store_holds_is_not_evicted(directory: Path) -> None:
    other = open_store(directory)
    store = full_store(directory)
    what = sample("file-0", 4 * STRIPE)
    held = other.acquire(what.version)
    for number in range(4, 12):
        fill(store, sample(f"file-{number}", 4 * STRIPE))
    assert check(held, what) == 4
    assert disk_use(directory) <= store.statistics().limit
    other.close()
    store.close()


@pytest.mark.parametrize("event", ["pinned", "used", "acquired"])
def test_what_happens_between_the_plan_and_the_eviction_counts(
    directory: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    store = full_store(directory)
    other = open_store(directory)
    version = sample("file-0", 4 * STRIPE).version
    real = CacheDirectory.scan

    def scan(self: CacheDirectory) -> list[FileSet]:
        found = real(self)
        if event == "pinned":
            other.pin(version)
        else:
            obj = other.acquire(version)
            if event == "used":
                other.release(obj)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(CacheDirectory, "scan", scan)
        fill(store, sample("file-4", 4 * STRIPE))
    other.close()
    assert 0 in present_files(store)
    store.close()


def test_what_is_on_its_way_takes_room_too(directory: Path) -> None:
    files = CacheDirectory(directory)
    space = Space(
        files, Counters(), limit=10 * BLOCK, reserve=0, in_use=set, evict=lambda _: False, clock=lambda: 0.0
    )
    assert space.reserve(6 * BLOCK)
    assert not space.reserve(6 * BLOCK)
    space.settle(6 * BLOCK, written=False)
    assert space.reserve(6 * BLOCK)
    assert space.reserve(4 * BLOCK)
    space.settle(6 * BLOCK, written=True)
    space.settle(4 * BLOCK, written=True)
    assert space.used == 10 * BLOCK
    files.close()


def test_small_files_take_whole_blocks(directory: Path) -> None:
    limit = 64 * BLOCK
    store = open_store(directory, size=limit)
    for number in range(200):
        fill(store, sample(f"file-{number}", 10))
        assert disk_use(directory) <= limit
    assert store.statistics().evictions >= 136
    store.close()


def test_what_takes_more_than_was_written_is_evicted_once_let_go(directory: Path) -> None:
    """A filesystem needs blocks of its own to note where scattered writes lie."""
    what = sample("file", 4 * STRIPE)
    store = open_store(directory, size=4 * STRIPE)
    obj = store.acquire(what.version)
    for index in what.stripes:
        assert obj.save(index, what.stripe(index))
    data = file_of(directory, what, ".data")
    subprocess.run(["fallocate", "-n", "-o", str(data.stat().st_size), "-l", "4096", data], check=True)
    assert disk_use(directory) > 4 * STRIPE
    store.release(obj)
    assert disk_use(directory) <= 4 * STRIPE
    assert store.statistics().evictions == 1
    store.close()


def test_the_reserve_of_the_disk_is_kept(directory: Path) -> None:
    store = full_store(directory)
    what = sample("file-9", 4 * STRIPE)
    store.close()
    store = CacheStore(directory, stripe_size=STRIPE, size=1 << 30, reserve=1 << 62)
    obj = store.acquire(what.version)
    assert not obj.save(0, what.stripe(0))
    assert disk_use(directory) == 0  # everything was given up for the reserve
    store.close()


def test_a_disk_that_is_full_is_no_error(store: CacheStore, monkeypatch: pytest.MonkeyPatch) -> None:
    what = sample()
    obj = store.acquire(what.version)
    assert obj.save(0, what.stripe(0))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pair_module, "write_direct", full)
    monkeypatch.setattr(pair_module, "write_at", full)
    assert not obj.save(1, what.stripe(1))
    assert store.statistics().health == "normal"
    assert check(obj, what) == 1


def test_an_abandoned_data_file_is_evicted_first(directory: Path) -> None:
    store = full_store(directory)
    file_of(directory, sample("file-3", 4 * STRIPE), ".ledger").unlink()
    fill(store, sample("file-4", STRIPE))
    assert present_files(store) == [0, 1, 2]
    assert disk_use(directory) == 13 * STRIPE
    store.close()
