"""Objects that change while they are read: one version or ESTALE, never a mixture, and then the new one."""

from __future__ import annotations

import errno
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from fusestripe.origins.key_listing import ListedObject, ListPage
from tests.faults.test_origin_access import opened
from tests.faults.test_origin_faults import timed_error
from tests.mount.test_passthrough import wait_whole
from tests.mount.test_versions import exists, mapped
from tests.support.mounted import Mounted, until
from tests.support.mounted_store import KIB, MountedStore, content
from tests.support.proxy import Fault, Proxy
from tests.support.s3_pages import as_xml
from tests.support.seaweed import SeaweedServer

STRIPE = 64 * KIB
STRIPES = 16
SIZE = STRIPES * STRIPE
TTL = 1.0
SOON = 5.0
"""Seconds for an answer that waits for no time-out."""

OLD = content(SIZE, 1)
NEW: dict[str, bytes | None] = {
    "same size": content(SIZE, 2),
    "shorter": content(SIZE // 2 - 77, 3),
    "longer": content(SIZE + STRIPE + 1, 4),
    "empty": b"",
    "deleted": None,
}
WHEN = {"before the first stripe": 0, "in the middle": STRIPES // 2, "at the last": STRIPES - 1}


def change(store: MountedStore, key: str, new: bytes | None) -> None:
    """Replace the object, or delete it."""
    if new is None:
        store.delete(key)
    else:
        store.put(key, new)


def shows(path: Path, new: bytes | None) -> bool:
    """Whether ``path`` is ``new``, read and mapped; otherwise it has to be the old one, all of it."""
    try:
        seen: bytes | None = path.read_bytes()
    except FileNotFoundError:
        seen = None
    assert seen in (OLD, new)
    return seen == new and (not new or mapped(path) == new)


def read_through(descriptor: int) -> tuple[bytes, int]:
    """All bytes up to the end or to an error, and its errno (0: none)."""
    data = b""
    try:
        while piece := os.pread(descriptor, STRIPE, len(data)):
            data += piece
    except OSError as error:
        return data, error.errno or -1
    return data, 0


@pytest.fixture(scope="module")
def changing(
    s3_server: SeaweedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[MountedStore, Mounted]]:
    """A mount that believes a listing for a long time, with a file for each way and moment."""
    with s3_server.bucket("changes") as bucket, Proxy(s3_server.endpoint) as proxy:
        store = MountedStore(s3_server, bucket, proxy, tmp_path_factory.mktemp("changes"))
        for moment in WHEN:
            for way in NEW:
                store.put(f"{moment}, {way}", OLD)
        with store.mount(complaints=True, stripe_count=2, ttl=600, negative_ttl=600) as mount:
            yield store, mount


@pytest.mark.parametrize("way", NEW)
@pytest.mark.parametrize("moment", WHEN)
def test_changed_while_it_is_read(changing: tuple[MountedStore, Mounted], moment: str, way: str) -> None:
    """The origin is throttled from one stripe on while the object changes; then it has another version."""
    store, mount = changing
    name, new = f"{moment}, {way}", NEW[way]
    path = mount.path / name
    key = name.replace(" ", "%20").replace(",", "(,|%2C)")
    later = "|".join(str(index * STRIPE) for index in range(WHEN[moment], STRIPES))
    before = len(mount.complaints())
    assert path.stat().st_size == SIZE
    store.proxy.reset()
    store.proxy.set_faults([Fault("status:503:SlowDown", rf"GET .*/{key} bytes=({later})-", times=0)])
    with opened(path) as descriptor, ThreadPoolExecutor(1) as thread:
        reading = thread.submit(read_through, descriptor)
        first = f"bytes={WHEN[moment] * STRIPE}-"
        until(lambda: any(one.range.startswith(first) for one in store.requests("GET")))
        assert not reading.done()
        change(store, name, new)
        store.proxy.set_faults([])
        data, number = reading.result(SOON)
        assert number == errno.ESTALE
        assert data == OLD[: WHEN[moment] * STRIPE]
        # What it has got, it keeps; what it has not, it never gets.
        if data:
            assert os.pread(descriptor, STRIPE, 0) == OLD[:STRIPE]
        assert timed_error(lambda: os.pread(descriptor, STRIPE, SIZE - STRIPE))[0] == errno.ESTALE
        # The listing's time is not over by far.
        assert shows(path, new)
        assert exists(path) == (new is not None)
    lines = mount.complaints()[before:]
    assert lines
    said = rf" ERROR .*/{re.escape(name)}\?endpoint=[^ ]*: stripe \d+: .*(changed|deleted)"
    assert [line for line in lines if not re.search(said, line)] == []
    assert len(lines) <= 3
    assert len(store.requests("GET")) <= 3 * STRIPES
    assert len(store.requests("LIST")) <= 4


@pytest.mark.parametrize("passthrough", ["yes", "no"])
def test_changed_between_two_opens(store: MountedStore, passthrough: str) -> None:
    """Whole in the cache and in the kernel's pages, read by whomever: the new one within the TTL.

    Handles and maps of the old version stay with it, all of it.
    """
    for way in NEW:
        store.put(way, OLD)
    with store.mount(ttl=TTL, negative_ttl=TTL, passthrough=passthrough) as mount, ExitStack() as held:
        paths = {way: mount.path / way for way in NEW}
        for path in paths.values():
            assert path.read_bytes() == OLD
        wait_whole(mount, len(NEW))
        files = {way: held.enter_context(open(path, "rb")) for way, path in paths.items()}
        views = {
            way: held.enter_context(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            for way, file in files.items()
        }
        assert mount.status()["passed_through"] == (len(NEW) if passthrough == "yes" else 0)
        for way, view in views.items():
            assert view[:] == OLD, way
        for way, new in NEW.items():
            change(store, way, new)
        began = time.monotonic()
        for way, new in NEW.items():
            until(partial(shows, paths[way], new))
        assert time.monotonic() - began < TTL + SOON
        for way, file in files.items():
            assert views[way][:] == OLD, way
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(file.fileno(), SIZE + 1, 0) == OLD, way
        held.close()
        for way, new in NEW.items():
            assert shows(paths[way], new)


def test_changed_before_an_open_that_does_not_know(store: MountedStore) -> None:
    """Opened by a listing that is still believed: old bytes from the cache, ESTALE, and then the new ones."""
    new = NEW["same size"]
    store.put("file", OLD)
    with store.mount(complaints=True, stripe_count=1, ttl=600) as mount:
        path = mount.path / "file"
        with opened(path) as descriptor:
            assert os.pread(descriptor, 4096, 0) == OLD[:4096]
        until(lambda: mount.status()["open_files"] == 0)
        change(store, "file", new)
        with opened(path) as descriptor:
            data, number = read_through(descriptor)
            assert number == errno.ESTALE
            assert data
            assert data == OLD[: len(data)]
        assert path.read_bytes() == new
        assert all("has changed" in line for line in mount.complaints())


_MAPS = """
import mmap, sys
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
    view.madvise(mmap.MADV_RANDOM)
    sys.stdout.buffer.write(view[:100])
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.buffer.write(view[int(sys.argv[2]):][:100])
"""


@pytest.mark.parametrize("way", ["same size", "shorter", "deleted"])
def test_changed_under_a_map(store: MountedStore, way: str) -> None:
    """A page of the old version that cannot be had any more is SIGBUS (mmap(2)): no other byte, no zero."""
    store.put("file", OLD)
    far = SIZE - STRIPE
    with store.mount(complaints=True, stripe_count=1) as mount:
        path = mount.path / "file"
        command = [sys.executable, "-I", "-S", "-c", _MAPS, str(path), str(far)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.read(100) == OLD[:100]
            change(store, "file", NEW[way])
            data, _ = process.communicate(b"\n", timeout=20)
        assert data == b""
        assert process.returncode == -signal.SIGBUS
        assert shows(path, NEW[way])
        assert all(re.search("changed|deleted", line) for line in mount.complaints())


# Listings that lag behind.


def listing_of(store: MountedStore) -> str:
    """The listing of the bucket as it is now, for the proxy to go on with."""
    found = store.server.client.list_objects_v2(Bucket=store.bucket).get("Contents", [])
    listed = [ListedObject(one["Key"], one["Size"], 1_700_000_000 * 10**9, one["ETag"]) for one in found]
    return as_xml(ListPage(listed, [], None))


@pytest.mark.parametrize("way", NEW)
def test_a_listing_that_lags(store: MountedStore, way: str) -> None:
    """The object is another than listings say: ESTALE and no storm of requests, until they say it too."""
    store.put("file", OLD)
    store.put("other", b"other")
    with store.mount(complaints=True, ttl=TTL, negative_ttl=TTL) as mount:
        path = mount.path / "file"
        store.proxy.set_faults([Fault("status:200", "^LIST", times=0, body=listing_of(store))])
        change(store, "file", NEW[way])
        store.proxy.reset()
        began = time.monotonic()
        for _ in range(20):
            number, seconds = timed_error(path.read_bytes)
            assert number == errno.ESTALE
            assert seconds < SOON
        rounds = 1 + (time.monotonic() - began) / 1.0
        assert len(store.requests("GET")) <= 20 * rounds
        assert len(store.requests("LIST")) <= 100
        assert (mount.path / "other").read_bytes() == b"other"
        store.proxy.set_faults([])
        until(lambda: is_now(path, NEW[way]))
        assert all(re.search(r"/file\?.*(changed|deleted)", line) for line in mount.complaints())


def is_now(path: Path, new: bytes | None) -> bool:
    """Whether ``path`` is ``new``; ESTALE is no answer yet."""
    try:
        return shows(path, new)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return False


def test_a_listing_that_does_not_show_a_new_object_yet(store: MountedStore) -> None:
    store.put("other", b"other")
    with store.mount(ttl=TTL, negative_ttl=TTL) as mount:
        path = mount.path / "file"
        store.proxy.set_faults([Fault("status:200", "^LIST", times=0, body=listing_of(store))])
        store.put("file", OLD)
        store.proxy.reset()
        for _ in range(20):
            with pytest.raises(FileNotFoundError):
                path.read_bytes()
        assert store.proxy.statistics().requests <= 10
        store.proxy.set_faults([])
        began = time.monotonic()
        until(lambda: exists(path))
        assert time.monotonic() - began < TTL + SOON
        assert path.read_bytes() == OLD
