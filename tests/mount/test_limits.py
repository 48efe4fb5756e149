"""What a daemon may take: descriptors, memory, and time to end."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import obstore
import pytest

from fusestripe.kernel.mounting import find_mount
from tests.support.mounted import Mounted, mounted, until
from tests.support.mounted_store import MIB, MountedStore, Pread, is_gone
from tests.support.proxy import Fault

OPEN_FILES = 10_000
BLOCK = 16 * MIB


@contextmanager
def open_files_allowed(count: int) -> Iterator[None]:
    """This process may open ``count`` files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = (max(soft, count), max(hard, count) if hard != resource.RLIM_INFINITY else hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def memory_of(mount: Mounted, name: str) -> int:
    """``name`` of /proc/PID/status (VmRSS, VmHWM: proc(5)) in bytes."""
    lines = Path(f"/proc/{mount.pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


def test_ten_thousand_open_files(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(OPEN_FILES):
        (source / f"{number:05}").write_bytes(f"file {number}".encode() * 30)
    with (
        open_files_allowed(OPEN_FILES + 1000),
        mounted(
            source.as_uri(), tmp_path / "mnt", cache_dir=tmp_path / "cache", stripe_size="64KiB"
        ) as mount,
    ):
        resource.prlimit(mount.pid, resource.RLIMIT_NOFILE, (1024, 1024))
        descriptors: list[int] = []
        try:
            for number in range(OPEN_FILES):
                descriptors.append(os.open(mount.path / f"{number:05}", os.O_RDONLY))
            assert mount.status()["open_files"] == OPEN_FILES
            chosen = random.Random(1).sample(range(OPEN_FILES), 200)
            for _ in range(2):
                for number in chosen:
                    assert os.pread(descriptors[number], 1000, 0) == f"file {number}".encode() * 30
            assert len(os.listdir(f"/proc/{mount.pid}/fd")) < 1024
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        until(lambda: mount.status()["open_files"] == 0, timeout=60)


PATTERN = memoryview(random.Random(5).randbytes(BLOCK + 64 * 40_961))


def block(number: int) -> memoryview:
    """16 MiB that differ from those of any other number below 64, at every offset."""
    shift = number * 40_961
    return PATTERN[shift : shift + BLOCK]


def read_blocks(path: Path, numbers: range) -> None:
    """Read ``path`` from its start and compare it with the blocks of those numbers."""
    with open(path, "rb", buffering=0) as file:
        for number in numbers:
            expected = block(number)
            for start in range(0, BLOCK, MIB):
                data = file.read(MIB)
                assert data == expected[start : start + MIB], f"{path.name} at {number * BLOCK + start}"
        assert file.read(1) == b""


def test_memory_stays_within_the_budget(store: MountedStore) -> None:
    budget = 256 * MIB
    most = budget + 200 * MIB
    numbers = range(64)
    objects = store.server.store(store.bucket)
    obstore.put(objects, "large", map(bytes, map(block, numbers)), chunk_size=BLOCK)
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(
            lambda n: obstore.put(objects, f"many/{n}", block(n), use_multipart=False), numbers
        ):
            pass
    with store.mount(stripe_size=8 * MIB, memory=budget) as mount:
        at_rest = memory_of(mount, "VmRSS")
        assert at_rest < 200 * MIB
        read_blocks(mount.path / "large", numbers)
        assert memory_of(mount, "VmHWM") <= most
        with ThreadPoolExecutor(64) as pool:
            for _ in pool.map(lambda n: read_blocks(mount.path / f"many/{n}", range(n, n + 1)), numbers):
                pass
        assert memory_of(mount, "VmHWM") <= most
        memory = mount.status()["memory"]
        assert memory["peak"] <= memory["limit"] == budget
        print(f"at rest {at_rest >> 20} MiB, at most {memory_of(mount, 'VmHWM') >> 20} MiB")


def test_a_daemon_that_nobody_needs_sleeps(store: MountedStore) -> None:
    """It wakes for its own housekeeping, and not to look whether there is something to do."""
    store.put("file", b"x" * MIB)

    def wakeups() -> int:
        status = Path(f"/proc/{mount.pid}/status").read_text()
        return int(status.partition("voluntary_ctxt_switches:")[2].split()[0])

    with store.mount() as mount:
        assert (mount.path / "file").read_bytes() == b"x" * MIB
        until(lambda: mount.status()["open_files"] == 0)
        least = 1000
        for _ in range(5):  # of one second each: what a reader left behind may still be at work in the first
            before = wakeups()
            time.sleep(1)
            least = min(least, wakeups() - before)
        assert least <= 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_someone_reads(store: MountedStore, number: signal.Signals) -> None:
    store.put("file", b"x" * MIB)
    store.proxy.set_faults([Fault("hold:1000", match="^GET", times=0)])
    with store.mount() as mount:
        with Pread(mount.path / "file", 8192, 4096) as reader:
            store.proxy.wait_held()
            reader.wait_blocked()
            os.kill(mount.pid, number)
            until(lambda: is_gone(mount.pid), timeout=10)
            assert isinstance(reader.result(), int)
        assert find_mount(str(mount.path)) is None
        assert os.listdir(mount.path) == []
    store.proxy.release()
