"""HDFS as an origin: a NameNode and three DataNodes of Hadoop, read through hdfs-native."""

from __future__ import annotations

import random

import pytest

from fusestripe.errors import ConfigError, NotFound, OriginError, OriginUnavailable, VersionChanged
from fusestripe.origins.base import Origin, OriginOptions, Owner
from fusestripe.origins.hdfs import open_hdfs
from fusestripe.origins.registry import open_origin
from tests.origins.conformance import ODD_NAMES, OriginConformance, Store, fetch, listing, pinned
from tests.support.hadoop.cluster import MIB, HdfsCluster
from tests.support.hadoop.store import HdfsDirectory

DATA = random.Random(5).randbytes(9 * MIB + 4321)


@pytest.fixture
def store(hdfs_directory: HdfsDirectory, monkeypatch: pytest.MonkeyPatch) -> HdfsDirectory:
    for name, value in hdfs_directory.cluster.environment.items():
        monkeypatch.setenv(name, value)
    return hdfs_directory


@pytest.fixture
def origin(store: HdfsDirectory) -> Origin:
    return open_origin(store.url)


class TestConformance(OriginConformance):
    @pytest.fixture
    def store(self, store: HdfsDirectory) -> Store:
        return store

    @pytest.fixture
    def origin(self, origin: Origin) -> Origin:
        return origin

    # HDFS has no name with a colon (DFSUtilClient.isValidName).
    @pytest.mark.parametrize("name", [name for name in ODD_NAMES if ":" not in name], ids=ascii)
    def test_odd_names(self, store: Store, origin: Origin, name: str) -> None:
        super().test_odd_names(store, origin, name)

    @pytest.mark.usefixtures("store")
    def test_ten_thousand_files_come_in_pages(  # type: ignore[override]
        self, hdfs_ten_thousand: HdfsDirectory
    ) -> None:
        self.pages_of_ten_thousand(open_origin(hdfs_ten_thousand.url))


# Versions


def test_an_append_is_a_new_version(store: HdfsDirectory, origin: Origin) -> None:
    store.put("file", DATA)
    version = pinned(origin, "file")
    store.shell("begin-append", store.path("file"))
    # Nothing of it is to be seen before it is in the file.
    assert fetch(origin, version, 5, MIB) == DATA[5 : 5 + MIB]
    store.shell("write", store.path("file"), "", b"more")
    store.shell("end", store.path("file"))
    OriginConformance.refuses(origin, version)
    assert fetch(origin, pinned(origin, "file")) == DATA + b"more"


def test_truncated_and_written_again(store: HdfsDirectory, origin: Origin) -> None:
    """The one way in which bytes of a block change: what an open reader gets then is refused."""
    store.put("file", DATA)
    version = pinned(origin, "file")
    assert fetch(origin, version) == DATA
    store.shell("truncate", store.path("file"), str(len(DATA) - MIB))

    def append() -> bool:
        store.shell("begin-append", store.path("file"))
        return True

    store.cluster.wait_for(append)  # the truncated block is being recovered at first
    store.shell("write", store.path("file"), "", b"x" * MIB)
    store.shell("end", store.path("file"))
    assert origin.stat("file").size == len(DATA)
    OriginConformance.refuses(origin, version)


@pytest.mark.parametrize("sync", ["flush", "length"])
def test_a_file_being_written(store: HdfsDirectory, origin: Origin, sync: str) -> None:
    """Its whole blocks are right; the last one, of which the NameNode may tell, is refused till it closes."""
    path = store.path("file")
    store.shell("begin", path, "0")
    store.shell("write", path, sync, DATA[: 2 * MIB + 99])
    entry = origin.stat("file")
    assert entry.size in (2 * MIB, 2 * MIB + 99)
    assert listing(origin, "")["file"] == entry
    version = pinned(origin, "file")
    assert fetch(origin, version, 0, 2 * MIB) == DATA[: 2 * MIB]
    if entry.size > 2 * MIB:
        with pytest.raises(OriginError, match="being written") as caught:
            fetch(origin, version)
        assert not caught.value.transient
    store.shell("write", path, "flush", DATA[2 * MIB + 99 :])
    store.shell("end", path)
    OriginConformance.refuses(origin, version)
    assert fetch(origin, pinned(origin, "file")) == DATA


def test_the_same_bytes_at_another_time_are_another_version(store: HdfsDirectory, origin: Origin) -> None:
    store.put("file", DATA)
    version = pinned(origin, "file")
    store.shell("set-times", store.path("file"), "1234567")
    assert pinned(origin, "file") != version
    assert origin.stat("file").mtime_ns == 1_234_567_000_000
    OriginConformance.refuses(origin, version)


def test_a_snapshot_keeps_its_version(store: HdfsDirectory, origin: Origin) -> None:
    store.put("dir/file", DATA)
    store.shell("dfsadmin", "-allowSnapshot", store.path("dir"))
    store.shell("dfs", "-createSnapshot", store.path("dir"), "before")
    version = pinned(origin, "dir/.snapshot/before/file")
    store.put("dir/file", b"another")
    assert fetch(origin, version) == DATA
    assert set(listing(origin, "dir/.snapshot")) == {"before"}
    assert ".snapshot" not in listing(origin, "dir")
    store.shell("dfs", "-deleteSnapshot", store.path("dir"), "before")
    OriginConformance.refuses(origin, version)


def test_every_way_to_a_file_is_one_version(store: HdfsDirectory, origin: Origin) -> None:
    store.put("a/b/file", b"x")
    inner = open_origin(f"{store.url}/a/b/")
    assert pinned(inner, "file") == pinned(origin, "a/b/file")


# Attributes


