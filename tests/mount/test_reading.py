"""Reading through a real mount: which requests it makes, and that every byte is right."""

from __future__ import annotations

import mmap
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.mounted import mounted, until
from tests.support.mounted_store import KIB, MIB, MountedStore, Pread, content, ranges_of
from tests.support.proxy import Fault

STRIPE = 64 * KIB


def stripes_of(size: int, stripe: int = STRIPE) -> list[tuple[int, int]]:
    return [(start, min(start + stripe, size) - 1) for start in range(0, size, stripe)]


def test_several_routes_in_one_tree(store: MountedStore) -> None:
    store.put("runs/one/model.pt", b"one" * 50_000)
    store.put("llm/weights", b"weights" * 20_000)
    disk = store.directory / "disk"
    (disk / "sub").mkdir(parents=True)
    (disk / "sub" / "file").write_bytes(b"local" * 30_000)
    config = store.directory / "routes.toml"
    config.write_text(
        f"""
        [[route]]
        path = "/ckpt/runs"
        source = "s3://{store.bucket}/runs"
        [[route]]
        path = "/ckpt/disk"
        source = "file://{disk}"
        [[route]]
        path = "/models"
        source = "s3://{store.bucket}/llm"
        endpoint = "{store.proxy.endpoint}"
        """
    )
    with mounted(
        config,
        store.directory / "mnt",
        cache_dir=store.directory / "cache",
        environment=store.server.environment,
        stripe_size=STRIPE,
    ) as mount:
        assert sorted(os.listdir(mount.path)) == ["ckpt", "models"]
        assert sorted(os.listdir(mount.path / "ckpt")) == ["disk", "runs"]
        assert os.listdir(mount.path / "ckpt" / "runs") == ["one"]
        assert (mount.path / "ckpt/runs/one/model.pt").read_bytes() == b"one" * 50_000
        assert (mount.path / "ckpt/disk/sub/file").read_bytes() == b"local" * 30_000
        assert (mount.path / "models/weights").read_bytes() == b"weights" * 20_000
        assert ranges_of(store.requests("GET")) == stripes_of(140_000)
        for missing in ("other", "ckpt/other", "ckpt/runs/two"):
            with pytest.raises(FileNotFoundError):
                os.stat(mount.path / missing)
        assert [route["path"] for route in mount.status()["routes"]] == [
            "/ckpt/runs",
            "/ckpt/disk",
            "/models",
        ]


@pytest.mark.parametrize("size", [1, STRIPE, 5 * MIB + 1])
def test_a_sequential_read_asks_for_each_stripe_once(store: MountedStore, size: int) -> None:
    data = content(size)
    store.put("file", data)
    with store.mount() as mount:
        assert (mount.path / "file").read_bytes() == data
        assert ranges_of(store.requests("GET")) == stripes_of(size)
        assert store.proxy.statistics().count("HEAD") == 0
        assert mount.status()["origin"]["bytes"] == size


