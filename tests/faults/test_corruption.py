"""Whatever becomes of a cache's files: it reaches no reader, is fetched again, and is counted."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import FileIO
from pathlib import Path

import msgspec
import pytest
import xxhash
from click.testing import CliRunner

from fusestripe.cache.catalogue import CacheCatalogue
from fusestripe.cache.ledger import decode_header
from fusestripe.cli import cli
from tests.support.mounted import Mounted, mounted, until
from tests.support.mounted_store import KIB, MIB, content, drop_pages
from tests.support.small_disk import SmallDisk

CASES = int(os.environ.get("FUSESTRIPE_CASES", "30"))
"""How much is damaged in each test that tries everything; the long form is 1000."""
STRIPE = 16 * KIB
SIZE = 5 * STRIPE + 777
NAMES = [f"file{number}" for number in range(6)]
CONTENT = {name: content(SIZE, number) for number, name in enumerate(NAMES)}
SEAL = "user.fusestripe.checked"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for name, data in CONTENT.items():
        (source / name).write_bytes(data)
    return source


class Files:
    """The two files of an object in a cache directory."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.ledger = data.with_suffix(".ledger")

    def is_wrong(self, name: str) -> bool:
        """Whether the data file is there and is not what the object holds."""
        return self.data.exists() and self.data.read_bytes() != CONTENT[name]


def files_of(cache: Path) -> dict[str, Files]:
    """The files of each name."""
    found = {}
    for ledger in cache.rglob("*.ledger"):
        header = decode_header(ledger.read_bytes())
        assert header is not None
        found[Path(header.version.path).name] = Files(ledger.with_suffix(".data"))
    return found


# What can become of a file: each changes ``path``; ``other`` is the same file of another object.


def flip(path: Path, other: Path, chosen: random.Random) -> None:
    with path.open("r+b") as file:
        at = chosen.randrange(path.stat().st_size)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ chosen.randrange(1, 256)]))


def flip_with_care(path: Path, other: Path, chosen: random.Random) -> None:
    """As `cp -p` or `rsync -t` leave it: of the same mtime."""
    before = path.stat()
    flip(path, other, chosen)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def zero(path: Path, other: Path, chosen: random.Random) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        at = chosen.randrange(size)
        file.seek(at)
        file.write(bytes(chosen.randrange(1, size - at + 1)))


def punch(path: Path, other: Path, chosen: random.Random) -> None:
    length = str(4096 * chosen.randrange(1, 5))
    subprocess.run(["fallocate", "--punch-hole", "--length", length, str(path)], check=True)


def cut(path: Path, other: Path, chosen: random.Random) -> None:
    os.truncate(path, chosen.randrange(path.stat().st_size))


def cut_and_grow(path: Path, other: Path, chosen: random.Random) -> None:
    size = path.stat().st_size
    os.truncate(path, chosen.randrange(size))
    os.truncate(path, size)


def grow(path: Path, other: Path, chosen: random.Random) -> None:
    with path.open("ab") as file:
        file.write(chosen.randbytes(chosen.randrange(1, 5000)))


def fill_with_anothers(path: Path, other: Path, chosen: random.Random) -> None:
    path.write_bytes(other.read_bytes())


def exchange(path: Path, other: Path, chosen: random.Random) -> None:
    between = path.with_suffix(".between")
    path.rename(between)
    other.rename(path)
    between.rename(other)


def copy_over(path: Path, other: Path, chosen: random.Random) -> None:
    """A file of its own with another's bytes, times and attributes."""
    path.unlink()
    shutil.copy2(other, path)


def remove(path: Path, other: Path, chosen: random.Random) -> None:
    path.unlink()


Change = Callable[[Path, Path, random.Random], None]
CHANGES: list[Change] = [
    flip,
    flip_with_care,
    zero,
    punch,
    cut,
    cut_and_grow,
    grow,
    fill_with_anothers,
    exchange,
    copy_over,
    remove,
]


class Tree:
    """A mount. Reads come past the kernel's pages, and are right."""

    def __init__(self, mount: Mounted, cache: Path) -> None:
        self.mount = mount
        self.cache_dir = cache

    def read(self, name: str, why: object = "") -> None:
        path = self.mount.path / name
        drop_pages(path)
        assert path.read_bytes() == CONTENT[name], why

    def keep(self, name: str) -> None:
        """Have the file in the cache, whole, checked and trusted: the kernel may read it itself."""

        def is_kept() -> bool:
            self.read(name)
            with open(self.mount.path / name, "rb"):
                (found,) = self.mount.status()["files"]
                return bool(found["passthrough"] if os.geteuid() == 0 else found["present"] == SIZE)

        def is_closed() -> bool:
            return not self.mount.status()["files"]

        until(is_closed)
        until(is_kept)
        until(is_closed)

    def seal(self) -> dict[str, Files]:
        """Have every file trusted by later mounts; their files."""
        for name in NAMES:
            self.keep(name)
        found = files_of(self.cache_dir)

        def is_sealed(name: str) -> bool:
            self.read(name)  # it is sealed when it is closed, if it was not just written
            return SEAL in os.listxattr(found[name].ledger)

        for name in NAMES:
            until(partial(is_sealed, name))
        return found

    def cleared(self) -> bool:
        """Have nothing in the cache; False while something is in use."""
        CliRunner().invoke(cli, ["cache", "clear", "--cache-dir", str(self.cache_dir)])
        return not list(self.cache_dir.rglob("*.data"))

    def counted(self) -> int:
        cache = self.mount.status()["cache"]
        return int(cache["corrupt_stripes"]) + int(cache["begun_anew"])

    def fetched(self) -> int:
        return int(self.mount.status()["served"]["origin"])


