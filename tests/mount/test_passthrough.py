"""Whole files are read by the kernel itself, and never is one inode read in two ways."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import random
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from fusestripe import prefetch
from fusestripe.cache.seal import is_settled
from fusestripe.kernel.rights import has_sys_admin
from tests.mount.test_channel import features
from tests.support.mounted import Mounted, until
from tests.support.mounted_store import KIB, MIB, MountedStore, content, drop_pages

pytestmark = pytest.mark.skipif(
    not has_sys_admin(), reason="passthrough takes CAP_SYS_ADMIN (linux/fs/fuse/passthrough.c)"
)

SIZE = 2 * MIB + 77
READERS, FILES, ROUNDS = 16, 4, 30


def reads(mount: Mounted) -> int:
    """How many READs the daemon has answered."""
    count = mount.status()["reads"]["count"]
    assert isinstance(count, int)
    return count


def files(mount: Mounted) -> list[tuple[bool, int]]:
    """Of each open file whether the kernel reads it, and how much of it our reads took from the cache."""
    return [(file["passthrough"], file["from_cache"]) for file in mount.status()["files"]]


def wait_whole(mount: Mounted, files: int = 1) -> None:
    """Until every stripe of that many files is in the cache: bytes are given before they are saved."""
    until(lambda: mount.status()["cache"]["objects"] == files and mount.status()["open_files"] == 0)


def test_the_second_open_asks_the_daemon_for_nothing(store: MountedStore) -> None:
    data = content(SIZE)
    store.put("file", data)
    with store.mount() as mount:
        path = mount.path / "file"
        assert path.read_bytes() == data
        wait_whole(mount)
        drop_pages(path)
        before = reads(mount)
        assert path.read_bytes() == data
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            assert view[:] == data
        assert reads(mount) == before
        assert features(mount)["passthrough"] == ""


def test_status_tells_which_files_the_kernel_reads(store: MountedStore) -> None:
    data = content(SIZE)
    store.put("file", data)
    with store.mount() as mount:
        path = mount.path / "file"
        with open(path, "rb") as file:
            assert file.read() == data
            assert [whether for whether, _ in files(mount)] == [False]
            assert mount.status()["passed_through"] == 0
        wait_whole(mount)
        with open(path, "rb") as file:
            assert file.read() == data
            assert [whether for whether, _ in files(mount)] == [True]
            assert mount.status()["passed_through"] == 1
        served = mount.status()["served"]
        assert (served["origin"], served["checked"]) == (SIZE, SIZE)
        until(lambda: files(mount) == [])
        assert mount.status()["passed_through"] == 0


def test_switched_off_the_daemon_reads(store: MountedStore) -> None:
    data = content(SIZE)
    store.put("file", data)
    with store.mount(passthrough="no") as mount:
        path = mount.path / "file"
        assert path.read_bytes() == data
        wait_whole(mount)
        drop_pages(path)
        before = reads(mount)
        assert path.read_bytes() == data
        assert reads(mount) > before
        assert features(mount)["passthrough"] == "switched off"


def test_what_was_prefetched_is_read_by_the_kernel(store: MountedStore) -> None:
    data = content(SIZE)
    store.put("file", data)
    with store.mount() as mount:
        prefetch(str(mount.path / "file"))
        wait_whole(mount)
        before = reads(mount)
        assert (mount.path / "file").read_bytes() == data
        assert reads(mount) == before


def test_after_a_remount_the_kernel_reads_at_once(store: MountedStore) -> None:
    data = content(SIZE)
    store.put("file", data)
    with store.mount() as mount:
        assert (mount.path / "file").read_bytes() == data
        wait_whole(mount)
        (cached,) = (store.directory / "cache").rglob("*.data")
        until(lambda: is_settled(cached.stat()))
        assert (mount.path / "file").read_bytes() == data
    with store.mount() as mount:
        drop_pages(mount.path / "file")
        assert (mount.path / "file").read_bytes() == data
        assert reads(mount) == 0
        assert store.requests("GET") == []


def test_an_open_file_stays_as_it_was_opened(store: MountedStore) -> None:
    """The first open is through the daemon: while it is open, so are all others."""
    data = content(SIZE)
    store.put("file", data)
    with store.mount() as mount:
        path = mount.path / "file"
        with open(path, "rb") as first:
            assert first.read() == data
            until(lambda: mount.status()["cache"]["objects"] == 1)
            with open(path, "rb") as second:
                assert second.read() == data
        wait_whole(mount)
        drop_pages(path)
        before = reads(mount)
        with open(path, "rb") as third, open(path, "rb") as fourth:
            assert third.read() == fourth.read() == data
        assert reads(mount) == before


def test_a_cache_file_that_others_changed_is_not_handed_to_the_kernel(store: MountedStore) -> None:
    data = content(SIZE)
    store.put("file", data)
    with store.mount(complaints=True) as mount:
        path = mount.path / "file"
        assert path.read_bytes() == data
        wait_whole(mount)
        (cached,) = (store.directory / "cache").rglob("*.data")
        with open(cached, "r+b") as file:
            file.seek(70_000)
            file.write(b"\0\0\0\0")
        drop_pages(path)
        assert path.read_bytes() == data
        assert mount.status()["cache"]["corrupt_stripes"] == 1


def test_a_file_that_is_held_and_changed_is_not_handed_to_the_kernel(store: MountedStore) -> None:
    """Known as checked until the very open that finds out."""
    data = content(SIZE)
    store.put("file", data)
    with store.mount(complaints=True) as mount:
        path = mount.path / "file"
        with open(path, "rb", buffering=0) as holder:
            assert holder.readall() == data
            (cached,) = (store.directory / "cache").rglob("*.data")
            until(lambda: mount.status()["cache"]["objects"] == 1)
            with open(cached, "r+b") as file:
                file.write(b"WRONG")
            drop_pages(path)
            assert path.read_bytes() == data


def test_by_o_direct_any_buffer_will_do_cold_and_warm(store: MountedStore) -> None:
    """The cache's filesystem would ask for aligned ones."""
    data = content(SIZE)
    store.put("file", data)
    with store.mount() as mount:
        for _ in range(2):
            descriptor = os.open(mount.path / "file", os.O_RDONLY | os.O_DIRECT)
            assert os.pread(descriptor, 100, 1) == data[1:101]
            os.close(descriptor)
            assert (mount.path / "file").read_bytes() == data
            wait_whole(mount)


