"""A mount under load: many opens at once, huge directories, huge files."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.support.mounted import mounted, until
from tests.support.mounted_store import MIB, MountedStore, content
from tests.support.proxy import Fault

OPENS = 1000
TIB = 1 << 40
# What an entry of a directory may take: 500 MiB for a million, the rest of the daemon included.
BYTES_EACH = 470
BYTES_FIRST = 8 * MIB
LONG = bool(os.environ.get("FUSESTRIPE_LONG"))
ENTRIES = 1_000_000 if LONG else 100_000


def test_a_thousand_opens_at_once(store: MountedStore) -> None:
    """Of a thousand files that nobody knows yet: none fails, and they are listed once."""
    data = {f"run/{number:03}.bin": content(1000, number) for number in range(50)}
    for key, each in data.items():
        store.put(key, each)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with store.mount() as mount:
        at_once = threading.Barrier(100)

        def read(number: int) -> tuple[str, bytes]:
            key = f"run/{number % 50:03}.bin"
            at_once.wait(60)
            with open(mount.path / key, "rb") as file:
                return key, file.read()

        with ThreadPoolExecutor(100) as pool:
            found = list(pool.map(read, range(OPENS)))
        assert all(data[key] == each for key, each in found)
        assert len(store.requests("GET")) == len(data)
        assert len(store.requests("LIST")) <= 2
        until(lambda: mount.status()["open_files"] == 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_opens_at_once_of_an_origin_that_refuses_end_with_an_error(store: MountedStore) -> None:
    """All of them wait for one time-out, though the kernel lets them look up "run" one after the other."""
    store.put("run/file.bin", content(1000))
    with store.mount(timeout=1, complaints=True) as mount:
        store.proxy.set_faults([Fault("status:503", times=0)])

        def attempt(number: int) -> int | None:
            try:
                os.close(os.open(mount.path / f"run/{number}.bin", os.O_RDONLY))
            except OSError as error:
                return error.errno
            return None

        began = time.monotonic()
        with ThreadPoolExecutor(100) as pool:
            assert set(pool.map(attempt, range(200))) == {errno.EIO}
        assert time.monotonic() - began < 30, "each waited for its own time-out"
        store.proxy.set_faults([])
        until(lambda: os.path.exists(mount.path / "run/file.bin"))  # false for any error
        assert (mount.path / "run/file.bin").read_bytes() == content(1000)


@pytest.mark.timeout(900)
def test_a_huge_directory_is_listed_in_little_memory(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    descriptor = os.open(source, os.O_RDONLY)
    for number in range(ENTRIES):
        os.close(os.open(f"shard-{number:07}.bin", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=descriptor))
    os.close(descriptor)
    with mounted(source.as_uri(), tmp_path / "mnt", cache_dir=tmp_path / "cache", ttl=600) as mount:
        process = psutil.Process(mount.pid)
        at_rest = process.memory_info().rss
        assert at_rest < 80 * MIB
        with os.scandir(mount.path) as found:
            assert sum(entry.is_file() for entry in found) == ENTRIES
        used = process.memory_info().rss - at_rest
        print(f"{ENTRIES} entries: {used >> 20} MiB beside {at_rest >> 20} MiB")
        assert used <= BYTES_FIRST + ENTRIES * BYTES_EACH
        assert os.stat(mount.path / f"shard-{ENTRIES - 1:07}.bin").st_size == 0


def test_the_ends_of_a_file_of_two_tebibytes(tmp_path: Path) -> None:
    """Only what is read is fetched and takes room, however large the file is."""
    source = tmp_path / "source"
    source.mkdir()
    size = 2 * TIB
    places = {0: b"begin", TIB - 2: b"middle", size - 3: b"end"}
    with open(source / "huge.bin", "wb") as file:
        file.truncate(size)
        for place, data in places.items():
            os.pwrite(file.fileno(), data, place)
    with mounted(source.as_uri(), tmp_path / "mnt", cache_dir=tmp_path / "cache") as mount:
        path = mount.path / "huge.bin"
        assert path.stat().st_size == size
        for _ in range(2):
            with open(path, "rb", buffering=0) as file:
                for place, data in places.items():
                    assert os.pread(file.fileno(), len(data), place) == data
                assert os.pread(file.fileno(), 4096, size) == b""
                assert os.pread(file.fileno(), 4096, size - 1) == b"d"
        assert mount.status()["cache"]["used"] <= 64 * MIB
        assert psutil.Process(mount.pid).memory_info().rss < 300 * MIB