@contextmanager
def tree(source: Path, tmp_path: Path, cache: Path | None = None, memory: int = 64 * MIB) -> Iterator[Tree]:
    cache = cache or tmp_path / "cache"
    with mounted(
        source.as_uri(),
        tmp_path / "mnt",
        cache_dir=cache,
        complaints=True,
        stripe_size=STRIPE,
        cache_size=32 * MIB,
        cache_reserve=0,
        memory=memory,
    ) as mount:
        yield Tree(mount, cache)
        assert mount.status()["reads"]["errors"] == 0
        assert [line for line in mount.complaints() if "cache" not in line] == []


class Case(msgspec.Struct, frozen=True):
    """What was done to the files of ``name`` that end in ``suffixes``; those of ``other`` may be hit too."""

    name: str
    other: str
    change: str
    suffixes: tuple[str, ...]

    @classmethod
    def happens(cls, found: dict[str, Files], names: Sequence[str], chosen: random.Random) -> Case:
        """Any change, to the two objects ``names``."""
        change = chosen.choice(CHANGES)
        suffixes = chosen.choice((("data",), ("data",), ("ledger",), ("data", "ledger")))
        name, other = names
        for suffix in suffixes:
            change(getattr(found[name], suffix), getattr(found[other], suffix), chosen)
        return cls(name, other, change.__name__, suffixes)


def test_before_a_file_is_opened(source: Path, tmp_path: Path) -> None:
    chosen = random.Random(1)
    with tree(source, tmp_path) as it:
        for number in range(CASES):
            for name in NAMES:
                it.keep(name)
            counted, fetched = it.counted(), it.fetched()
            found = files_of(it.cache_dir)
            case = Case.happens(found, chosen.sample(NAMES, 2), chosen)
            wrong = [name for name in (case.name, case.other) if found[name].is_wrong(name)]
            for name in (case.name, case.other):
                it.read(name, (number, case))
            if case.suffixes == ("data",):  # a ledger may have lost what it vouched for
                assert it.counted() - counted >= len(wrong), (number, case)
            if case.change in ("flip", "flip_with_care") and case.suffixes == ("data",):
                assert it.fetched() - fetched in (STRIPE, 777), (number, case)  # that stripe alone


def test_of_a_file_that_is_open(source: Path, tmp_path: Path) -> None:
    """Opened before it was whole, so that the daemon reads it; it keeps few stripes in its memory."""
    chosen = random.Random(2)
    counted = 0
    with tree(source, tmp_path, memory=MIB) as it:
        for number in range(CASES):
            until(it.cleared)
            with (
                open(it.mount.path / NAMES[0], "rb", buffering=0) as one,
                open(it.mount.path / NAMES[1], "rb", buffering=0) as two,
            ):
                held = {NAMES[0]: one, NAMES[1]: two}

                def both_are_kept(held: dict[str, FileIO] = held) -> bool:
                    for name, file in held.items():
                        drop_pages(it.mount.path / name)
                        assert os.pread(file.fileno(), SIZE, 0) == CONTENT[name]
                    present = [int(file["present"]) for file in it.mount.status()["files"]]
                    return present == [SIZE, SIZE]

                until(both_are_kept)
                assert it.mount.status()["passed_through"] == 0
                before = it.counted()
                found = files_of(it.cache_dir)
                change = chosen.choice(CHANGES)
                suffix = chosen.choice(("data", "ledger"))
                change(getattr(found[NAMES[0]], suffix), getattr(found[NAMES[1]], suffix), chosen)
                for _ in range(2):
                    for name, file in held.items():
                        drop_pages(it.mount.path / name)
                        at = chosen.randrange(SIZE)
                        case = (number, change.__name__, suffix, name, at)
                        assert os.pread(file.fileno(), 5000, at) == CONTENT[name][at : at + 5000], case
                        drop_pages(it.mount.path / name)
                        assert os.pread(file.fileno(), SIZE, 0) == CONTENT[name], case
                counted += it.counted() - before
    assert counted > CASES // 4


