"""The end of a daemon, told or not: what it paid for is used, and nobody reads a wrong byte or hangs."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from fusestripe import prefetch
from fusestripe.cache.catalogue import CacheCatalogue
from fusestripe.cache.ledger import decode_header, decode_records
from fusestripe.errors import FusestripeError
from fusestripe.kernel.mounting import find_mount
from fusestripe.stripes.plan import stripe_count
from tests.support.mounted import Mounted, until
from tests.support.mounted_store import KIB, MIB, MountedStore, content, is_gone
from tests.support.steady_readers import SteadyReaders

KILLS = int(os.environ.get("FUSESTRIPE_KILLS", "15"))
"""How often the daemon is killed; 200 is the long form."""
STRIPE = 64 * KIB
SIZE = 2 * MIB + 77
NAMES = [f"file{number}" for number in range(6)]
CONTENT = {name: content(SIZE, number) for number, name in enumerate(NAMES)}
ALL = frozenset((name, index) for name in NAMES for index in range(stripe_count(SIZE, STRIPE)))


@pytest.fixture
def files(store: MountedStore) -> MountedStore:
    """The store, with all files in it."""
    for name, data in CONTENT.items():
        store.put(name, data)
    return store


@contextmanager
def prefetching(mount: Mounted) -> Iterator[None]:
    """A prefetch of everything goes on beside; it may fail when the mount goes."""

    def run() -> None:
        with suppress(FusestripeError):
            prefetch(str(mount.path))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(60)
        assert not thread.is_alive()


def paid_for(cache: Path) -> frozenset[tuple[str, int]]:
    """The stripes that the ledgers of a cache directory have, as (name, index)."""
    found = set()
    for path in cache.rglob("*.ledger"):
        ledger = path.read_bytes()
        header = decode_header(ledger)
        assert header is not None
        found |= {(header.version.path, index) for index, _ in decode_records(header, ledger)}
    return frozenset(found)


def asked_for(store: MountedStore) -> list[tuple[str, int]]:
    """The stripes of which bytes were asked for since the mount, as (name, index)."""
    store.proxy.wait_for(lambda statistics: statistics.active == 0)
    found = []
    for request in store.requests("GET"):
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", request.range)
        assert match is not None, request
        name = request.path.partition("?")[0].rpartition("/")[2]
        found += [(name, index) for index in range(int(match[1]) // STRIPE, int(match[2]) // STRIPE + 1)]
    return found


def live_and_be_killed(
    store: MountedStore, mount: Mounted, before: frozenset[tuple[str, int]], chosen: random.Random
) -> None:
    """Read and prefetch until some moment; never is a stripe asked for that was paid for ``before``."""
    requests = chosen.randrange(1 + min(60, len(ALL - before)))
    seed = chosen.randrange(1 << 30)
    with SteadyReaders(mount.path, NAMES, SIZE, count=3, seed=seed) as readers, prefetching(mount):
        store.proxy.wait_for(lambda statistics: statistics.ranges >= requests)
        threading.Event().wait(chosen.uniform(0, 0.1))  # no condition: the moment is to be any
        mount.kill()
        readers.check()
    assert before.isdisjoint(asked_for(store))
    assert mount.complaints() == []


def check_the_last(store: MountedStore, cache: str, before: frozenset[tuple[str, int]]) -> None:
    """What is left to pay for is asked for, each stripe once, and all bytes are right, on the disk too."""
    with store.mount(cache=cache) as mount:
        for name in NAMES:
            assert (mount.path / name).read_bytes() == CONTENT[name]
        assert sorted(asked_for(store)) == sorted(ALL - before)
        assert mount.status()["cache"]["corrupt_stripes"] == 0
    with CacheCatalogue(store.directory / cache) as catalogue:
        assert [found.bad_stripes for found in catalogue.verify()] == [0] * len(NAMES)


@pytest.mark.timeout(120 + 5 * KILLS)
def test_killed_at_any_moment_again_and_again(files: MountedStore) -> None:
    chosen = random.Random(KILLS)
    files.proxy.shape(total_rate=16 * MIB)
    kills = caches = 0
    while kills < KILLS:
        cache = f"cache{caches}"
        paid: frozenset[tuple[str, int]] = frozenset()
        with ExitStack() as dead:  # each life begins on the dead mount of the one before
            while paid != ALL and kills < KILLS:
                mount = dead.enter_context(files.mount(cache=cache, complaints=True))
                live_and_be_killed(files, mount, paid, chosen)
                now = paid_for(files.directory / cache)
                assert paid <= now
                paid = now
                kills += 1
                print(f"kill {kills}: {len(paid)} of {len(ALL)} stripes are paid for")
            check_the_last(files, cache, paid)
        shutil.rmtree(files.directory / cache)
        caches += 1


@pytest.mark.parametrize(
    ("number", "channel"), [(signal.SIGTERM, True), (signal.SIGTERM, False), (signal.SIGINT, True)]
)
def test_a_signal_ends_it_among_many_readers(
    files: MountedStore, number: signal.Signals, channel: bool
) -> None:
    files.proxy.shape(total_rate=8 * MIB)
    with files.mount(channel=channel) as mount:
        with (
            SteadyReaders(mount.path, NAMES, SIZE, count=4) as readers,
            SteadyReaders(mount.path, NAMES, SIZE, count=2, seed=100, maps=True) as mapping,
            prefetching(mount),
            open(mount.path / NAMES[0], "rb", buffering=0) as held,
        ):
            readers.wait_reading()
            mapping.wait_reading()
            os.kill(mount.pid, number)
            until(lambda: is_gone(mount.pid), timeout=10)
            assert find_mount(str(mount.path)) is None
            assert os.listdir(mount.path) == []
            readers.check()
            mapping.check()
            with suppress(OSError):
                assert CONTENT[NAMES[0]].startswith(held.read())
        with files.mount() as again:
            assert (again.path / NAMES[0]).read_bytes() == CONTENT[NAMES[0]]


def test_detached_while_it_is_read(files: MountedStore) -> None:
    """By umount -l: whoever has a file open reads on, and a new mount has the place."""
    files.proxy.shape(total_rate=8 * MIB)
    with files.mount() as mount:
        with open(mount.path / "file0", "rb", buffering=0) as held:
            assert held.read(100) == CONTENT["file0"][:100]
            subprocess.run(["umount", "-l", str(mount.path)], check=True)
            assert os.listdir(mount.path) == []
            with files.mount() as second:
                assert second.pid != mount.pid
                assert (second.path / "file1").read_bytes() == CONTENT["file1"]
                assert os.pread(held.fileno(), SIZE, 0) == CONTENT["file0"]
                assert not is_gone(mount.pid)
                held.close()
                until(lambda: is_gone(mount.pid), timeout=10)
                # Its end took nothing of the second one along.
                assert second.status()["pid"] == second.pid
                assert (second.path / "file2").read_bytes() == CONTENT["file2"]
        assert find_mount(str(mount.path)) is None


def fusestripe(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fusestripe.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


_HOLD = """
import mmap, os, sys
what, path = sys.argv[1:]
if what == "works in":
    os.chdir(os.path.dirname(path))
