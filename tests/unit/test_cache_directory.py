"""Directories that cannot be used: one line that says why, and the mend."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fusestripe.errors import CacheError
from tests.support.caches import (
    STRIPE,
    check,
    fill,
    open_store,
    sample,
)


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
