"""A cache on a disk that stops to answer: the daemon of its filesystem is stopped, so all calls hang."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fusestripe.config import load
from fusestripe.errors import CacheError, MountError
from fusestripe.kernel.mounting import find_mount
from fusestripe.launch import launch
from tests.support.mounted import Mounted, mounted, until
from tests.support.mounted_store import KIB, MIB, content, drop_pages

DATA = content(4 * MIB)
# Seconds for what waits for the hung disk once (DiskThreads.within, 8) on a busy machine.
BOUND = 40.0


class Disk:
    """The directory ``path`` shows another one by way of bindfs; while that is stopped, all calls hang."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        below = path.with_name(f"{path.name}.below")
        below.mkdir()
        self._server = subprocess.Popen(["bindfs", "-f", str(below), str(path)])
        until(lambda: find_mount(str(path)) is not None)

    def hang(self) -> None:
        self._server.send_signal(signal.SIGSTOP)

    def answer(self) -> None:
        self._server.send_signal(signal.SIGCONT)

    def close(self) -> None:
        # Whatever still waits for it fails with ENOTCONN.
        self._server.kill()
        self._server.wait()
        subprocess.run(["fusermount3", "-uz", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path.resolve() / "disk")
    yield disk
    disk.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("one", "two", "three"):
        (source / name).write_bytes(name.encode() + DATA)
    return source


def read(path: Path) -> float:
    """Read all of ``path`` past the kernel's pages; the seconds that took. The bytes are right."""
    began = time.monotonic()
    assert path.read_bytes() == path.name.encode() + DATA
    drop_pages(path)
    return time.monotonic() - began


def health(mount: Mounted) -> str:
    return str(mount.status()["cache"]["health"])


def test_reads_and_opens_go_on(disk: Disk, source: Path, tmp_path: Path) -> None:
    with mounted(
        source.as_uri(),
        tmp_path / "mnt",
        cache_dir=disk.path / "cache",
        stripe_size=64 * KIB,
        complaints=True,
    ) as mount:
        read(mount.path / "one")
        assert health(mount) == "normal"
        with (mount.path / "one").open("rb", buffering=0) as opened:
            disk.hang()
            assert opened.read() == b"one" + DATA
            for name in ("two", "three", "one"):
                assert read(mount.path / name) < BOUND
            assert health(mount) == "down"
            # Nobody waits for it any more.
            assert read(mount.path / "three") < 8
            assert mount.status()["reads"]["errors"] == 0
            assert psutil.Process(mount.pid).num_threads() < 100
            disk.answer()
            until(lambda: health(mount) == "normal")
        assert read(mount.path / "two") < BOUND
        disk_words = [line for line in mount.complaints() if "cache disk" in line]
        assert len(disk_words) == 2
        assert "no answer in 8 s" in disk_words[0]
        assert "answers again" in disk_words[1]


def test_unmounting_while_it_hangs(disk: Disk, source: Path, tmp_path: Path) -> None:
    with mounted(
        source.as_uri(),
        tmp_path / "mnt",
        cache_dir=disk.path / "cache",
        stripe_size=64 * KIB,
        complaints=True,
    ) as mount:
        disk.hang()
        assert read(mount.path / "one") < BOUND
        began = time.monotonic()
        subprocess.run(["fusermount3", "-u", str(mount.path)], check=True, timeout=BOUND)
        until(lambda: find_mount(str(mount.path)) is None)
        assert time.monotonic() - began < BOUND
        disk.answer()
        until(lambda: not psutil.pid_exists(mount.pid) or _is_dead(mount.pid), BOUND)


def _is_dead(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_mounting_while_it_hangs(disk: Disk, source: Path, tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    settings = load(source.as_uri(), {"cache_dir": str(disk.path / "cache")})
    disk.hang()
    began = time.monotonic()
    with pytest.raises((MountError, CacheError), match="does not answer") as caught:
        launch(settings, str(tmp_path / "mnt"))
    assert time.monotonic() - began < BOUND
    assert "--cache-dir" in caught.value.mend
    assert find_mount(str(tmp_path.resolve() / "mnt")) is None
    assert os.listdir(tmp_path / "mnt") == []
