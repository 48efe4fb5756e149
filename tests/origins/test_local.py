"""A directory as an origin."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from fusestripe.errors import (
    ConfigError,
    IsADirectory,
    NotFound,
    OriginError,
    PermissionDenied,
    VersionChanged,
)
from fusestripe.origins.base import Origin, OriginOptions, Owner
from fusestripe.origins.local import LocalOrigin
from fusestripe.origins.registry import open_origin
from tests.origins.conformance import OriginConformance, Store, fetch, listing, pinned

GIB = 1024**3


class Directory:
    """See conformance.Store."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, path: str, data: bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name("fresh")
        fresh.write_bytes(data)
        fresh.replace(target)

    def put_many(self, items: Mapping[str, bytes]) -> None:
        for path, data in items.items():
            self.put(path, data)

    def make_directory(self, path: str) -> None:
        (self.root / path).mkdir(parents=True)

    def delete(self, path: str) -> None:
        (self.root / path).unlink()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.fixture
def local(root: Path) -> Origin:
    return open_origin(f"file://{root}")


class TestConformance(OriginConformance):
    @pytest.fixture
    def store(self, root: Path) -> Store:
        return Directory(root)

    @pytest.fixture
    def origin(self, local: Origin) -> Origin:
        return local


class TestLocal:
    def test_offsets_beyond_four_gib(self, root: Path, local: Origin) -> None:
        with open(root / "sparse", "wb") as file:
            file.truncate(5 * GIB)
            file.seek(5 * GIB - 3)
            file.write(b"end")
            file.seek(4 * GIB - 2)
            file.write(b"edge")
        version = pinned(local, "sparse")
        assert version.size == 5 * GIB
        assert fetch(local, version, 5 * GIB - 5, 5) == b"\0\0end"
        assert fetch(local, version, 4 * GIB - 4, 8) == b"\0\0edge\0\0"

    @pytest.mark.parametrize("later", [0, 1], ids=["and given its old mtime", "later"])
    def test_overwritten_in_place(self, root: Path, local: Origin, later: int) -> None:
        """As `cp -p` and `tar --overwrite` do it."""
        path = root / "file"
        path.write_bytes(b"a" * 100)
        version = pinned(local, "file")
        before = path.stat()
        path.write_bytes(b"b" * 100)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + later))
        while path.stat().st_ctime_ns == before.st_ctime_ns:  # of a kernel whose clock has coarse ticks
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + later))
        with pytest.raises(VersionChanged):
            fetch(local, version)

    def test_changed_in_the_middle_of_a_read(self, root: Path, local: Origin) -> None:
        """What progress has told of is of the version that was opened."""
        size = 4 * 1024 * 1024
        path = root / "file"
        path.write_bytes(b"a" * size)
        version = pinned(local, "file")
        buffer = memoryview(bytearray(size))
        told = 0

        def progress(count: int) -> None:
            nonlocal told
            told = count
            path.write_bytes(b"b" * size)
            os.utime(path, ns=(1, 1))

        with pytest.raises(VersionChanged):
            local.read_range(version, 0, buffer, progress)
        assert 0 < told < size
        assert bytes(buffer[:told]) == b"a" * told

    def test_attributes_are_the_files_own(self, root: Path, local: Origin) -> None:
        (root / "file").write_bytes(b"x")
        os.chmod(root / "file", 0o640)
        os.utime(root / "file", ns=(5, 1_234_567_890_123_456_789))
        entry = local.stat("file")
        assert entry.owner == Owner(0o640, os.getuid(), os.getgid())
        assert entry.mtime_ns == 1_234_567_890_123_456_789

    def test_links_inside_the_root_are_followed(self, root: Path, local: Origin) -> None:
        (root / "step-10").mkdir()
        (root / "step-10" / "model").write_bytes(b"weights")
        (root / "latest").symlink_to("step-10")
        (root / "model").symlink_to("latest/model")
        assert set(listing(local, "")) == {"step-10", "latest", "model"}
        assert listing(local, "latest")["model"].size == 7
        assert fetch(local, pinned(local, "model")) == b"weights"
        assert {path for page in local.walk("") for path, _ in page} == {
            "step-10/model",
            "latest/model",
            "model",
        }

    def test_links_out_of_the_root_are_refused(self, root: Path, local: Origin, tmp_path: Path) -> None:
        (tmp_path / "secret").write_bytes(b"s")
        (tmp_path / "root-too").mkdir()  # its name starts with the root's
        (root / "file").symlink_to(tmp_path / "secret")
        (root / "up").symlink_to("..")
        (root / "neighbour").symlink_to("../root-too")
        (root / "nowhere").symlink_to("nothing")
        (root / "own").write_bytes(b"x")
        assert set(listing(local, "")) == {"own"}
        for path in ("file", "up", "up/secret", "neighbour"):
            with pytest.raises(PermissionDenied):
                local.stat(path)
        with pytest.raises(PermissionDenied):
            list(local.list_dir("up"))
        with pytest.raises(NotFound):
            local.stat("nowhere")

    def test_a_file_replaced_by_a_link_out_is_refused(
        self, root: Path, local: Origin, tmp_path: Path
    ) -> None:
        (root / "file").write_bytes(b"x")
        version = pinned(local, "file")
        (tmp_path / "secret").write_bytes(b"s")
        (root / "file").unlink()
        (root / "file").symlink_to(tmp_path / "secret")
        with pytest.raises(PermissionDenied):
            fetch(local, version)

    def test_links_in_a_circle_end(self, root: Path, local: Origin) -> None:
        (root / "a").mkdir()
        (root / "b").mkdir()
        (root / "a" / "self").symlink_to(".")
        (root / "a" / "top").symlink_to("..")
        (root / "a" / "over").symlink_to("../b")
        (root / "b" / "back").symlink_to("../a")
        (root / "loop").symlink_to("loop")
        (root / "b" / "file").write_bytes(b"x")
        paths = {path for page in local.walk("") for path, entry in page if not entry.is_dir}
        assert paths == {"b/file", "a/over/file"}

    def test_only_files_and_directories_are_shown(self, root: Path, local: Origin) -> None:
        os.mkfifo(root / "pipe")
        Path(os.fsdecode(os.fsencode(root) + b"/not-utf8-\xff")).write_bytes(b"x")
        (root / "file").write_bytes(b"x")
        assert set(listing(local, "")) == {"file"}
        with pytest.raises(NotFound):
            local.stat("pipe")

    def test_a_file_that_became_something_else(self, root: Path, local: Origin) -> None:
        (root / "file").write_bytes(b"x")
        version = pinned(local, "file")
        (root / "file").unlink()
        (root / "file").mkdir()
        with pytest.raises(IsADirectory):
            fetch(local, version)
        (root / "file").rmdir()
        os.mkfifo(root / "file")
        with pytest.raises(VersionChanged):  # and no waiting for a writer
            fetch(local, version)

    def test_check(self, root: Path, local: Origin) -> None:
        local.check()  # an empty directory will do
        (root / "file").write_bytes(b"x")
        is_file = f"is a file: name the directory that it lies in, file://{root}$"
        for name, says in (("file", is_file), ("nope", "does not exist: check the path")):
            with pytest.raises(NotFound, match=says):
                open_origin(f"file://{root}/{name}").check()
        shutil.rmtree(root)
        with pytest.raises(OriginError):
            local.check()

    def test_urls(self, root: Path) -> None:
        (root / "a b%").mkdir()
        origin = open_origin(f"file://{root}/a%20b%25")
        origin.check()
        assert origin.url == f"file://{root}/a%20b%25"
        assert isinstance(origin, LocalOrigin)
        for url in ("file://server/share", "file://", "file:///a%00b"):
            with pytest.raises(ConfigError):
                open_origin(url)
        with pytest.raises(ConfigError):
            open_origin(f"file://{root}", OriginOptions(endpoint="http://x"))
