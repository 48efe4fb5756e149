"""Reading a file to its end, by several ways. All give seconds; all check that they got every byte."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
from obstore.store import S3Store

from fusestripe.units import MIB

__all__ = [
    "dd",
    "dd_at_once",
    "drop_page_cache",
    "fetch_striped",
    "fetch_whole",
    "first_bytes",
    "first_bytes_bare",
    "map_through",
    "open_and_read",
    "read_regions",
    "start_dd",
    "touch_every_page",
]

# Of one read: the buffer of dd and of our own loops. The kernel splits it to requests of the mount.
BLOCK = 4 * MIB
_COPIED = re.compile(r"^(\d+) bytes", re.MULTILINE)
_DROP = "/proc/sys/vm/drop_caches"


def dd(path: Path, size: int) -> float:
    """Seconds that dd(1) takes for the ``size`` bytes of the file."""
    return dd_at_once(path, size, 1)


def start_dd(path: Path) -> subprocess.Popen[str]:
    """A dd(1) that reads the file to its end."""
    return subprocess.Popen(
        ["dd", f"if={path}", "of=/dev/null", f"bs={BLOCK}"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )


def dd_at_once(path: Path, size: int, readers: int) -> float:
    """Seconds until ``readers`` processes, dd(1) each, have all read the ``size`` bytes of the file."""
    processes: list[subprocess.Popen[str]] = []
    start = time.perf_counter()
    try:
        for _ in range(readers):
            processes.append(start_dd(path))
        said = [process.communicate()[1] for process in processes]
    finally:
        for process in processes:
            process.kill()  # nothing where it has ended
            process.wait()
    seconds = time.perf_counter() - start
    for process, text in zip(processes, said, strict=True):
        copied = _COPIED.search(text)
        if process.returncode != 0 or copied is None:
            raise RuntimeError(f"dd failed: {text}")
        _expect(int(copied[1]), size, path.name)
    return seconds


def map_through(path: Path, size: int) -> float:
    """Seconds to map the file and copy its ``size`` bytes out of the map, as a loader of tensors does."""
    buffer = memoryview(bytearray(BLOCK))
    start = time.perf_counter()
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        memoryview(mapped) as view,
    ):
        got = len(view)
        for offset in range(0, got, BLOCK):
            with view[offset : offset + BLOCK] as piece:
                buffer[: len(piece)] = piece
    seconds = time.perf_counter() - start
    _expect(got, size, path.name)
    return seconds


def read_regions(path: Path, size: int, threads: int) -> float:
    """Seconds until ``threads`` have read the file by one descriptor, each a region of its own in order."""
    region = -(-size // threads)

    def read(start: int) -> int:
        buffer = bytearray(BLOCK)
        end = min(size, start + region)
        position = start
        while position < end:
            with memoryview(buffer) as view, view[: min(BLOCK, end - position)] as piece:
                count = os.preadv(descriptor, [piece], position)
            if not count:
                break
            position += count
        return position - start

    start = time.perf_counter()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with ThreadPoolExecutor(threads) as pool:
            got = sum(pool.map(read, range(0, size, region)))
    finally:
        os.close(descriptor)
    seconds = time.perf_counter() - start
    _expect(got, size, path.name)
    return seconds


def fetch_striped(store: S3Store, key: str, size: int, *, stripe: int, in_flight: int) -> float:
    """Seconds that a bare client takes with ``in_flight`` ranges of ``stripe`` bytes at once, in threads."""

    def fetch(start: int) -> int:
        return len(obstore.get_range(store, key, start=start, length=min(stripe, size - start)))

    start = time.perf_counter()
    with ThreadPoolExecutor(in_flight) as pool:
        got = sum(pool.map(fetch, range(0, size, stripe)))
    seconds = time.perf_counter() - start
    _expect(got, size, key)
    return seconds


def fetch_whole(store: S3Store, key: str, size: int) -> float:
    """Seconds that one plain stream takes for the first ``size`` bytes."""
    start = time.perf_counter()
    stream = obstore.get(store, key, options={"range": (0, size)}).stream(min_chunk_size=MIB)
    got = sum(len(chunk) for chunk in stream)
    seconds = time.perf_counter() - start
    _expect(got, size, key)
    return seconds


def first_bytes(path: Path, count: int) -> float:
    """Seconds to the first ``count`` bytes of the file once it is open."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        start = time.perf_counter()
        data = os.pread(descriptor, count, 0)
        seconds = time.perf_counter() - start
    finally:
        os.close(descriptor)
    _expect(len(data), count, path.name)
    return seconds


def open_and_read(path: Path, offset: int) -> float:
    """Seconds to open the file and read the byte at ``offset``."""
    start = time.perf_counter()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        data = os.pread(descriptor, 1, offset)
        seconds = time.perf_counter() - start
    finally:
        os.close(descriptor)
    _expect(len(data), 1, path.name)
    return seconds


def first_bytes_bare(store: S3Store, key: str, count: int) -> float:
    """Seconds to the first ``count`` bytes of the object by a bare request: one round trip."""
    start = time.perf_counter()
    data = obstore.get_range(store, key, start=0, length=count)
    seconds = time.perf_counter() - start
    _expect(len(data), count, key)
    return seconds


def touch_every_page(directory: Path) -> None:
    """Read all files below ``directory``, so that the kernel has them in its page cache."""
    buffer = bytearray(4 * MIB)
    for path in directory.rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def drop_page_cache() -> bool:
    """Empty the machine's page cache (proc_sys_vm(5)); False where that is not permitted."""
    os.sync()
    try:
        with open(_DROP, "w", encoding="ascii") as file:
            file.write("3")
    except OSError:
        return False
    return True


def _expect(got: int, wanted: int, name: str) -> None:
    if got != wanted:
        raise RuntimeError(f"{name}: {got} bytes came, not {wanted}")
