"""The cache store: what is saved comes back right or not at all."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from fusestripe.cache import pair as pair_module
from fusestripe.cache.store import CacheStore
from fusestripe.cache.transfers import write_direct
from tests.support.caches import (
    STRIPE,
    check,
    file_of,
    fill,
    load,
    open_store,
    sample,
)


def test_stripes_come_back(store: CacheStore) -> None:
    what = sample()
    obj = store.acquire(what.version)
    assert not obj.complete
    for index in what.stripes:
        assert not obj.present(index)
        assert load(obj, what, index) is None
        assert obj.save(index, what.stripe(index))
        assert obj.present(index)
        assert load(obj, what, index) == bytes(what.stripe(index))
    assert obj.complete
    assert obj.present_bytes == what.version.size
    assert obj.verify() == what.version.size
    store.release(obj)


def test_nothing_is_made_before_the_first_save(store: CacheStore, directory: Path) -> None:
    what = sample()
    obj = store.acquire(what.version)
    assert list((directory / "objects").iterdir()) == []
    obj.save(1, what.stripe(1))
    assert file_of(directory, what, ".data").stat().st_size == what.version.size


def test_the_data_file_is_the_object_and_sparse(store: CacheStore, directory: Path) -> None:
    what = sample(size=100 * STRIPE + 1)
    obj = store.acquire(what.version)
    obj.save(7, what.stripe(7))
    path = file_of(directory, what, ".data")
    assert path.stat().st_blocks * 512 < 4 * STRIPE
    for index in what.stripes:
        obj.save(index, what.stripe(index))
    assert path.read_bytes() == what.data


def test_files_are_for_their_owner_only(store: CacheStore, directory: Path) -> None:
    fill(store, sample())
    store.pin(sample().version)
    for path in [directory, *directory.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, STRIPE - 1, STRIPE, STRIPE + 1, 5 * STRIPE])
@pytest.mark.parametrize("aligned", [True, False])
def test_any_size_from_any_buffer(store: CacheStore, size: int, aligned: bool) -> None:
    what = sample(size=size)
    obj = store.acquire(what.version)
    for index in what.stripes:
        data = what.stripe(index)
        assert obj.save(index, data if aligned else memoryview(b"x" + data)[1:])
    assert check(obj, what) == len(what.stripes)
    assert obj.verify() == size
    assert obj.present_bytes == size


def test_an_empty_file_is_complete(store: CacheStore) -> None:
    obj = store.acquire(sample(size=0).version)
    assert obj.complete
    assert obj.all_verified
    assert obj.verify() == obj.present_bytes == 0


def test_page_aligned_pages_go_past_the_page_cache(
    store: CacheStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (directory / "direct").open("wb") as file:  # what the filesystem can do, asked without our code
        try:
            os.close(os.open(file.name, os.O_WRONLY | os.O_DIRECT))
            direct = True
        except OSError:
            direct = False
    done: list[int] = []
    real = write_direct

    def spy(fd: int, data: memoryview, offset: int) -> int:
        done.append(real(fd, data, offset))
        return done[-1]

    monkeypatch.setattr(pair_module, "write_direct", spy)
    what = sample(size=2 * STRIPE + 5000)
    obj = store.acquire(what.version)
    for index in what.stripes:
        obj.save(index, what.stripe(index))
    assert done == ([STRIPE, STRIPE, 4096] if direct else [])


def test_a_filesystem_that_refuses_direct_writes_gets_others(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_module, "write_direct", lambda *_: 0)
    what = sample()
    fill(store, what)
    assert check(store.acquire(what.version), what) == len(what.stripes)


def test_a_wrong_length_or_index_is_the_callers_mistake(store: CacheStore) -> None:
    what = sample()
    obj = store.acquire(what.version)
    for index, length in ((0, STRIPE - 1), (3, STRIPE), (4, STRIPE), (-1, STRIPE)):
        with pytest.raises(ValueError, match="stripe"):
            obj.save(index, memoryview(bytes(length)))
        with pytest.raises(ValueError, match="stripe"):
            obj.load(index, memoryview(bytearray(length)))
    with pytest.raises(ValueError, match="stripe"):
        obj.present(4)
    with pytest.raises(ValueError, match="inside"):
        obj.read(STRIPE - 1, memoryview(bytearray(2)), nowait=False)


def test_it_outlives_the_store(directory: Path) -> None:
    what = sample()
    first = open_store(directory)
    fill(first, what)
    first.close()
    second = open_store(directory)
    obj = second.acquire(what.version)
    assert obj.complete
    assert not obj.verified(0)
    assert check(obj, what) == len(what.stripes)
    second.close()


def test_versions_do_not_meet(store: CacheStore) -> None:
    one, other = sample(tag="e1"), sample(tag="e2")
    fill(store, one)
    obj = store.acquire(other.version)
    assert obj.present_bytes == 0
    fill(store, other)
    assert check(store.acquire(one.version), one) == check(obj, other) == len(one.stripes)


def test_stripe_sizes_do_not_meet(store: CacheStore, directory: Path) -> None:
    what = sample()
    fill(store, what)
    coarse = CacheStore(directory, stripe_size=2 * STRIPE, size=1 << 30, reserve=0)
    assert coarse.acquire(what.version).present_bytes == 0
    coarse.close()


def test_holders_share_one_object_until_the_last_lets_go(store: CacheStore) -> None:
    what = sample()
    one, two = store.acquire(what.version), store.acquire(what.version)
    assert one is two
    store.release(one)
    two.save(0, what.stripe(0))
    store.release(two)
    with pytest.raises(ValueError, match="not held"):
        store.release(two)
    assert store.statistics().held == 0


def test_read_serves_only_what_was_checked(store: CacheStore) -> None:
    what = sample()
    fill(store, what)
    obj = store.acquire(what.version)
    into = memoryview(bytearray(100))
    assert not obj.read(STRIPE + 7, into, nowait=False)
    load(obj, what, 1)
    assert obj.verified(1)
    assert obj.read(STRIPE + 7, into, nowait=False)
    assert into == what.data[STRIPE + 7 : STRIPE + 107]
    assert not obj.read(0, into, nowait=False)


def test_read_without_waiting_serves_what_the_page_cache_has(store: CacheStore) -> None:
    what = sample()
    fill(store, what)
    obj = store.acquire(what.version)
    load(obj, what, 0)
    into = memoryview(bytearray(STRIPE))
    assert obj.read(0, into, nowait=True)
    assert into == what.stripe(0)
    fd = os.open(file_of(store.directory, what, ".data"), os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    if obj.read(0, into, nowait=True):  # a filesystem in memory has nothing to wait for
        assert into == what.stripe(0)
    assert obj.read(0, into, nowait=False)


def test_checks_are_remembered_while_nobody_else_writes(store: CacheStore, directory: Path) -> None:
    what = sample()
    fill(store, what)
    obj = store.acquire(what.version)
    obj.verify()
    store.release(obj)
    obj = store.acquire(what.version)
    assert obj.all_verified
    store.release(obj)
    path = file_of(directory, what, ".data")
    with path.open("r+b") as file:
        file.write(b"somebody else")
    obj = store.acquire(what.version)
    assert not any(obj.verified(index) for index in what.stripes)
    assert load(obj, what, 0) is None
    assert load(obj, what, 1) == bytes(what.stripe(1))


def test_what_was_checked_is_remembered_until_the_next_write(store: CacheStore) -> None:
    """Ours too: others may write to the file while we do, and nothing would show of it."""
    what = sample()
    obj = store.acquire(what.version)
    for index in what.stripes:
        obj.save(index, what.stripe(index))
    for index in what.stripes:
        load(obj, what, index)
    assert obj.all_verified
    store.release(obj)
    obj = store.acquire(what.version)
    assert obj.all_verified
    obj.save(1, memoryview(bytes(STRIPE)))
    assert not any(map(obj.verified, what.stripes))


def test_what_one_store_saves_the_other_learns(store: CacheStore, directory: Path) -> None:
    what = sample()
    other = open_store(directory)
    mine, theirs = store.acquire(what.version), other.acquire(what.version)
    mine.save(0, what.stripe(0))
    assert theirs.save(1, what.stripe(1))  # finds the files that the first made
    assert theirs.present(0)
    mine.refresh()
    assert mine.present(1)
    assert check(mine, what) == check(theirs, what) == 2
    other.close()


def test_one_descriptor_is_enough(directory: Path) -> None:
    """Whoever borrowed a second one while holding the first would wait for ever."""
    store = open_store(directory, descriptors=1)
    what = sample()
    for _ in range(2):
        obj = store.acquire(what.version)
        for index in what.stripes:
            if load(obj, what, index) is None:
                assert obj.save(index, what.stripe(index))
        assert check(obj, what) == len(what.stripes)
        obj.refresh()
        os.close(obj.open_data())
        store.release(obj)
    store.close()


def test_threads_of_two_stores_at_once_never_give_a_wrong_byte(directory: Path) -> None:
    stores = [open_store(directory, descriptors=3) for _ in range(2)]
    samples = [sample(f"part-{number}", 20 * STRIPE + 77) for number in range(3)]
    wrong: list[BaseException] = []

    def work(seed: int) -> None:
        store = stores[seed % 2]
        try:
            for step in range(60):
                what = samples[(seed + step) % len(samples)]
                obj = store.acquire(what.version)
                for index in list(what.stripes)[seed % 5 :: 5]:
                    if load(obj, what, index) is None:
                        obj.save(index, what.stripe(index))
                check(obj, what)
                store.release(obj)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    for store in stores:
        assert store.statistics().corrupt_stripes == 0
        for what in samples:
            assert check(store.acquire(what.version), what) == len(what.stripes)
        store.close()
