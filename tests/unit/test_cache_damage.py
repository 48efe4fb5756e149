"""Damaged, replaced and failing files: a miss, never a wrong byte, and few lines in the log."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from fusestripe.cache import pair as pair_module
from fusestripe.cache.files import CacheDirectory
from fusestripe.cache.store import CachedObject, CacheStore
from fusestripe.cache.transfers import read_at, write_at
from fusestripe.errors import CacheError
from tests.support.caches import (
    STRIPE,
    check,
    file_of,
    fill,
    full_store,
    load,
    open_store,
    sample,
)


def zero_after(path: Path, offset: int, length: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(bytes(length))


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


@pytest.mark.parametrize("nowait", [True, False])
@pytest.mark.parametrize("verified_elsewhere", [True, False])
def test_bytes_that_others_wrote_after_the_check_are_not_read(
    store: CacheStore, directory: Path, nowait: bool, verified_elsewhere: bool
) -> None:
    what = sample()
    fill(store, what)
    obj = store.acquire(what.version)
    assert check(obj, what) == len(what.stripes)
    into = memoryview(bytearray(16))
    assert obj.read(STRIPE + 96, into, nowait=nowait)
    zero_after(file_of(directory, what, ".data"), STRIPE + 100, 4)
    if verified_elsewhere:
        other = open_store(directory)
        other.acquire(what.version).verify()
        other.close()
    assert not obj.read(STRIPE + 96, into, nowait=nowait)
    assert load(obj, what, 1) is None
    assert load(obj, what, 0) == bytes(what.stripe(0))
    assert obj.read(0, into, nowait=nowait)
    assert into == what.stripe(0)[:16]


def test_a_stripe_is_not_verified_when_others_wrote_while_it_was_read(
    store: CacheStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = sample()
    fill(store, what)
    obj = store.acquire(what.version)

    def read_and_damage(fd: int, into: memoryview, offset: int) -> int:
        done = read_at(fd, into, offset)
        zero_after(file_of(directory, what, ".data"), offset + 100, 4)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(pair_module, "read_at", read_and_damage)
        assert load(obj, what, 1) == bytes(what.stripe(1))
    assert not obj.verified(1)
    assert load(obj, what, 1) is None


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


def test_a_save_that_is_overtaken_by_a_reset_makes_nothing_present(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = sample()
    obj = store.acquire(what.version)
    obj.save(0, what.stripe(0))

    def reset_and_write(fd: int, data: memoryview | bytes, offset: int) -> None:
        obj.close()  # what a reset does to the files
        write_at(fd, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(pair_module, "write_direct", lambda *_: 0)
        patch.setattr(pair_module, "write_through", reset_and_write)
        assert not obj.save(1, what.stripe(1))
    assert not obj.present(1)
    assert obj.save(1, what.stripe(1))
    assert check(obj, what) == 2


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
    assert store.statistics().health == "unstable"
    assert store.statistics().write_errors == 1
    assert check(obj, what) == 1


def test_a_disk_that_cannot_be_looked_at(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = full_store(directory)
    what = sample("file-4", 4 * STRIPE)
    obj = store.acquire(what.version)
    monkeypatch.setattr(CacheDirectory, "scan", broken)
    with pytest.raises(CacheError, match="file-4"):
        obj.save(0, what.stripe(0))
    assert store.statistics().health == "unstable"
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


def test_a_write_of_others_while_we_write_is_not_overlooked(tmp_path: Path) -> None:
    """What was checked before our own write began may have changed by its end, and the file does not tell."""
    what = sample(size=6 * STRIPE)
    store = open_store(tmp_path)
    obj = store.acquire(what.version)
    for index in range(3):
        assert obj.save(index, what.stripe(index))
        assert load(obj, what, index) is not None
    data = file_of(tmp_path, what, ".data")
    write = os.pwrite

    def write_and_another(fd: int, content: memoryview, offset: int) -> int:
        done = write(fd, content, offset)
        with open(data, "r+b") as other:
            other.write(b"X" * 100)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", write_and_another)
        assert obj.save(3, what.stripe(3))
    assert data.read_bytes()[:100] == b"X" * 100
    into = memoryview(bytearray(50))
    assert not obj.read(0, into, nowait=False)
    assert load(obj, what, 0) is None  # found out, and cleared
    assert load(obj, what, 1) is not None
    store.release(obj)
    store.close()
