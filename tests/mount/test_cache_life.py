"""The cache through real mounts: what outlives the daemon, is shared, is evicted, is damaged."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fusestripe.cli import cli
from fusestripe.stripes.resident import DONE_KEPT
from tests.support.mounted import Mounted, until
from tests.support.mounted_store import KIB, MIB, MountedStore, Pread, content, drop_pages, ranges_of
from tests.support.proxy import Fault

STRIPE = 64 * KIB
SIZE = 2 * MIB
STRIPES = SIZE // STRIPE
DATA = content(SIZE)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def file_status(mount: Mounted, name: str) -> dict[str, Any]:
    (found,) = [file for file in mount.status()["files"] if f"/{name}?" in file["path"] + "?"]
    assert isinstance(found, dict)
    return found


def disk_use(directory: Path) -> int:
    """Bytes that the data files under ``directory`` take, holes not counted."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*.data"))


def wait_saved(mount: Mounted, path: Path) -> None:
    """Return when all of ``path`` is in the cache: saving goes on beside the reply."""
    with opened(path):
        until(lambda: file_status(mount, path.name)["present"] == path.stat().st_size)


def test_a_second_mount_asks_for_no_byte(store: MountedStore) -> None:
    store.put("file", DATA)
    with store.mount() as mount:
        assert (mount.path / "file").read_bytes() == DATA
        wait_saved(mount, mount.path / "file")
    with store.mount() as mount:
        assert (mount.path / "file").read_bytes() == DATA
        assert store.requests("GET") == []
        assert mount.status()["served"]["cache"] >= SIZE


def test_unmounting_right_after_reading_leaves_only_right_bytes(store: MountedStore) -> None:
    store.put("file", DATA)
    with store.mount() as mount:
        assert (mount.path / "file").read_bytes() == DATA
    with store.mount() as mount:
        assert (mount.path / "file").read_bytes() == DATA


def test_unmounting_right_after_reading_keeps_what_was_read(store: MountedStore) -> None:
    """It is paid for: what is still being saved is waited for."""
    for number in range(5):
        store.put(f"file{number}", DATA)
        with store.mount() as mount:
            assert (mount.path / f"file{number}").read_bytes() == DATA
        with store.mount() as mount:
            assert (mount.path / f"file{number}").read_bytes() == DATA
            assert store.requests("GET") == []


def test_killed_in_the_middle_of_a_read(store: MountedStore) -> None:
    store.put("file", DATA)
    wanted = STRIPES // 2
    store.proxy.set_faults([Fault("hold:1000", match="^GET", nth=wanted + 1, times=0)])
    # Another process reads: a killed daemon must not be able to hold the test.
    with store.mount() as mount, Pread(mount.path / "file", 0, SIZE) as reader:
        store.proxy.wait_held()
        until(lambda: file_status(mount, "file")["present"] >= wanted * STRIPE)
        before = ranges_of(store.requests("GET"))
        mount.kill()
        got = reader.result()
        # An errno, or what the kernel had already: pread(2) then ends short.
        assert isinstance(got, int) or (len(got) < SIZE and DATA.startswith(got))
    store.proxy.set_faults([])
    store.proxy.release()
    # The dead mount lies there still: it is taken away by the next.
    with store.mount() as mount:
        assert (mount.path / "file").read_bytes() == DATA
        after = ranges_of(store.requests("GET"))
        assert len(after) == STRIPES - wanted
        assert len(set(before) - set(after)) == wanted
        assert mount.status()["cache"]["corrupt_stripes"] == 0


def test_killed_and_left_stale(store: MountedStore) -> None:
    store.put("file", DATA)
    with store.mount() as first:
        assert (first.path / "file").read_bytes() == DATA
        wait_saved(first, first.path / "file")
        first.kill()
        with pytest.raises(OSError, match="not connected"):
            os.listdir(first.path)
        with store.mount() as second:
            assert (second.path / "file").read_bytes() == DATA
            assert store.requests("GET") == []


