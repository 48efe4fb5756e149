"""What every origin must do, whatever is behind it. An origin's test class inherits ``OriginConformance``."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pytest

from fusestripe.errors import NotFound, OriginError, VersionChanged
from fusestripe.origins.base import Entry, Origin, Superseded, is_path
from fusestripe.units import ObjectVersion

__all__ = ["TEN_THOUSAND", "KeyConformance", "OriginConformance", "Store", "fetch"]

MIB = 1024 * 1024
SIZE = 9 * MIB + 12_345
"""More than two chunks of anybody's streaming, and no multiple of anything."""

ODD_NAMES = [
    "with blank",
    " leading and trailing ",
    "per%cent",
    "encoded%20blank",
    "plus+plus",
    "ha#sh",
    "question?mark",
    "amp&equals=",
    "unicode-ñ-日本-😀",
    "quotes'\"",
    "<angle>",
    "~tilde*star",
    "{braces}[brackets]",
    "new\nline",
    "tab\tand\x01control",
    ".hidden",
    "...",
    "-dash",
    "L" * 255,
    "semi;colon:comma,@",
    "e\u0301",
    "\u00e9",
]

TEN_THOUSAND = {f"many/file-{number:05}": b"x" * (number % 5) for number in range(10_000)}


class Store(Protocol):
    """The far side of an origin, written to by another way than the origin itself."""

    def put(self, path: str, data: bytes) -> None:
        """Create or replace the file at ``path``, and its directories."""
        ...

    def put_many(self, items: Mapping[str, bytes]) -> None:
        """Many small files."""
        ...

    def make_directory(self, path: str) -> None:
        """An empty directory, in the way this store has one."""
        ...

    def delete(self, path: str) -> None:
        """Delete the file at ``path``."""
        ...


