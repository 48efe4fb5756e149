"""Reading a file to its end, by several ways. All give seconds; all check that they got every byte."""

from __future__ import annotations

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
    "drop_page_cache",
    "fetch_striped",
    "fetch_whole",
    "first_bytes",
    "first_bytes_bare",
    "touch_every_page",
]

# The buffer of dd; the kernel splits it to requests of the mount.
BLOCK = "4M"
_COPIED = re.compile(r"^(\d+) bytes", re.MULTILINE)
_DROP = "/proc/sys/vm/drop_caches"


def dd(path: Path, size: int) -> float:
    """Seconds that dd(1) takes for the ``size`` bytes of the file."""
    start = time.perf_counter()
    done = subprocess.run(
        ["dd", f"if={path}", "of=/dev/null", f"bs={BLOCK}"],
        check=True,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    seconds = time.perf_counter() - start
    copied = _COPIED.search(done.stderr)
    assert copied is not None, done.stderr
    _expect(int(copied[1]), size, path.name)
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