def test_by_o_direct_beside_who_has_it_open_in_passthrough(store: MountedStore) -> None:
    """From any place into any buffer, and the others stay in passthrough; after another daemon too."""
    data = content(SIZE)
    store.put("file", data)
    with store.mount(keeper="yes", complaints=True) as mount:
        assert (mount.path / "file").read_bytes() == data
        wait_whole(mount)
        with open(mount.path / "file", "rb") as holder:
            descriptors = []
            for takeover in (False, True):
                if takeover:
                    mount.kill_daemon()
                descriptors.append(os.open(mount.path / "file", os.O_RDONLY | os.O_DIRECT))
                for descriptor in descriptors:
                    for offset, length in ((777, 1000), (0, 4 * KIB), (4 * KIB + 1, SIZE)):
                        assert os.pread(descriptor, length, offset) == data[offset : offset + length]
                with open(mount.path / "file", "rb") as other:
                    assert other.read() == data
                assert [file["passthrough"] for file in mount.status()["files"]] == [True]
            for descriptor in descriptors:
                os.close(descriptor)
            assert holder.read() == data
        until(lambda: mount.status()["open_files"] == 0)


def _reader(arguments: tuple[str, int]) -> str:
    """Open, read, map and close files in no order; "" or what went wrong."""
    directory, seed = arguments
    chosen = random.Random(seed)
    expected = {f"file{number}": content(SIZE, number) for number in range(FILES)}
    for _ in range(ROUNDS):
        name = chosen.choice(sorted(expected))
        data = expected[name]
        offset = chosen.randrange(SIZE - 1)
        length = chosen.choice((1, 4 * KIB, 300 * KIB, SIZE))
        direct = os.O_DIRECT if chosen.random() < 0.2 else 0
        try:
            descriptor = os.open(Path(directory) / name, os.O_RDONLY | direct)
            with open(descriptor, "rb", buffering=0) as file:
                if not direct and chosen.random() < 0.5:
                    with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
                        got = view[offset : offset + length]
                else:
                    got = os.pread(file.fileno(), length, offset)
        except OSError as error:
            return f"{name}: {error}"
        if got != data[offset : offset + length]:
            return f"{name}: wrong bytes at {offset}"
    return ""


def test_no_open_fails_while_files_become_whole(store: MountedStore) -> None:
    """Sixteen processes open, read, map and close files that a prefetch completes meanwhile."""
    for number in range(FILES):
        store.put(f"file{number}", content(SIZE, number))
    store.proxy.shape(rate=0, total_rate=16 * MIB, delay=0.005)
    with store.mount() as mount:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(READERS, mp_context=context) as pool:
            work = [(str(mount.path), seed) for seed in range(READERS)]
            running = [pool.submit(_reader, arguments) for arguments in work]
            prefetch(str(mount.path))
            assert [future.result() for future in running] == [""] * READERS
        wait_whole(mount, FILES)
        before = reads(mount)
        for number in range(FILES):
            drop_pages(mount.path / f"file{number}")
            assert (mount.path / f"file{number}").read_bytes() == content(SIZE, number)
        assert reads(mount) == before
