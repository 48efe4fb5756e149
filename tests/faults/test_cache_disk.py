"""A cache disk that is full, fails, goes read-only, is slow or is taken away: it costs speed, never bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from fusestripe.cli import cli
from fusestripe.errors import CacheError
from fusestripe.kernel.mounting import find_mount
from tests.support.caches import STRIPE as STRIPE_OF_SAMPLES
from tests.support.caches import open_store, sample
from tests.support.mounted import Mounted, mounted, until
from tests.support.mounted_store import KIB, MIB, content, drop_pages
from tests.support.small_disk import SmallDisk

STRIPE = 64 * KIB
SIZE = 2 * MIB + 77
NAMES = [f"file{number}" for number in range(40)]
CONTENT = {name: content(SIZE, number) for number, name in enumerate(NAMES)}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "disk")
    yield disk
    disk.close()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for name, data in CONTENT.items():
        (source / name).write_bytes(data)
    return source


class Tree:
    """A mount whose cache lies on a disk of its own. Reads come past the kernel's pages and are right."""

    def __init__(self, mount: Mounted, cache: Path) -> None:
        self.mount = mount
        self.cache_dir = cache

    def read(self, name: str) -> None:
        path = self.mount.path / name
        assert path.read_bytes() == CONTENT[name]
        drop_pages(path)

    def cache(self) -> dict[str, object]:
        """What `fusestripe status --json` says of the cache."""
        done = CliRunner().invoke(cli, ["status", str(self.mount.path), "--json"])
        assert done.exit_code == 0, done.output
        found = json.loads(done.output)["cache"]
        assert isinstance(found, dict)
        return found

    def count(self, name: str) -> int:
        found = self.cache()[name]
        assert isinstance(found, int)
        return found

    def health(self) -> str:
        return str(self.cache()["health"])

    def read_until(self, health: str, names: Iterator[str], timeout: float = 20) -> None:
        """Read files until the disk is ``health``."""
        deadline = time.monotonic() + timeout
        while self.health() != health:
            self.read(next(names))
            assert time.monotonic() < deadline, self.health()

    def save_again(self, names: Iterator[str]) -> None:
        """Read files until one is saved."""
        before = self.count("saves")

        def is_saved() -> bool:
            self.read(next(names))
            return self.count("saves") > before

        until(is_saved)

    def keep(self, name: str) -> None:
        """Read a file and wait until all of it is in the cache and was read back."""
        self.read(name)

        def is_kept() -> bool:
            return not any(f"/{name}?" in file["path"] + "?" for file in self.mount.status()["files"])

        until(is_kept)


@contextmanager
def tree(source: Path, tmp_path: Path, cache: Path) -> Iterator[Tree]:
    with mounted(
        source.as_uri(),
        tmp_path / "mnt",
        cache_dir=cache,
        complaints=True,
        stripe_size=STRIPE,
        cache_reserve=0,
        cache_size=48 * MIB,
    ) as mount:
        found = Tree(mount, cache)
        yield found
        assert mount.status()["reads"]["errors"] == 0
        assert [line for line in mount.complaints() if "cache" not in line] == []


def endless() -> Iterator[str]:
    """The names, over and over: what cannot be kept is fetched each time."""
    while True:
        yield from NAMES


def test_a_disk_that_another_program_fills(disk: SmallDisk, source: Path, tmp_path: Path) -> None:
    with tree(source, tmp_path, disk.path / "cache") as it:
        it.keep("file0")
        disk.fill()
        for name in NAMES[1:8]:
            it.read(name)
        assert it.count("no_room") + it.count("evictions") > 0
        assert it.health() == "normal"  # a disk that is full is well
        disk.make_room()
        it.save_again(endless())
        assert it.count("write_errors") == 0
        assert it.count("corrupt_stripes") == 0
        assert it.mount.complaints() == []


def test_a_disk_that_fails_and_works_again(disk: SmallDisk, source: Path, tmp_path: Path) -> None:
    names = endless()
    with tree(source, tmp_path, disk.path / "cache") as it:
        for _ in range(3):
            it.keep(next(names))
        assert it.health() == "normal"
        with open(it.mount.path / "file2", "rb", buffering=0) as held:
            kept = list(it.cache_dir.rglob("*.data"))
            disk.fail()
            it.read_until("unstable", names)
            it.read_until("down", names)
            for data in kept:
                with suppress(OSError):
                    drop_pages(data)
            it.read("file0")  # kept, but cannot be read any more
            disk.mend()
            until(lambda: it.health() == "normal")
            assert held.read() == CONTENT["file2"]
        it.save_again(names)
        for name in NAMES[:4]:
            it.read(name)
        words = [line for line in it.mount.complaints() if "cache disk" in line]
        # ext4 says EIO, or ENOMEM of an inode that it cannot read. And the disk may stumble yet, when it is
        # back, over what it failed to write before.
        assert ["ERROR" in line for line in words[:3]] == [True, True, False], words
        assert "works again" in words[2]
    with tree(source, tmp_path, disk.path / "cache") as it:  # what the failing disk left behind
        for name in NAMES:
            it.read(name)


def test_the_end_of_a_file_is_not_kept_where_the_disk_refuses_it(disk: SmallDisk) -> None:
    """It goes by the page cache, which takes it gladly: lost later, it would read as zeros."""
    what = sample(size=100 * STRIPE_OF_SAMPLES + 77)
    last = what.stripes[-1]
    store = open_store(disk.path / "cache")
    obj = store.acquire(what.version)
    for index in what.stripes[:-1]:
        assert obj.save(index, what.stripe(index))
    disk.fail()
    with pytest.raises(CacheError, match="Input/output error"):
        obj.save(last, what.stripe(last))
    assert not obj.present(last)
    store.release(obj)
    store.close()