def fetch(
    origin: Origin,
    version: ObjectVersion,
    offset: int = 0,
    length: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> bytes:
    """The bytes of a range of ``version``."""
    buffer = bytearray(version.size - offset if length is None else length)
    origin.read_range(version, offset, memoryview(buffer), progress)
    return bytes(buffer)


def listing(origin: Origin, path: str) -> dict[str, Entry]:
    """The directory at ``path``; a name that comes twice fails the test."""
    found = [entry for page in origin.list_dir(path) for entry in page]
    names = {entry.name: entry for entry in found}
    assert len(names) == len(found)
    return names


def recursive(origin: Origin, path: str = "") -> dict[str, Entry]:
    """What ``walk`` says of ``path``, found by listing: files, and directories that hold nothing."""
    result: dict[str, Entry] = {}
    for name, entry in listing(origin, path).items():
        inner = f"{path}/{name}" if path else name
        below = recursive(origin, inner) if entry.is_dir else {}
        result.update({f"{name}/{rest}": one for rest, one in below.items()} or {name: entry})
    return result


def pinned(origin: Origin, path: str) -> ObjectVersion:
    return origin.version(path, origin.stat(path))


class OriginConformance:
    """``origin`` is a fixture with the origin under test, empty at first; ``store`` its far side."""

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError

    @pytest.fixture
    def origin(self, store: Store) -> Origin:
        raise NotImplementedError

    # What is there

    def test_stat_of_a_file(self, store: Store, origin: Origin) -> None:
        store.put("dir/file.bin", b"hello")
        entry = origin.stat("dir/file.bin")
        assert (entry.name, entry.is_dir, entry.size) == ("file.bin", False, 5)
        assert entry.tag
        assert abs(entry.mtime_ns / 1e9 - time.time()) < 3600

    def test_stat_of_directories(self, store: Store, origin: Origin) -> None:
        store.put("one/two/file", b"x")
        for path, name in (("one", "one"), ("one/two", "two"), ("", "")):
            entry = origin.stat(path)
            assert (entry.name, entry.is_dir, entry.tag) == (name, True, "")

    def test_a_root_that_is_there_passes_the_check(self, store: Store, origin: Origin) -> None:
        store.put("file", b"x")
        origin.check()

    def test_listing_and_stat_agree(self, store: Store, origin: Origin) -> None:
        for path in ("a", "b/c", "b/d/e", "z"):
            store.put(path, path.encode())
        assert set(listing(origin, "")) == {"a", "b", "z"}
        for directory in ("", "b", "b/d"):
            for name, entry in listing(origin, directory).items():
                assert origin.stat(f"{directory}/{name}" if directory else name) == entry

    def test_an_empty_directory(self, store: Store, origin: Origin) -> None:
        store.make_directory("hollow")
        assert origin.stat("hollow").is_dir
        assert listing(origin, "hollow") == {}
        assert listing(origin, "")["hollow"].is_dir

    def test_an_empty_file(self, store: Store, origin: Origin) -> None:
        store.put("nothing", b"")
        version = pinned(origin, "nothing")
        assert version.size == 0
        assert fetch(origin, version) == b""

    def test_what_is_missing(self, store: Store, origin: Origin) -> None:
        store.put("dir/file", b"x")
        for path in ("nope", "dir/nope", "nope/nope", "dir/file/below", "di", "dir/fil", "dir/file2"):
            with pytest.raises(NotFound):
                origin.stat(path)
            with pytest.raises(NotFound):
                list(origin.list_dir(path))

    def test_a_file_is_no_directory(self, store: Store, origin: Origin) -> None:
        store.put("file", b"x")
        with pytest.raises(NotFound):
            list(origin.list_dir("file"))

    @pytest.mark.parametrize(
        "path", ["..", ".", "dir/..", "dir/../dir", "dir//file", "dir/", "/dir", "a\0b", "L" * 256, "\udcff"]
    )
    def test_a_path_that_cannot_be(self, store: Store, origin: Origin, path: str) -> None:
        store.put("dir/file", b"x")
        with pytest.raises(NotFound):
            origin.stat(path)
        with pytest.raises(NotFound):
            list(origin.list_dir(path))

    @pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
    def test_odd_names(self, store: Store, origin: Origin, name: str) -> None:
        store.put(f"{name}/{name}", name.encode())
        assert set(listing(origin, "")) == {name}
        entry = listing(origin, name)[name]
        assert origin.stat(f"{name}/{name}") == entry
        assert fetch(origin, origin.version(f"{name}/{name}", entry)) == name.encode()

    def test_ten_thousand_files_come_in_pages(self, store: Store, origin: Origin) -> None:
        store.put_many(TEN_THOUSAND)
        self.pages_of_ten_thousand(origin)

    @staticmethod
    def pages_of_ten_thousand(origin: Origin) -> None:
        pages = list(origin.list_dir("many"))
        assert len(pages) >= 10
        assert max(map(len, pages)) <= 2000
        sizes = {entry.name: entry.size for page in pages for entry in page}
        assert sizes == {path.removeprefix("many/"): len(data) for path, data in TEN_THOUSAND.items()}
        assert sum(map(len, pages)) == 10_000

    def test_walk_is_the_recursive_listing(self, store: Store, origin: Origin) -> None:
        paths = ["a", "b/c", "b/c!", "b/d/e", "b/d/f g", "b-1", "new\nline/x", "é/ü"]
        store.put_many({path: path.encode() for path in paths if is_path(path) and "\n" not in path})
        store.put("new\nline/x", b"")
        store.make_directory("hollow")
        store.make_directory("b/hollow")
        for top in ("", "b", "b/d"):
            walked = [item for page in origin.walk(top) for item in page]
            assert dict(walked) == recursive(origin, top)
            assert len(dict(walked)) == len(walked)
        with pytest.raises(NotFound):
            list(origin.walk("nope"))

    # Versions

    def test_a_version_stays_the_same_while_the_file_does(self, store: Store, origin: Origin) -> None:
        store.put("file", b"one")
        first = pinned(origin, "file")
        assert pinned(origin, "file") == first
        assert origin.version("file", listing(origin, "")["file"]) == first
        assert first.path.endswith("file")
        assert first.size == 3
        store.put("file", b"two")
        assert pinned(origin, "file").key != first.key

    def test_replaced_while_open(self, store: Store, origin: Origin) -> None:
        store.put("file", b"a" * MIB)
        version = pinned(origin, "file")
        store.put("file", b"b" * MIB)
        self.refuses(origin, version)
        assert fetch(origin, pinned(origin, "file")) == b"b" * MIB

    def test_shorter_while_open(self, store: Store, origin: Origin) -> None:
        store.put("file", b"a" * MIB)
        version = pinned(origin, "file")
        store.put("file", b"a" * 100)
        self.refuses(origin, version)
        self.refuses(origin, version, offset=MIB // 2, length=1000)

    def test_deleted_while_open(self, store: Store, origin: Origin) -> None:
        store.put("file", b"a" * MIB)
        version = pinned(origin, "file")
        store.delete("file")
        self.refuses(origin, version)
        with pytest.raises(NotFound):
            origin.stat("file")

    @staticmethod
    def refuses(origin: Origin, version: ObjectVersion, offset: int = 0, length: int | None = None) -> None:
        reported: list[int] = []
        with pytest.raises(VersionChanged) as caught:
            fetch(origin, version, offset, length, reported.append)
        assert not reported, "bytes of another version were passed on"
        assert "\n" not in str(caught.value)

    # Ranges

    def test_ranges_at_every_edge(self, store: Store, origin: Origin) -> None:
        data = random.Random(1).randbytes(SIZE)
        store.put("big", data)
        version = pinned(origin, "big")
        stripe = 4 * MIB
        ranges = [
            (0, SIZE),
            (0, 1),
            (0, stripe),
            (stripe, stripe),
            (stripe - 1, 2),
            (2 * stripe, SIZE - 2 * stripe),
            (SIZE - 1, 1),
            (SIZE - 100, 100),
            (1, SIZE - 1),
            (12_345, 3 * MIB + 7),
        ]
        for offset, length in ranges:
            assert fetch(origin, version, offset, length) == data[offset : offset + length]

    def test_a_range_of_no_bytes(self, store: Store, origin: Origin) -> None:
        store.put("file", b"hello")
        version = pinned(origin, "file")
        for offset in (0, 3, 5):
            assert fetch(origin, version, offset, 0) == b""

    def test_progress_only_tells_of_bytes_in_place(self, store: Store, origin: Origin) -> None:
        data = random.Random(2).randbytes(SIZE)
        store.put("big", data)
        buffer = memoryview(bytearray(SIZE - 10))
        reported = [0]

        def progress(count: int) -> None:
            assert count > reported[-1]
            assert buffer[reported[-1] : count] == data[10 + reported[-1] : 10 + count]
            reported.append(count)

        origin.read_range(pinned(origin, "big"), 10, buffer, progress)
        assert reported[-1] == SIZE - 10
        assert len(reported) > 3, "a reader would wait for the whole range"

    def test_a_request_that_is_superseded_ends_and_leaves_nothing_behind(
        self, store: Store, origin: Origin
    ) -> None:
        data = random.Random(4).randbytes(SIZE)
        store.put("file", data)
        version = origin.version("file", origin.stat("file"))
        into = bytearray(SIZE)

        def superseded(_arrived: int) -> None:
            raise Superseded

        for _ in range(3):
            with pytest.raises(Superseded):
                origin.read_range(version, 0, memoryview(into), superseded)
        # What was left of that answer meets no other.
        assert fetch(origin, version, 1000, SIZE - 1000) == data[1000:]

    def test_many_threads_at_once(self, store: Store, origin: Origin) -> None:
        data = random.Random(3).randbytes(SIZE)
        store.put("big", data)
        version = pinned(origin, "big")
        offsets = [random.Random(4).randrange(SIZE - 1000) for _ in range(64)]
        with ThreadPoolExecutor(16) as pool:
            parts = list(pool.map(lambda offset: fetch(origin, version, offset, 1000), offsets))
        assert parts == [data[offset : offset + 1000] for offset in offsets]

    def test_every_error_is_an_origin_error_of_one_line(self, store: Store, origin: Origin) -> None:
        store.put("new\nline", b"x")
        version = pinned(origin, "new\nline")
        store.delete("new\nline")
        with pytest.raises(OriginError) as caught:
            fetch(origin, version)
        assert "\n" not in str(caught.value)
        with pytest.raises(OriginError) as missing:
            origin.stat("new\nline")
        assert "\n" not in str(missing.value)


class KeyConformance(OriginConformance):
    """For stores of keys, where "a" and "a/b" can both be."""

    def test_a_file_and_a_directory_of_one_name_is_a_directory(self, store: Store, origin: Origin) -> None:
        for path in ("both", "both!", "both/inside", "both-1"):
            store.put(path, path.encode())
        assert {name: entry.is_dir for name, entry in listing(origin, "").items()} == {
            "both": True,
            "both!": False,
            "both-1": False,
        }
        assert origin.stat("both").is_dir
        assert fetch(origin, pinned(origin, "both/inside")) == b"both/inside"
        assert "both" not in {path for page in origin.walk("") for path, _ in page}
