"""What one process has checked the next one need not, as long as it is certain that nothing has changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fusestripe.cache import seal as seals
from fusestripe.cache.store import CacheStore
from tests.support.caches import Sample, check, fill, open_store, sample
from tests.support.mounted import until

ATTRIBUTE = "user.fusestripe.checked"


def files(directory: Path) -> tuple[Path, Path]:
    """The data file and the ledger of the only object."""
    (data,) = directory.rglob("*.data")
    (ledger,) = directory.rglob("*.ledger")
    return data, ledger


def sealed(directory: Path) -> Sample:
    """A cache with one version that a store, closed by now, has checked and sealed."""
    what = sample()
    store = open_store(directory)
    fill(store, what)
    data, _ledger = files(directory)
    until(lambda: seals.is_settled(data.stat()))
    obj = store.acquire(what.version)
    assert check(obj, what) == len(what.stripes)
    store.release(obj)
    store.close()
    return what


def is_trusted(store: CacheStore, what: Sample) -> bool:
    """Whether a store that begins here takes the file for checked. What it gives is right in any case."""
    obj = store.acquire(what.version)
    try:
        trusted = obj.all_verified
        check(obj, what)
        return trusted
    finally:
        store.release(obj)
        store.close()


def test_the_next_process_trusts_it(tmp_path: Path) -> None:
    what = sealed(tmp_path)
    assert is_trusted(open_store(tmp_path), what)


def test_what_was_only_written_is_not_sealed(tmp_path: Path) -> None:
    what = sample()
    store = open_store(tmp_path)
    fill(store, what)
    until(lambda: seals.is_settled(files(tmp_path)[0].stat()))
    fill(store, what)
    store.close()
    assert not is_trusted(open_store(tmp_path), what)


def test_a_file_that_was_just_written_is_not_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another write within the same tick of the kernel would not show."""
    monkeypatch.setattr("fusestripe.cache.pair.is_settled", lambda data: False)
    what = sample()
    store = open_store(tmp_path)
    fill(store, what)
    obj = store.acquire(what.version)
    check(obj, what)
    store.release(obj)
    store.close()
    assert not is_trusted(open_store(tmp_path), what)


def _flip(data: Path, ledger: Path) -> None:
    before = data.stat()
    first = data.read_bytes()[0]
    with open(data, "r+b") as file:
        file.write(bytes([first ^ 1]))
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))  # a forger's care does not help: ctime


def _copy(data: Path, ledger: Path) -> None:
    content = data.read_bytes()
    data.unlink()
    data.write_bytes(content)


def _clear_a_record(data: Path, ledger: Path) -> None:
    with open(ledger, "r+b") as file:
        file.truncate(ledger.stat().st_size - 1)


def _garbage(data: Path, ledger: Path) -> None:
    os.setxattr(ledger, ATTRIBUTE, os.urandom(60))


def _after_a_reboot(data: Path, ledger: Path) -> None:
    seal = msgspec.msgpack.decode(os.getxattr(ledger, ATTRIBUTE), type=seals.Seal)
    other = msgspec.structs.replace(seal, boot="00000000-0000-0000-0000-000000000000")
    os.setxattr(ledger, ATTRIBUTE, msgspec.msgpack.encode(other))


def _of_other_checksums(data: Path, ledger: Path) -> None:
    seal = msgspec.msgpack.decode(os.getxattr(ledger, ATTRIBUTE), type=seals.Seal)
    other = msgspec.structs.replace(seal, checksums=seal.checksums ^ 1)
    os.setxattr(ledger, ATTRIBUTE, msgspec.msgpack.encode(other))


@pytest.mark.parametrize(
    "change", [_flip, _copy, _clear_a_record, _garbage, _after_a_reboot, _of_other_checksums]
)
def test_whatever_changed_is_checked_again(tmp_path: Path, change: Callable[[Path, Path], None]) -> None:
    what = sealed(tmp_path)
    change(*files(tmp_path))
    assert not is_trusted(open_store(tmp_path), what)


def test_a_filesystem_without_attributes_has_no_seals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> bytes:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", refuse)
    monkeypatch.setattr(os, "getxattr", refuse)
    what = sealed(tmp_path)
    assert not is_trusted(open_store(tmp_path), what)


def test_a_system_without_a_boot_id_seals_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusestripe.cache.files.boot_id", lambda: "")
    what = sealed(tmp_path)
    assert not is_trusted(open_store(tmp_path), what)