def test_owner_group_and_mode(store: HdfsDirectory, origin: Origin) -> None:
    store.put("file", b"x")
    store.make_directory("dir")
    store.shell("dfs", "-chown", "daemon:bin", store.path("file"))
    store.shell("dfs", "-chmod", "640", store.path("file"))
    store.shell("dfs", "-chown", "nobody-here:none-here", store.path("dir"))
    store.shell("dfs", "-chmod", "1750", store.path("dir"))
    file, directory = origin.stat("file"), origin.stat("dir")
    assert file.owner == Owner(0o640, 1, 2)
    assert directory.owner == Owner(0o1750, None, None)
    assert listing(origin, "") == {"file": file, "dir": directory}


def test_no_right(store: HdfsDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("closed/file", b"x")
    store.put("open/file", DATA)
    origin = open_as("somebody", store, monkeypatch)
    version = pinned(origin, "open/file")
    store.shell("dfs", "-chmod", "700", store.path("closed"))
    for ask in (lambda: origin.stat("closed/file"), lambda: list(origin.list_dir("closed"))):
        with pytest.raises(OriginError, match="permission denied") as caught:
            ask()
        assert type(caught.value).__name__ == "PermissionDenied"
        assert "\n" not in str(caught.value)
    store.shell("dfs", "-chmod", "600", store.path("open/file"))
    with pytest.raises(OriginError, match="permission denied"):
        fetch(origin, version)


def open_as(user: str, store: HdfsDirectory, monkeypatch: pytest.MonkeyPatch) -> Origin:
    monkeypatch.setenv("HADOOP_USER_NAME", user)
    return open_origin(store.url)


# URLs and configuration


def test_the_blocks_are_known(store: HdfsDirectory) -> None:
    store.put("file", b"x")
    origin = open_hdfs(store.url, OriginOptions())
    assert origin.spread(pinned(origin, "file")) == store.cluster.block_size == MIB


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("hdfs://user@host/path", "user"),
        ("hdfs://host:port/path", "no host and port"),
        ("hdfs://host:0/path", "no host and port"),
        ("hdfs://host/a//b", "no path"),
        ("hdfs://host/a/../b", "no path"),
        ("viewfs://nowhere/path", "settings"),
    ],
)
def test_urls_that_name_nothing(store: HdfsDirectory, url: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        open_origin(url)
    assert caught.value.mend
    assert "\n" not in str(caught.value)


def test_options_of_object_stores_are_refused() -> None:
    for options in (
        OriginOptions(endpoint="http://x"),
        OriginOptions(region="x"),
        OriginOptions(anonymous=True),
    ):
        with pytest.raises(ConfigError, match="no endpoint"):
            open_hdfs("hdfs://host/path", options)


def test_the_default_cluster(store: HdfsDirectory) -> None:
    store.put("file", b"x")
    origin = open_origin(f"hdfs://{store.root}")
    origin.check()
    assert fetch(origin, pinned(origin, "file")) == b"x"
    # The cluster has a name in a version: the same file by its whole URL is the same version.
    assert pinned(origin, "file") == pinned(open_origin(store.url), "file")


def test_a_root_that_is_missing_or_a_file(store: HdfsDirectory) -> None:
    store.put("file", b"x")
    for path, says in (("nope", "does not exist"), ("file", "is a file: name the directory that it lies in")):
        with pytest.raises(NotFound, match=says) as caught:
            open_origin(f"{store.url}/{path}").check()
        assert "\n" not in str(caught.value)


def test_nobody_there(store: HdfsDirectory) -> None:
    origin = open_origin("hdfs://127.0.0.1:1/path")
    with pytest.raises(OriginUnavailable, match="connection refused") as caught:
        origin.check()
    assert caught.value.mend


def test_viewfs(store: HdfsDirectory, hdfs_cluster: HdfsCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("inner/file", DATA)
    conf = hdfs_cluster.client_configuration(
        "viewfs",
        core={
            "fs.viewfs.mounttable.table.link./view": f"{store.url}/inner",
            "fs.viewfs.mounttable.table.linkFallback": hdfs_cluster.url,
        },
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(conf))
    origin = open_origin("viewfs://table/view")
    origin.check()
    assert fetch(origin, pinned(origin, "file")) == DATA
    assert set(listing(origin, "")) == {"file"}


def test_a_namenode_that_says_nothing(store: HdfsDirectory, hdfs_cluster: HdfsCluster) -> None:
    store.put("file", b"x")
    origin = open_hdfs(store.url, OriginOptions(timeout=1.0))
    version = pinned(origin, "file")
    hdfs_cluster.namenodes[0].pause()
    try:
        for ask in (lambda: origin.stat("file"), lambda: fetch(origin, version)):
            with pytest.raises(OriginUnavailable, match="no answer in 1 s"):
                ask()
    finally:
        hdfs_cluster.namenodes[0].go_on()
    assert fetch(origin, version) == b"x"


def test_safe_mode_reads_on(store: HdfsDirectory, origin: Origin) -> None:
    store.put("file", DATA)
    store.shell("dfsadmin", "-safemode", "enter")
    try:
        assert fetch(origin, pinned(origin, "file")) == DATA
    finally:
        store.shell("dfsadmin", "-safemode", "leave")


def test_a_replaced_file_whose_blocks_are_gone(store: HdfsDirectory, origin: Origin) -> None:
    """What the DataNodes say of a block that is no more does not hide that the file is another."""
    store.put("file", DATA)
    version = pinned(origin, "file")
    assert fetch(origin, version, 0, 10) == DATA[:10]
    store.put("file", DATA)
    with pytest.raises(VersionChanged):
        fetch(origin, version, 4 * MIB, MIB)