else:
    file = open(path, "rb")
    if what == "maps":
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        file.close()
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("warm", [False, True])
def test_a_busy_mount_stays_and_names_all_who_keep_it(files: MountedStore, warm: bool) -> None:
    """Whether the daemon reads the file or the kernel does (passthrough)."""
    with files.mount() as mount, ExitStack() as stack:
        if warm:
            prefetch(str(mount.path))
            until(lambda: mount.status()["open_files"] == 0)
        holders = []
        for what in ("works in", "opens", "maps"):
            command = [sys.executable, "-I", "-S", "-c", _HOLD, what, str(mount.path / "file0")]
            holder = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(holder.kill)
            assert holder.stdout is not None
            assert holder.stdout.readline() == "holds\n"
            holders.append(holder)
        done = fusestripe("unmount", str(mount.path))
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert " is in use by " in line
        assert line.endswith(": end them first")
        assert all(f"({holder.pid})" in line for holder in holders), line
        assert (mount.path / "file1").read_bytes() == CONTENT["file1"]
        for holder in holders:
            holder.communicate(timeout=20)
        done = fusestripe("unmount", str(mount.path))
        assert (done.returncode, done.stderr) == (0, "")
        assert find_mount(str(mount.path)) is None


class MemoryLimit:
    """A cgroup of its own, of version 1 or 2; a context manager."""

    def __init__(self, name: str) -> None:
        roots = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]
        root = next(root for root in roots if (root / "cgroup.procs").exists())
        self._parent = root
        self._limit = "memory.limit_in_bytes" if root.name == "memory" else "memory.max"
        self._group = root / name
        self._group.mkdir()

    def __enter__(self) -> MemoryLimit:
        return self

    def __exit__(self, *exception: object) -> None:
        until(lambda: not (self._group / "cgroup.procs").read_text())
        self._group.rmdir()

    def limit(self, pid: int, size: int) -> None:
        """The process may have ``size`` bytes more from now on."""
        (self._group / self._limit).write_text(str(size))
        (self._group / "cgroup.procs").write_text(str(pid))


def may_limit_memory() -> bool:
    for directory, wanted in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path("/sys/fs/cgroup", directory, f"fusestripe-look-{os.getpid()}")
        with suppress(OSError):
            group.mkdir()
            found = (group / wanted).exists()
            group.rmdir()
            if found:
                return True
    return False


@pytest.mark.skipif(not may_limit_memory(), reason="takes a cgroup with a limit of memory, as root makes one")
def test_killed_for_want_of_memory(files: MountedStore) -> None:
    """By the kernel itself. The mount is dead, and `mount` cleans and uses it."""
    with files.mount(complaints=True) as mount:
        with MemoryLimit(f"fusestripe-{os.getpid()}") as memory:
            assert (mount.path / "file0").read_bytes() == CONTENT["file0"]
            until(lambda: paid_for(files.directory / "cache") >= {("file0", index) for index in range(33)})
            memory.limit(mount.pid, 1 * MIB)
            with SteadyReaders(mount.path, NAMES, SIZE, count=3) as readers:
                until(lambda: is_gone(mount.pid))
                readers.check()
        with pytest.raises(OSError, match="not connected"):
            os.listdir(mount.path)
        paid = paid_for(files.directory / "cache")
        source = f"s3://{files.bucket}"
        cache = ("--cache-dir", str(files.directory / "cache"), "--stripe-size", str(STRIPE))
        environment = {**os.environ, **files.proxy.environment}
        command = [sys.executable, "-m", "fusestripe.cli", "mount", source, str(mount.path), *cache]
        files.proxy.reset()
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, env=environment
        )
        assert (done.returncode, done.stderr) == (0, "")
        for name in NAMES:
            assert (mount.path / name).read_bytes() == CONTENT[name]
        assert paid.isdisjoint(asked_for(files))
        assert fusestripe("unmount", str(mount.path)).returncode == 0