def test_between_two_daemons(source: Path, tmp_path: Path) -> None:
    chosen = random.Random(3)
    cases: list[Case] = []
    wrong = 0
    for _ in range(max(4, CASES // 10)):
        with tree(source, tmp_path) as it:
            for name in NAMES:
                it.read(name, cases)
            assert it.counted() >= wrong, cases
            found = it.seal()
        names = chosen.sample(NAMES, len(NAMES))
        cases = [Case.happens(found, pair, chosen) for pair in zip(names[::2], names[1::2], strict=True)]
        vouched = {name for case in cases if case.suffixes == ("data",) for name in (case.name, case.other)}
        wrong = sum(found[name].is_wrong(name) for name in vouched)


def older(ledger: Path) -> None:
    """A ledger of the format before, whole and with its checksum, whose records say what ours do."""
    content = bytearray(ledger.read_bytes())
    magic, number, length = struct.unpack_from("<8sII", content)
    struct.pack_into("<8sII", content, 0, magic, number - 1, length)
    end = 16 + length
    struct.pack_into("<Q", content, end, xxhash.xxh3_64_intdigest(bytes(content[:end])))
    ledger.write_bytes(content)


@pytest.mark.parametrize("words", ['{"format": 0}', "{", "[]", None])
def test_a_cache_of_an_older_format(source: Path, tmp_path: Path, words: str | None) -> None:
    """Nothing of its ledgers is believed, though they are whole, and the cache is begun anew."""
    with tree(source, tmp_path) as it:
        for name in NAMES:
            it.keep(name)
    for files in files_of(tmp_path / "cache").values():
        older(files.ledger)
        with files.data.open("r+b") as data:
            data.write(b"of another layout")
    form = tmp_path / "cache" / "format.json"
    form.unlink() if words is None else form.write_text(words)
    with tree(source, tmp_path) as it:
        for name in NAMES:
            it.read(name)
        assert it.counted() >= len(NAMES)
        assert it.fetched() == len(NAMES) * SIZE
        assert json.loads(form.read_text()) == {"format": 1}
        for name in NAMES:
            it.keep(name)


def rot(disk: SmallDisk, cached: Path) -> None:
    """One bit of the file becomes another on the disk itself: nobody wrote, and no timestamp changed."""
    where = f"/{cached.relative_to(disk.path)}"
    disk.unmount()
    command = ["debugfs", "-R", f'bmap "{where}" 1', str(disk.image)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    block = int(done.stdout)
    with open(disk.image, "r+b") as image:
        image.seek(block * 4096 + 100)
        byte = image.read(1)[0]
        image.seek(block * 4096 + 100)
        image.write(bytes([byte ^ 1]))
    disk.mount()


@pytest.mark.parametrize("is_sealed", [False, True])
def test_rot_that_no_timestamp_tells_of(source: Path, tmp_path: Path, is_sealed: bool) -> None:
    """Noticed in all that was not checked yet; what was checked is trusted, until `cache verify` looks."""
    disk = SmallDisk(tmp_path / "disk")
    try:
        with tree(source, tmp_path, disk.path / "cache") as it:
            files = it.seal()["file0"]
        cached, ledger = files.data, files.ledger
        if not is_sealed:
            os.removexattr(ledger, SEAL)  # as if its daemon had been killed, or the machine gone down
        rot(disk, cached)
        assert Files(cached).is_wrong("file0")
        if is_sealed:
            done = CliRunner().invoke(cli, ["cache", "verify", "--cache-dir", str(disk.path / "cache")])
            assert done.exit_code != 0
            with CacheCatalogue(disk.path / "cache") as catalogue:
                present = sum(entry.present_bytes for entry in catalogue.entries())
                assert present == len(NAMES) * SIZE - STRIPE
        with tree(source, tmp_path, disk.path / "cache") as it:
            it.read("file0")
            assert it.counted() == (0 if is_sealed else 1)
            assert it.fetched() == STRIPE
    finally:
        disk.close()


def _forged(ledger: Path, chosen: random.Random) -> bytes:
    seal = msgspec.msgpack.decode(os.getxattr(ledger, SEAL))
    at = chosen.randrange(len(seal))
    seal[at] = seal[at] + 1 if isinstance(seal[at], int) else "0" + seal[at][1:]
    return bytes(msgspec.msgpack.encode(seal))


def test_a_seal_that_does_not_fit_is_not_believed(source: Path, tmp_path: Path) -> None:
    """Damaged, of another file, of another boot: the file is read before the kernel gets it."""
    chosen = random.Random(4)
    with tree(source, tmp_path) as it:
        found = it.seal()
    seals = {name: os.getxattr(files.ledger, SEAL) for name, files in found.items()}
    for number, (name, files) in enumerate(found.items()):
        with files.data.open("r+b") as data:  # which the seal does not fit any more in any case
            data.write(b"\0\0\0\0")
        forged = [seals[NAMES[number - 1]], chosen.randbytes(60), b"", _forged(files.ledger, chosen)]
        os.setxattr(files.ledger, SEAL, forged[number % len(forged)])
        assert files.is_wrong(name)
    with tree(source, tmp_path) as it:
        for name in NAMES:
            it.read(name)
        assert it.counted() >= len(NAMES)
