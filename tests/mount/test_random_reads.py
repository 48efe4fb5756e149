"""Random reads with checking, as fsx does it for files that are written: every byte against what was stored.

FUSESTRIPE_READS=20000 makes so many reads a thread.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from fusestripe.kernel.rights import has_sys_admin
from tests.support.mounted import Mounted, until
from tests.support.mounted_store import KIB, MIB, MountedStore, content, drop_pages

READS = int(os.environ.get("FUSESTRIPE_READS", "120"))
THREADS = 4
PAGE = 4 * KIB
REQUEST = 128 * KIB
"""The most that the kernel asks for at once unless read-ahead is raised."""


class Way(msgspec.Struct, frozen=True):
    """One way from a reader to the bytes."""

    stripe_size: int
    channel: bool = True
    passthrough: bool = False

    def __str__(self) -> str:
        by = "kernel" if self.passthrough else "channel" if self.channel else "pyfuse3"
        return f"{by}-{self.stripe_size // KIB}KiB"


WAYS = (
    Way(64 * KIB, passthrough=True),
    Way(4 * KIB),
    Way(256 * KIB),
    Way(68 * KIB),  # stripes that end in the middle of the kernel's requests
    Way(64 * KIB, channel=False),
)
SIZES = (1, PAGE, 2 * REQUEST - 1, MIB + 68 * KIB, 1_300_007)
FILES = {f"file-{size}": content(size, size) for size in SIZES}


class Reads:
    """Random reads of the files below ``top``: every thread has handles of its own, and shares others."""

    def __init__(self, top: Path, edges: tuple[int, ...]) -> None:
        self._top = top
        self._edges = edges

    def run(self, seed: int) -> None:
        """Some threads at once; the first wrong byte is an AssertionError."""
        with ExitStack() as stack, ThreadPoolExecutor(THREADS) as pool:
            shared = {name: stack.enter_context(_opened(self._top / name)) for name in FILES}
            for done in [pool.submit(self._thread, seed * THREADS + n, shared) for n in range(THREADS)]:
                done.result()

    def _thread(self, seed: int, shared: dict[str, int]) -> None:
        chosen = random.Random(seed)
        with ExitStack() as stack:
            own = {name: stack.enter_context(_opened(self._top / name)) for name in FILES}
            for number in range(READS):
                name = chosen.choice(sorted(FILES))
                data = FILES[name]
                offset, length = self._span(chosen, len(data))
                how = chosen.choice((_pread, _preadv, _mapped, _reopened, _direct))
                got = how(chosen.choice((own, shared))[name], offset, length, self._top / name)
                assert got == data[offset : offset + length], (
                    f"read {number} of seed {seed}: {how.__name__} of {name}, {length} bytes at {offset}"
                )

    def _span(self, chosen: random.Random, size: int) -> tuple[int, int]:
        """An offset and a length: anywhere, or from or to just beside an edge."""
        edge = chosen.choice(self._edges)
        beside = chosen.randrange(size // edge + 2) * edge
        start = chosen.choice((chosen.randrange(size + 1), beside, size)) + chosen.randint(-2, 2)
        length = chosen.choice((1, 2, 511, PAGE, edge, edge + 1, REQUEST, 2 * REQUEST, chosen.randrange(MIB)))
        if chosen.random() < 0.3:  # one that ends there
            start -= length
        return max(0, start), length


@contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _pread(descriptor: int, offset: int, length: int, path: Path) -> bytes:
    return os.pread(descriptor, length, offset)


def _preadv(descriptor: int, offset: int, length: int, path: Path) -> bytes:
    buffers = [bytearray(length // 3), bytearray(0), bytearray(length - length // 3)]
    count = os.preadv(descriptor, buffers, offset)
    return b"".join(buffers)[:count]


def _mapped(descriptor: int, offset: int, length: int, path: Path) -> bytes:
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as view:
        return view[offset : offset + length]


def _reopened(descriptor: int, offset: int, length: int, path: Path) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(length)


def _direct(descriptor: int, offset: int, length: int, path: Path) -> bytes:
    """By O_DIRECT, as the cache's own filesystem wants it: whole pages."""
    begin = offset // PAGE * PAGE
    end = -(-(offset + length) // PAGE) * PAGE
    with _opened(path, os.O_DIRECT) as direct, mmap.mmap(-1, end - begin) as memory:
        count = os.preadv(direct, [memory], begin)
        return memory[:count][offset - begin :][:length]


def _wait_closed(mount: Mounted) -> None:
    until(lambda: mount.status()["open_files"] == 0)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_byte_is_right(store: MountedStore, way: Way) -> None:
    """Cold, from the cache, and by another daemon from the cache, which asks the origin for nothing."""
    if way.passthrough and not has_sys_admin():
        pytest.skip("passthrough takes CAP_SYS_ADMIN")
    for name, data in FILES.items():
        store.put(name, data)
    settings = msgspec.structs.asdict(way)
    # Half of the largest files fit: stripes come and go.
    with store.mount(memory=MIB + 512 * KIB, **settings) as mount:
        reads = Reads(mount.path, (PAGE, REQUEST, way.stripe_size))
        reads.run(0)
        _wait_closed(mount)
        for name, data in FILES.items():
            assert (mount.path / name).read_bytes() == data
            _wait_closed(mount)
            drop_pages(mount.path / name)
        _wait_closed(mount)
        reads.run(1)
        _wait_closed(mount)
        assert mount.status()["served"]["origin"] >= sum(SIZES)
    with store.mount(memory=MIB + 512 * KIB, **settings) as mount:
        Reads(mount.path, (PAGE, REQUEST, way.stripe_size)).run(2)
        assert store.requests("GET") == []


FIO = ("fio", "--name=checked", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--minimal")
FIO_SIZE = 2 * MIB
PASSES = (
    ("--rw=read", "--ioengine=psync"),
    ("--rw=randread", "--ioengine=psync", "--numjobs=3"),
    ("--rw=randread", "--ioengine=mmap"),
    ("--rw=randread", "--ioengine=libaio", "--direct=1", "--iodepth=8"),
)


def _fio(path: Path, *options: str) -> int:
    done = subprocess.run(
        [*FIO, f"--filename={path}", f"--size={FIO_SIZE}", *options], capture_output=True, timeout=60
    )
    return done.returncode


@pytest.fixture
def fio_file(tmp_path: Path) -> Callable[[int], Path]:
    """Makes files of blocks of a size, each of which begins with fio's checksum of it."""
    assert shutil.which("fio"), "fio is missing: apt install fio"

    def make(block: int) -> Path:
        path = tmp_path / f"blocks-{block}"
        assert _fio(path, f"--bs={block}", "--rw=write", "--do_verify=0") == 0
        return path

    return make


@pytest.mark.parametrize("passthrough", [False, True], ids=["by the daemon", "by the kernel"])
def test_fio_verifies_its_files(
    store: MountedStore, fio_file: Callable[[int], Path], passthrough: bool
) -> None:
    if passthrough and not has_sys_admin():
        pytest.skip("passthrough takes CAP_SYS_ADMIN")
    for block in (PAGE, 64 * KIB):
        store.put(f"blocks-{block}", fio_file(block).read_bytes())
    with store.mount(passthrough=passthrough) as mount:
        for block in (PAGE, 64 * KIB):
            path = mount.path / f"blocks-{block}"
            for way in (PASSES[0], *PASSES):  # the first finds nothing in the cache
                assert _fio(path, f"--bs={block}", "--readonly", *way) == 0, way
                drop_pages(path)
            _wait_closed(mount)
            with _opened(path):
                assert mount.status()["passed_through"] == int(passthrough)


def test_fio_finds_a_byte_that_is_wrong(store: MountedStore, fio_file: Callable[[int], Path]) -> None:
    """So that the test above shows something."""
    data = bytearray(fio_file(PAGE).read_bytes())
    data[FIO_SIZE // 2 + 1000] ^= 1
    store.put("bad", bytes(data))
    with store.mount() as mount:
        for way in PASSES:
            assert _fio(mount.path / "bad", f"--bs={PAGE}", "--readonly", *way) != 0, way