def test_random_reads_fetch_little_more_than_they_touch(store: MountedStore) -> None:
    size = 32 * MIB
    data = content(size)
    store.put("file", data)
    chosen = random.Random(1)
    offsets = [chosen.randrange(0, size // 4096) * 4096 for _ in range(100)]
    with store.mount() as mount:
        descriptor = os.open(mount.path / "file", os.O_RDONLY)
        try:
            for offset in offsets:
                assert os.pread(descriptor, 4096, offset) == data[offset : offset + 4096]
        finally:
            os.close(descriptor)
        touched = len({offset // STRIPE for offset in offsets})
        assert touched <= len(store.requests("GET")) <= touched * 1.2


def test_eight_threads_on_one_descriptor(store: MountedStore) -> None:
    size = 16 * MIB
    data = content(size)
    store.put("file", data)
    region = size // 8
    with store.mount() as mount:
        descriptor = os.open(mount.path / "file", os.O_RDONLY)

        def read(thread: int) -> bool:
            start = thread * region
            return all(
                os.pread(descriptor, 128 * KIB, offset) == data[offset : offset + 128 * KIB]
                for offset in range(start, start + region, 128 * KIB)
            )

        try:
            with ThreadPoolExecutor(8) as pool:
                assert all(pool.map(read, range(8)))
        finally:
            os.close(descriptor)
        assert ranges_of(store.requests("GET")) == stripes_of(size)


def test_strided_reads_fetch_only_their_stripes(store: MountedStore) -> None:
    size = 16 * MIB
    data = content(size)
    store.put("file", data)
    offsets = range(0, size, 512 * KIB)
    with store.mount() as mount:
        descriptor = os.open(mount.path / "file", os.O_RDONLY)
        try:
            for offset in offsets:
                assert os.pread(descriptor, 4096, offset) == data[offset : offset + 4096]
        finally:
            os.close(descriptor)
        # What follows the first read is fetched ahead before anything tells that it is not wanted.
        assert len(offsets) <= len(store.requests("GET")) <= len(offsets) + 16


def test_a_mapped_file(store: MountedStore) -> None:
    size = 4 * MIB + 123
    data = content(size)
    store.put("file", data)
    with store.mount() as mount, open(mount.path / "file", "rb") as file:
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            chosen = random.Random(2)
            for _ in range(50):
                start = chosen.randrange(size)
                assert mapped[start : start + 10_000] == data[start : start + 10_000]
            assert mapped[:] == data
        assert ranges_of(store.requests("GET")) == stripes_of(size)


def test_any_offset_and_length(store: MountedStore) -> None:
    size = 300 * KIB + 77
    data = content(size)
    store.put("file", data)
    chosen = random.Random(3)
    with store.mount() as mount:
        descriptor = os.open(mount.path / "file", os.O_RDONLY)
        try:
            for _ in range(300):
                offset, length = chosen.randrange(size + 9000), chosen.randrange(200_000)
                assert os.pread(descriptor, length, offset) == data[offset : offset + length]
        finally:
            os.close(descriptor)


def test_two_processes_that_read_one_stripe_make_one_request(store: MountedStore) -> None:
    data = content(MIB)
    store.put("file", data)
    store.proxy.set_faults([Fault("hold", match="^GET", times=0)])
    with store.mount(stripe_size=MIB) as mount:
        # Apart by more than the kernel reads ahead of one of them, so that both ask the daemon.
        with Pread(mount.path / "file", 0, 4096) as one, Pread(mount.path / "file", 400_000, 4096) as two:
            store.proxy.wait_held()
            one.wait_blocked()
            two.wait_blocked()
            store.proxy.release()
            assert one.result() == data[:4096]
            assert two.result() == data[400_000:404_096]
        assert ranges_of(store.requests("GET")) == [(0, MIB - 1)]


def test_the_end_of_a_file_overtakes_bulk_reads(store: MountedStore) -> None:
    """As torch looks first for the directory at a checkpoint's end."""
    data = content(24 * MIB + 100)
    store.put("bulk", data)
    store.put("file", data)
    with store.mount(stripe_size=8 * MIB, stripe_count=2) as mount:
        (mount.path / "file").stat()
        store.proxy.shape(total_rate=MIB)
        with Pread(mount.path / "bulk", 0, len(data)) as bulk:
            until(lambda: len(ranges_of(store.requests("GET"))) >= 2)
            started = time.monotonic()
            with open(mount.path / "file", "rb", buffering=0) as file:
                file.seek(-4096, os.SEEK_END)
                assert file.read(5000) == data[-4096:]
                file.seek(16 * MIB - 4096)
                assert file.read(4096) == data[16 * MIB - 4096 : 16 * MIB]
            # Their stripes alone would take 8 seconds and more.
            assert time.monotonic() - started < 4
            bulk.kill()


def test_a_killed_reader_takes_nothing_from_another(store: MountedStore) -> None:
    data = content(MIB)
    store.put("file", data)
    store.proxy.set_faults([Fault("hold:1000", match="^GET", times=0)])
    with store.mount(stripe_size=MIB) as mount:
        with Pread(mount.path / "file", 8192, 4096) as first:
            store.proxy.wait_held()
            first.wait_blocked()
            with Pread(mount.path / "file", 400_000, 4096) as second:
                second.wait_blocked()
                first.kill()
                store.proxy.release()
                assert second.result() == data[400_000:404_096]
        assert ranges_of(store.requests("GET")) == [(0, MIB - 1)]
        assert (mount.path / "file").read_bytes() == data
        assert len(store.requests("GET")) == 1
        assert mount.status()["reads"]["errors"] == 0


def test_a_stripe_goes_on_when_its_only_reader_is_killed(store: MountedStore) -> None:
    data = content(MIB)
    store.put("file", data)
    store.proxy.set_faults([Fault("hold", match="^GET")])
    with store.mount(stripe_size=MIB) as mount:
        with Pread(mount.path / "file", 0, 4096) as reader:
            store.proxy.wait_held()
            reader.wait_blocked()
            reader.kill()
        store.proxy.release()
        until(lambda: mount.status()["cache"]["used"] > 0)
        assert (mount.path / "file").read_bytes() == data
        assert len(store.requests("GET")) == 1