def test_a_file_on_a_disk_that_fails_is_not_handed_to_the_kernel(
    disk: SmallDisk, source: Path, tmp_path: Path
) -> None:
    """The kernel could only give the disk's error to the reader."""
    with tree(source, tmp_path, disk.path / "cache") as it:
        it.keep("file0")
        with open(it.mount.path / "file0", "rb", buffering=0) as file:
            assert file.read() == CONTENT["file0"]
            assert it.mount.status()["passed_through"] == (1 if os.geteuid() == 0 else 0)
        until(lambda: it.mount.status()["open_files"] == 0)
        (data,) = it.cache_dir.rglob("*.data")
        drop_pages(data)
        drop_pages(it.mount.path / "file0")
        disk.fail()
        with open(it.mount.path / "file0", "rb", buffering=0) as file:
            assert file.read() == CONTENT["file0"]
            assert it.mount.status()["passed_through"] == 0
        assert it.health() != "normal"
        disk.mend()
        until(lambda: it.health() == "normal")


def test_a_disk_that_goes_read_only_and_comes_back_repaired(
    disk: SmallDisk, source: Path, tmp_path: Path
) -> None:
    names = endless()
    with tree(source, tmp_path, disk.path / "cache") as it:
        for _ in range(3):
            it.keep(next(names))
        disk.go_read_only()
        it.read_until("unstable", names)
        it.read_until("down", names)
        it.read("file0")
        copy = disk.take_out()
        it.read("file1")
        assert list(disk.path.iterdir()) == []  # nothing is written to what lies under its place
        repaired = SmallDisk(disk.path, image=copy)
        try:
            until(lambda: it.health() == "normal")
            it.keep("file39")
            it.read("file0")
            assert any("Read-only file system" in line for line in it.mount.complaints())
            assert len(list(it.cache_dir.rglob("*.data"))) >= 4
        finally:
            repaired.close()


@pytest.mark.parametrize("what", [".", "objects"])
def test_a_directory_that_is_removed_is_made_anew(source: Path, tmp_path: Path, what: str) -> None:
    names = endless()
    cache = tmp_path / "cache"
    with tree(source, tmp_path, cache) as it, open(it.mount.path / "file39", "rb", buffering=0) as held:
        for _ in range(3):
            it.keep(next(names))
        assert held.read(SIZE // 2) == CONTENT["file39"][: SIZE // 2]
        while (cache / what).exists():  # the daemon may be writing
            shutil.rmtree(cache / what, ignore_errors=True)
        it.read_until("unstable", names)
        until(lambda: it.health() == "normal")
        assert held.read() == CONTENT["file39"][SIZE // 2 :]
        for name in NAMES[:5]:
            it.keep(name)
        assert len(list(cache.rglob("*.data"))) >= 5
        # Others learn by locks in the new files what is in use.
        with open(it.mount.path / "file3", "rb") as file:
            done = CliRunner().invoke(cli, ["cache", "clear", "--cache-dir", str(cache), "--json"])
            assert json.loads(done.output)["in_use"] >= 1
            assert file.read() == CONTENT["file3"]


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Path]:
    """A directory on a disk that takes and gives 1 MiB a second."""
    path, below = tmp_path / "slow", tmp_path / "slow.below"
    path.mkdir()
    below.mkdir()
    command = ["bindfs", "-f", "--write-rate=1M", "--read-rate=1M", str(below), str(path)]
    with subprocess.Popen(command) as server:
        until(lambda: find_mount(str(path)) is not None)
        yield path
        subprocess.run(["fusermount3", "-uz", str(path)], check=True)
        server.kill()


def test_a_slow_disk_holds_no_reader_up(slow: Path, source: Path, tmp_path: Path) -> None:
    """While stripes wait to be written, others are read; and those that the disk has do not wait for them."""
    with tree(source, tmp_path, slow / "cache") as it:
        it.keep("file0")
        began = time.monotonic()
        for name in NAMES[1:13]:
            it.read(name)
        assert time.monotonic() - began < 12, "the disk takes 24 s for these"
        it.read("file0")
        assert time.monotonic() - began < 20
        assert it.health() == "normal"
        assert it.count("saves") < 13 * 33, "the disk was not slow"
        began = time.monotonic()
    assert time.monotonic() - began < 10


def test_a_disk_that_fails_under_a_file_that_the_kernel_reads_itself(
    disk: SmallDisk, source: Path, tmp_path: Path
) -> None:
    """In passthrough: right bytes or EIO; who opens it anew gets the right ones from the origin."""
    cache = disk.path / "cache"
    name = NAMES[0]
    with tree(source, tmp_path, cache) as found:
        found.keep(name)
        path = found.mount.path / name
        with open(path, "rb", buffering=0) as file:
            until(lambda: found.mount.status()["passed_through"] == 1)
            for data in cache.rglob("*.data"):
                drop_pages(data)
            drop_pages(path)
            disk.fail()
            try:
                for offset in range(0, SIZE, STRIPE):
                    with suppress(OSError):
                        piece = os.pread(file.fileno(), STRIPE, offset)
                        assert piece == CONTENT[name][offset : offset + STRIPE]
                with pytest.raises(OSError, match=r"Errno 5\b"):  # of the last page, which was not read ahead
                    os.pread(file.fileno(), 1, SIZE - 1)
            finally:
                file.close()
                until(lambda: found.mount.status()["passed_through"] == 0)
            assert path.read_bytes() == CONTENT[name]
            disk.mend()
