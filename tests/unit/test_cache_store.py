"""The cache store: what is saved comes back right or not at all, and what is held is never evicted."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusestripe.cache import pair as pair_module
from fusestripe.cache.files import CacheDirectory, FileSet, write_direct
from fusestripe.cache.store import CachedObject, CacheStore
from fusestripe.errors import CacheError
from tests.support.caches import STRIPE, check, file_of, fill, load, open_store, sample


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def store(directory: Path) -> Iterator[CacheStore]:
    store = open_store(directory)
    yield store
    store.close()


def zero_after(path: Path, offset: int, length: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(bytes(length))


# The main path.


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


# Reading straight from a checked stripe.


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
    fd = obj.open_data()
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


def test_own_writes_leave_what_was_checked(store: CacheStore) -> None:
    what = sample()
    obj = store.acquire(what.version)
    for index in what.stripes:
        obj.save(index, what.stripe(index))
        load(obj, what, index)
    assert obj.all_verified
    store.release(obj)
    assert store.acquire(what.version).all_verified


# Damage.


def test_a_bad_stripe_is_a_miss_for_good_and_can_be_saved_again(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    what = sample()
    store = open_store(directory)
    fill(store, what)
    zero_after(file_of(directory, what, ".data"), STRIPE + 100, 1)
    obj = store.acquire(what.version)
    with caplog.at_level(logging.WARNING):
        assert load(obj, what, 1) is None
    assert "stripe 1 of s3://bucket/step-1/model.pt" in caplog.text
    assert not obj.present(1)
    assert store.statistics().corrupt_stripes == 1
    store.close()

    store = open_store(directory)
    obj = store.acquire(what.version)
    assert not obj.present(1)
    assert obj.save(1, what.stripe(1))
    assert check(obj, what) == len(what.stripes)
    store.close()


def test_verify_clears_what_is_bad(store: CacheStore, directory: Path) -> None:
    what = sample()
    fill(store, what)
    obj = store.acquire(what.version)
    zero_after(file_of(directory, what, ".data"), 0, 1)
    zero_after(file_of(directory, what, ".data"), what.version.size - 1, 1)
    assert obj.verify() == 2 * STRIPE
    assert [obj.present(index) for index in what.stripes] == [False, True, True, False]


@pytest.mark.parametrize("suffix", [".data", ".ledger"])
@pytest.mark.parametrize("damage", ["delete", "empty", "shorter", "longer", "symlink", "fifo"])
@pytest.mark.parametrize("held", [False, True])
def test_a_damaged_file_is_a_miss_and_begun_anew(
    store: CacheStore, directory: Path, tmp_path: Path, suffix: str, damage: str, held: bool
) -> None:
    what = sample()
    fill(store, what)
    obj = store.acquire(what.version) if held else None
    path = file_of(directory, what, suffix)
    outside = tmp_path / "outside"
    outside.write_bytes(path.read_bytes())
    if damage in ("empty", "shorter", "longer"):
        os.truncate(path, {"empty": 0, "shorter": path.stat().st_size - 1, "longer": 1 << 20}[damage])
    else:
        path.unlink()
    if damage == "symlink":
        path.symlink_to(outside)
    elif damage == "fifo":
        os.mkfifo(path)
    before = outside.read_bytes()

    obj = obj or store.acquire(what.version)
    check(obj, what)
    for _attempt in range(2):  # a holder may find out only when it acquires again
        for index in what.stripes:
            obj.save(index, what.stripe(index))
        store.release(obj)
        obj = store.acquire(what.version)
    assert check(obj, what) == len(what.stripes)
    assert outside.read_bytes() == before


def test_files_replaced_under_a_holder_are_not_taken_for_its_own(store: CacheStore, directory: Path) -> None:
    what = sample()
    fill(store, what)
    obj = store.acquire(what.version)
    obj.verify()
    other = open_store(directory)
    for suffix in (".ledger", ".data"):
        file_of(directory, what, suffix).unlink()
    rival = other.acquire(what.version)
    rival.save(3, what.stripe(3))
    assert rival.present_bytes == 5000
    store.acquire(what.version)  # looks at the files again
    assert [obj.present(index) for index in what.stripes] == [False, False, False, True]
    assert check(obj, what) == 1
    other.close()


def test_what_others_write_while_it_is_held_is_checked_again(store: CacheStore, directory: Path) -> None:
    what = sample()
    obj = store.acquire(what.version)
    obj.save(0, what.stripe(0))
    load(obj, what, 0)
    zero_after(file_of(directory, what, ".data"), 0, 100)
    obj.save(1, what.stripe(1))  # looks at the file before it writes
    assert not obj.verified(0)
    assert load(obj, what, 0) is None


def test_a_checked_stripe_of_a_replaced_file_is_not_read(directory: Path) -> None:
    store = open_store(directory, descriptors=1)
    what, another = sample(), sample("another")
    fill(store, what)
    obj = store.acquire(what.version)
    obj.verify()
    path = file_of(directory, what, ".data")
    status = path.stat()
    path.rename(path.with_suffix(".old"))
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    fill(store, another)  # its files take the only descriptor
    assert not obj.read(0, memoryview(bytearray(100)), nowait=False)
    with pytest.raises(CacheError, match="cannot be opened"):
        obj.open_data()
    assert check(obj, what) == 0
    store.close()


def test_nothing_is_noted_in_a_replaced_ledger(directory: Path) -> None:
    store = open_store(directory, descriptors=1)
    what, another = sample(), sample("another")
    obj = store.acquire(what.version)
    obj.save(0, what.stripe(0))
    path = file_of(directory, what, ".ledger")
    content = path.read_bytes()
    path.rename(path.with_suffix(".old"))
    path.write_bytes(content)
    fill(store, another)
    assert not obj.save(1, what.stripe(1))
    assert path.read_bytes() == content
    assert obj.save(1, what.stripe(1))  # the files were looked at again
    assert check(obj, what) == 2
    store.close()


# Two stores on one directory.


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


# Room and eviction.


def full_store(directory: Path, *, of: int = 4) -> CacheStore:
    """A store that has room for ``of`` files of four stripes, and holds as many: file-0 is the oldest."""
    store = open_store(directory, size=of * 4 * STRIPE)
    for number in range(of):
        fill(store, sample(f"file-{number}", 4 * STRIPE))
    return store


def present_files(store: CacheStore, count: int = 6) -> list[int]:
    found = []
    for number in range(count):
        obj = store.acquire(sample(f"file-{number}", 4 * STRIPE).version)
        if obj.present_bytes:
            found.append(number)
        store.release(obj)
    return found


def disk_use(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*.data"))


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
    store.unpin(files[2].version)
    store.pin(files[3].version, until=time.time() - 1)
    for index in range(1, 4):
        assert obj.save(index, files[4].stripe(index))
    store.close()


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


# A disk that fails.


def broken(*_: object) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_thousand_write_errors_are_one_line_and_the_disk_is_left_alone(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    what = sample()
    obj = store.acquire(what.version)
    obj.save(0, what.stripe(0))
    monkeypatch.setattr(pair_module, "write_direct", broken)
    monkeypatch.setattr(pair_module, "write_at", broken)
    with caplog.at_level(logging.WARNING):
        with pytest.raises(CacheError, match=r"stripe 1 of s3://bucket/step-1/model\.pt"):
            obj.save(1, what.stripe(1))
        assert not any(obj.save(1, what.stripe(1)) for _ in range(1000))
    assert len(caplog.records) == 1
    assert store.statistics().health == "down"
    assert store.statistics().write_errors == 1
    assert check(obj, what) == 1


def test_a_disk_that_cannot_be_looked_at(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = full_store(directory)
    what = sample("file-4", 4 * STRIPE)
    obj = store.acquire(what.version)
    monkeypatch.setattr(CacheDirectory, "scan", broken)
    with pytest.raises(CacheError, match="file-4"):
        obj.save(0, what.stripe(0))
    assert store.statistics().health == "down"
    with pytest.raises(CacheError, match="cannot read the cache directory"):
        open_store(directory)
    store.close()


def test_read_errors_are_misses(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    what = sample()
    fill(store, what)
    obj = store.acquire(what.version)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(pair_module, "read_at", broken)
        assert check(obj, what) == 0
    assert len(caplog.records) == 1
    assert store.statistics().read_errors == len(what.stripes)
    assert obj.present_bytes == 0


def test_too_many_open_files_is_a_miss_that_keeps_the_stripe(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = sample()
    fill(store, what)
    obj = store.acquire(what.version)

    def no_more(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(pair_module, "read_at", no_more)
        assert check(obj, what) == 0
    assert check(obj, what) == len(what.stripes)


def test_few_descriptors_serve_many_objects(directory: Path) -> None:
    store = open_store(directory, descriptors=2)
    samples = [sample(f"file-{number}", STRIPE + 1) for number in range(20)]
    held: list[CachedObject] = []
    before = len(os.listdir("/proc/self/fd"))
    for what in samples:
        held.append(store.acquire(what.version))
        for index in what.stripes:
            held[-1].save(index, what.stripe(index))
    assert len(os.listdir("/proc/self/fd")) - before <= 2
    assert all(check(obj, what) == 2 for obj, what in zip(held, samples, strict=True))
    assert store.statistics().descriptors <= 2
    store.close()


# Directories that cannot be used.


def mend_of(error: pytest.ExceptionInfo[CacheError]) -> str:
    assert error.value.mend
    return str(error.value)


def test_a_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    with pytest.raises(CacheError, match=str(path)) as error:
        open_store(path)
    assert "directory" in mend_of(error)
    with pytest.raises(CacheError, match=str(path)):
        open_store(path / "below")


def test_a_format_from_the_future(directory: Path) -> None:
    open_store(directory).close()
    (directory / "format.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(CacheError, match="belongs to a newer version") as error:
        open_store(directory)
    assert "upgrade" in mend_of(error)
    assert json.loads((directory / "format.json").read_text()) == {"format": 2}


@pytest.mark.parametrize("content", [b"", b"\0" * 20, b"{}", b'{"format": "one"}'])
def test_a_damaged_format_file_is_written_again(directory: Path, content: bytes) -> None:
    store = open_store(directory)
    fill(store, sample())
    store.close()
    (directory / "format.json").write_bytes(content)
    store = open_store(directory)
    assert json.loads((directory / "format.json").read_text()) == {"format": 1}
    assert check(store.acquire(sample().version), sample()) == 4
    store.close()


def test_a_directory_of_another_user(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.mkdir(0o700)
    if os.geteuid() == 0:
        os.chown(directory, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(CacheError, match="belongs to another user") as error:
        open_store(directory)
    mend_of(error)


def test_a_directory_that_everybody_can_write_to(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(CacheError, match="every user can write") as error:
        open_store(directory)
    assert "chmod" in mend_of(error)


def test_no_room_for_one_stripe(directory: Path) -> None:
    with pytest.raises(CacheError, match="does not hold one stripe") as error:
        open_store(directory, size=STRIPE - 1)
    mend_of(error)
    with pytest.raises(CacheError, match="to stay free") as error:
        open_store(directory, reserve=1 << 62)
    mend_of(error)


@pytest.mark.parametrize("name", ["locks", "creating", "format.json", "objects"])
def test_a_planted_symlink_is_not_followed(directory: Path, tmp_path: Path, name: str) -> None:
    directory.mkdir(0o700)
    outside = tmp_path / "outside"
    (directory / name).symlink_to(outside)
    if name == "format.json":  # replaced: it would have been a miss anyway
        open_store(directory).close()
    else:
        with pytest.raises(CacheError):
            open_store(directory)
    assert not outside.exists()


def test_a_failed_start_leaves_no_descriptor(directory: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(CacheError):
            open_store(directory, reserve=1 << 62)
    assert len(os.listdir("/proc/self/fd")) == before
