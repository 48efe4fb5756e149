"""HDFS through Hadoop's JVM client: the JVM runs inside this process, once for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fusestripe.errors import NotFound, OriginError
from fusestripe.origins.base import Origin, may_hide
from fusestripe.origins.registry import open_origin
from tests.origins.conformance import ODD_NAMES, OriginConformance, Store, fetch, listing, pinned
from tests.support.hadoop.cluster import HdfsCluster
from tests.support.hadoop.jars import jars
from tests.support.hadoop.libhdfs import libhdfs_environment
from tests.support.hadoop.store import HdfsDirectory

# HDFS has no name with a colon (DFSUtilClient.isValidName), libhdfs none beyond the BMP.
NAMES = [name for name in ODD_NAMES if ":" not in name and max(name) <= "\uffff"]


@pytest.fixture(scope="module")
def jvm(hdfs_cluster: HdfsCluster) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in libhdfs_environment(jars(), hdfs_cluster.conf).items():
            patch.setenv(name, value)
        yield


def origin_of(directory: HdfsDirectory) -> Origin:
    return open_origin(directory.url.replace("hdfs://", "hdfs+libhdfs://"))


@pytest.fixture
def origin(jvm: None, hdfs_directory: HdfsDirectory) -> Origin:
    return origin_of(hdfs_directory)


class TestConformance(OriginConformance):
    @pytest.fixture
    def store(self, hdfs_directory: HdfsDirectory) -> Store:
        return hdfs_directory

    @pytest.fixture
    def origin(self, origin: Origin) -> Origin:
        return origin

    @pytest.mark.parametrize("name", NAMES, ids=ascii)
    def test_odd_names(self, store: Store, origin: Origin, name: str) -> None:
        super().test_odd_names(store, origin, name)

    @pytest.mark.usefixtures("jvm")
    def test_ten_thousand_files_come_in_pages(  # type: ignore[override]
        self, hdfs_ten_thousand: HdfsDirectory
    ) -> None:
        self.pages_of_ten_thousand(origin_of(hdfs_ten_thousand))


def test_a_file_replaced_within_a_second_is_another_version(
    hdfs_directory: HdfsDirectory, origin: Origin
) -> None:
    """libhdfs tells whole seconds: a file is not told of while another could come with the same time."""
    for number in range(3):
        data = b"%04d" % number * 1000
        hdfs_directory.put("file", data)
        version = pinned(origin, "file")
        hdfs_directory.put("file", b"other" * 800)
        assert pinned(origin, "file") != version
        OriginConformance.refuses(origin, version)
    assert fetch(origin, pinned(origin, "file")) == b"other" * 800


def test_a_name_that_libhdfs_cannot_have_hides_only_itself(
    hdfs_directory: HdfsDirectory, origin: Origin
) -> None:
    hdfs_directory.put("grin \U0001f600", b"x")
    hdfs_directory.put("other", b"x")
    assert set(listing(origin, "")) == {"other"}
    with pytest.raises(NotFound):
        origin.stat("grin \U0001f600")


def test_no_such_cluster(jvm: None) -> None:
    with pytest.raises(OriginError) as caught:
        open_origin("hdfs+libhdfs://127.0.0.1:1/path").check()
    assert "\n" not in str(caught.value)


def test_a_snapshot(hdfs_directory: HdfsDirectory, origin: Origin) -> None:
    hdfs_directory.put("dir/file", b"before")
    hdfs_directory.shell("dfsadmin", "-allowSnapshot", hdfs_directory.path("dir"))
    hdfs_directory.shell("dfs", "-createSnapshot", hdfs_directory.path("dir"), "s")
    hdfs_directory.put("dir/file", b"after")
    assert fetch(origin, pinned(origin, "dir/.snapshot/s/file")) == b"before"
    assert ".snapshot" not in listing(origin, "dir")
    assert may_hide(origin, ".snapshot")
    hdfs_directory.shell("dfs", "-deleteSnapshot", hdfs_directory.path("dir"), "s")
