"""An object replaced or deleted: an open handle keeps its version or fails, a new open gets the new one."""

from __future__ import annotations

import errno
import mmap
import os
import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.mounted import until
from tests.support.mounted_store import KIB, MIB, MountedStore, content, drop_pages

SIZE = 4 * MIB
OLD = content(SIZE, 1)
NEW = content(SIZE, 2)
FAR = 3 * MIB
STRIPE = 64 * KIB


def mapped(path: Path) -> bytes:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        return view[:]


def exists(path: Path) -> bool:
    """Asked anew: os.path.exists takes any error for a no."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def test_replaced_while_open(store: MountedStore) -> None:
    store.put("file", OLD)
    with store.mount(complaints=True) as mount:
        path = mount.path / "file"
        descriptor = os.open(path, os.O_RDONLY)
        try:
            assert os.pread(descriptor, 4096, MIB) == OLD[MIB : MIB + 4096]
            store.put("file", NEW)
            # What it has got stays: old bytes. What it has not cannot be had any more.
            assert os.pread(descriptor, 4096, MIB) == OLD[MIB : MIB + 4096]
            with pytest.raises(OSError, match=re.escape(os.strerror(errno.ESTALE))) as caught:
                os.pread(descriptor, 4096, FAR)
            assert caught.value.errno == errno.ESTALE
            # The lifetime of the listing is not over, and yet the next open has the new version.
            assert path.read_bytes() == NEW
            assert mapped(path) == NEW
            # The old handle has not moved on to it.
            assert os.pread(descriptor, 4096, MIB) == OLD[MIB : MIB + 4096]
            with pytest.raises(OSError, match=re.escape(os.strerror(errno.ESTALE))):
                os.pread(descriptor, 4096, FAR)
        finally:
            os.close(descriptor)
        assert path.read_bytes() == NEW
        assert mount.complaints()
        for line in mount.complaints():
            assert re.search(r"/file\b.*: stripe \d+: .*(chang|replaced|version)", line), line


def test_the_very_next_open_after_an_estale_is_of_the_new_version(store: MountedStore) -> None:
    """However soon it comes, before the kernel has dropped the old name: by O_DIRECT it asks once only."""
    store.put("file", content(STRIPE))
    flags = os.O_RDONLY | os.O_DIRECT
    with store.mount(complaints=True) as mount, mmap.mmap(-1, STRIPE) as memory, ExitStack() as handles:
        path = mount.path / "file"
        old = handles.enter_context(open(os.open(path, flags), "rb", buffering=0))
        for number in range(1, 60):
            store.put("file", content(STRIPE, number))
            with pytest.raises(OSError, match=re.escape(os.strerror(errno.ESTALE))):
                old.readinto(memory)
            new = handles.enter_context(open(os.open(path, flags), "rb", buffering=0))
            assert os.fstat(new.fileno()).st_ino != os.fstat(old.fileno()).st_ino, number
            old = new
        assert old.readinto(memory) == STRIPE
        assert memory[:] == content(STRIPE, number)
        handles.close()
        assert all("has changed" in line for line in mount.complaints())


def test_deleted_while_open(store: MountedStore) -> None:
    store.put("file", OLD)
    with store.mount(complaints=True) as mount:
        path = mount.path / "file"
        descriptor = os.open(path, os.O_RDONLY)
        try:
            assert os.pread(descriptor, 4096, MIB) == OLD[MIB : MIB + 4096]
            store.delete("file")
            with pytest.raises(OSError, match=re.escape(os.strerror(errno.ESTALE))) as caught:
                os.pread(descriptor, 4096, FAR)
            assert caught.value.errno == errno.ESTALE
            with pytest.raises(FileNotFoundError):
                path.read_bytes()
            until(lambda: not exists(path))  # its attributes, once the kernel has dropped the name
        finally:
            os.close(descriptor)
        assert all("/file" in line for line in mount.complaints())


@pytest.mark.parametrize("new", [NEW, NEW[: SIZE // 2], NEW + NEW[:77]], ids=["same", "shorter", "longer"])
def test_replaced_between_opens(store: MountedStore, new: bytes) -> None:
    store.put("file", OLD)
    with store.mount(ttl=0.2, negative_ttl=0.2) as mount:
        path = mount.path / "file"
        assert path.read_bytes() == OLD
        assert mapped(path) == OLD
        store.put("file", new)

        def is_new() -> bool:
            seen = path.read_bytes()
            assert seen in (OLD, new)
            return seen == new

        until(is_new)
        assert mapped(path) == new
        assert os.stat(path).st_size == len(new)


def test_a_map_of_the_old_version_stays_whole(store: MountedStore) -> None:
    store.put("file", OLD)
    with store.mount(ttl=0.2, negative_ttl=0.2) as mount:
        path = mount.path / "file"
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            assert view[:] == OLD
            store.put("file", NEW)
            until(lambda: path.read_bytes() == NEW)
            assert view[:] == OLD
            drop_pages(path)
        assert mapped(path) == NEW


def test_deleted_between_opens(store: MountedStore) -> None:
    store.put("file", OLD[: 64 * KIB])
    store.put("other", b"other")
    with store.mount(ttl=0.2, negative_ttl=0.2) as mount:
        path = mount.path / "file"
        assert path.read_bytes() == OLD[: 64 * KIB]
        store.delete("file")
        until(lambda: not exists(path))
        with pytest.raises(FileNotFoundError):
            path.read_bytes()
        assert os.listdir(mount.path) == ["other"]


def test_a_file_becomes_a_directory(store: MountedStore) -> None:
    store.put("name", b"file")
    store.put("other", b"other")
    with store.mount(ttl=0.2, negative_ttl=0.2) as mount:
        path = mount.path / "name"
        assert path.read_bytes() == b"file"
        store.delete("name")
        store.put("name/inside", b"inside")
        until(path.is_dir)
        assert (path / "inside").read_bytes() == b"inside"
        store.delete("name/inside")
        until(lambda: not exists(path / "inside"))