def test_two_mounts_share_one_cache_directory(store: MountedStore) -> None:
    store.put("file", DATA)
    store.put("both", DATA[::-1])
    with store.mount(at="one") as one, store.mount(at="two") as two:
        assert (one.path / "file").read_bytes() == DATA
        wait_saved(one, one.path / "file")
        store.proxy.reset()
        assert (two.path / "file").read_bytes() == DATA
        assert store.requests("GET") == []
        with ThreadPoolExecutor(2) as pool:
            paths = [mount.path / "both" for mount in (one, two)]
            assert list(pool.map(Path.read_bytes, paths)) == [DATA[::-1]] * 2
        assert one.status()["cache"]["corrupt_stripes"] == two.status()["cache"]["corrupt_stripes"] == 0


def test_eviction_keeps_the_limit_and_the_open_file(store: MountedStore) -> None:
    limit = 8 * MIB
    files = {f"file{number:02}": content(SIZE, number) for number in range(12)}
    for name, data in files.items():
        store.put(name, data)
    with store.mount(cache_size=limit) as mount, opened(mount.path / "file00") as kept:
        assert os.pread(kept, SIZE, 0) == files["file00"]
        until(lambda: file_status(mount, "file00")["present"] == SIZE)
        for _ in range(2):
            for name in list(files)[1:]:
                assert (mount.path / name).read_bytes() == files[name]
                assert disk_use(store.directory / "cache") <= limit + SIZE
        until(lambda: disk_use(store.directory / "cache") <= limit)
        cache = mount.status()["cache"]
        assert cache["used"] <= cache["limit"] == limit
        assert cache["evictions"] > 0
        assert file_status(mount, "file00")["present"] == SIZE
        store.proxy.reset()
        drop_pages(mount.path / "file00")
        assert os.pread(kept, SIZE, 0) == files["file00"]
        assert store.requests("GET") == []


def test_a_pinned_file_stays_until_it_is_unpinned(store: MountedStore) -> None:
    limit = 8 * MIB
    store.put("pinned", DATA)
    files = {f"file{number}": content(SIZE, number) for number in range(6)}
    for name, data in files.items():
        store.put(name, data)
    cache = ("--cache-dir", str(store.directory / "cache"))

    def read_others() -> None:
        for name, data in files.items():
            assert (mount.path / name).read_bytes() == data
            wait_saved(mount, mount.path / name)
            drop_pages(mount.path / name)

    def asked_for_pinned() -> bool:
        drop_pages(mount.path / "pinned")
        store.proxy.reset()
        assert (mount.path / "pinned").read_bytes() == DATA
        return store.requests("GET") != []

    with store.mount(cache_size=limit) as mount:
        assert CliRunner().invoke(cli, ["prefetch", str(mount.path / "pinned"), "--pin"]).exit_code == 0
        read_others()
        read_others()
        assert not asked_for_pinned()
        done = CliRunner().invoke(cli, ["cache", "unpin", f"s3://{store.bucket}/pinned", *cache])
        assert done.output == "1 object unpinned\n"
        read_others()
        read_others()
        assert asked_for_pinned()


def test_an_open_file_larger_than_the_cache(store: MountedStore) -> None:
    limit = MIB
    store.put("file", DATA)
    with store.mount(cache_size=limit) as mount:
        for _ in range(2):
            assert (mount.path / "file").read_bytes() == DATA
            drop_pages(mount.path / "file")
        until(lambda: disk_use(store.directory / "cache") <= limit)


def test_a_damaged_stripe_is_fetched_again(store: MountedStore) -> None:
    store.put("file", DATA)
    with store.mount() as mount:
        assert (mount.path / "file").read_bytes() == DATA
        wait_saved(mount, mount.path / "file")
    (cached,) = (store.directory / "cache").rglob("*.data")
    damaged = 5
    with open(cached, "r+b") as file:
        file.seek(damaged * STRIPE + 100)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    with store.mount(complaints=True) as mount:
        assert (mount.path / "file").read_bytes() == DATA
        assert ranges_of(store.requests("GET")) == [(damaged * STRIPE, (damaged + 1) * STRIPE - 1)]
        assert mount.status()["cache"]["corrupt_stripes"] == 1
        wait_saved(mount, mount.path / "file")
        assert all(re.search(r"stripe 5\b", line) for line in mount.complaints())
    with store.mount() as mount:
        assert (mount.path / "file").read_bytes() == DATA
        assert store.requests("GET") == []


def test_a_stripe_damaged_after_its_check_is_fetched_again(store: MountedStore) -> None:
    store.put("file", DATA)
    with store.mount() as mount:
        assert (mount.path / "file").read_bytes() == DATA
        wait_saved(mount, mount.path / "file")
    few = 16 * STRIPE
    # By the daemon: what the kernel reads itself is not looked at again while it is open.
    with (
        store.mount(memory=few, passthrough=False, complaints=True) as mount,
        opened(mount.path / "file") as descriptor,
    ):
        assert os.pread(descriptor, SIZE, 0) == DATA  # every stripe is loaded and checked
        assert store.requests("GET") == []
        # The first stripes are not in the daemon's memory any more, nor in the kernel's.
        drop_pages(mount.path / "file")
        (cached,) = (store.directory / "cache").rglob("*.data")
        with cached.open("r+b") as file:
            file.seek(5 * STRIPE + 100)
            file.write(b"oops")
        assert os.pread(descriptor, 16, 5 * STRIPE + 96) == DATA[5 * STRIPE + 96 :][:16]
        assert ranges_of(store.requests("GET")) == [(5 * STRIPE, 6 * STRIPE - 1)]
        assert all(re.search(r"stripe 5\b", line) for line in mount.complaints())


def test_a_ledger_cut_short_is_a_miss(store: MountedStore) -> None:
    store.put("file", DATA)
    with store.mount() as mount:
        assert (mount.path / "file").read_bytes() == DATA
        wait_saved(mount, mount.path / "file")
    (ledger,) = (store.directory / "cache").rglob("*.ledger")
    os.truncate(ledger, ledger.stat().st_size // 2)
    with store.mount(complaints=True) as mount:
        assert (mount.path / "file").read_bytes() == DATA
        assert store.requests("GET")
        assert all("ledger" in line or "cache" in line for line in mount.complaints())


def test_a_cache_directory_deleted_under_the_daemon(store: MountedStore) -> None:
    store.put("file", DATA)
    store.put("other", DATA[::-1])
    with store.mount(complaints=True) as mount, opened(mount.path / "file") as descriptor:
        assert os.pread(descriptor, SIZE // 2, 0) == DATA[: SIZE // 2]
        shutil.rmtree(store.directory / "cache")
        drop_pages(mount.path / "file")
        assert os.pread(descriptor, SIZE, 0) == DATA
        for _ in range(2):
            assert (mount.path / "other").read_bytes() == DATA[::-1]
            assert (mount.path / "file").read_bytes() == DATA
            drop_pages(mount.path / "other")
        assert mount.status()["reads"]["errors"] == 0
        assert all("cache" in line for line in mount.complaints())


def test_a_cache_that_another_process_keeps_locked(store: MountedStore) -> None:
    store.put("file", DATA)
    with store.mount(complaints=True) as mount:
        with open(store.directory / "cache" / "locks", "r+b") as locks:
            fcntl.lockf(locks, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert (mount.path / "file").read_bytes() == DATA
        (complaint,) = mount.complaints()
        assert " is read without the cache: another process keeps the cache file" in complaint
        until(lambda: not mount.status()["files"])  # while it is open it stays without
        drop_pages(mount.path / "file")
        assert (mount.path / "file").read_bytes() == DATA
        with opened(mount.path / "file"):  # what is still in memory is not fetched again
            until(lambda: file_status(mount, "file")["present"] >= SIZE - DONE_KEPT * STRIPE)
