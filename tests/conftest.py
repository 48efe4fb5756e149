"""Fixtures that several kinds of test share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.origins.conformance import TEN_THOUSAND
from tests.support.azure_server import AzureServer
from tests.support.google_server import GoogleServer
from tests.support.hadoop.cluster import HdfsCluster
from tests.support.hadoop.store import HdfsDirectory
from tests.support.mounted_store import MountedStore
from tests.support.proxy import Proxy
from tests.support.seaweed import SeaweedServer
from tests.support.web_server import WebServer

# How long one example takes says something of the machine, and of who else uses it, alone.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")

_bucket_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    """One real S3 server for the whole run. Each test takes a bucket of its own (``s3_bucket``)."""
    with SeaweedServer(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture
def s3_bucket(s3_server: SeaweedServer) -> Iterator[str]:
    """A new empty bucket."""
    with s3_server.bucket(f"bucket-{next(_bucket_numbers)}") as name:
        yield name


@pytest.fixture
def s3_proxy(s3_server: SeaweedServer) -> Iterator[Proxy]:
    """A proxy before the S3 server: counts, shapes and breaks what passes through it."""
    with Proxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def store(s3_server: SeaweedServer, s3_bucket: str, s3_proxy: Proxy, tmp_path: Path) -> MountedStore:
    """A new bucket that can be mounted, with every request counted."""
    return MountedStore(s3_server, s3_bucket, s3_proxy, tmp_path)


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """One Azurite for the whole run. Each test takes a container of its own (``azure_container``)."""
    with AzureServer(tmp_path_factory.mktemp("azure")) as server:
        yield server


@pytest.fixture
def azure_container(azure_server: AzureServer) -> Iterator[str]:
    """A new empty container."""
    with azure_server.container(f"container-{next(_bucket_numbers)}") as name:
        yield name


@pytest.fixture(scope="session")
def web_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    """One nginx for the whole run. Each test takes a directory of its own below its root."""
    with WebServer(tmp_path_factory.mktemp("web") / "server") as server:
        yield server


@pytest.fixture(scope="session")
def google_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoogleServer]:
    """One fake-gcs-server for the whole run. Each test takes a bucket of its own (``google_bucket``)."""
    with GoogleServer(tmp_path_factory.mktemp("google")) as server:
        yield server


@pytest.fixture
def google_bucket(google_server: GoogleServer) -> Iterator[str]:
    """A new empty bucket."""
    with google_server.bucket(f"bucket-{next(_bucket_numbers)}") as name:
        yield name


@pytest.fixture(scope="session")
def hdfs_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """One HDFS for the whole run: a NameNode, three DataNodes, blocks of 1 MiB. Nobody breaks it for good."""
    with HdfsCluster(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


@pytest.fixture
def hdfs_directory(hdfs_cluster: HdfsCluster) -> Iterator[HdfsDirectory]:
    """A new empty directory of the cluster."""
    directory = HdfsDirectory(hdfs_cluster, f"/test-{next(_bucket_numbers)}")
    yield directory
    hdfs_cluster.shell("delete", directory.root)


@pytest.fixture(scope="session")
def hdfs_ten_thousand(hdfs_cluster: HdfsCluster) -> HdfsDirectory:
    """A directory with TEN_THOUSAND in it, for tests that read: half a minute of Hadoop's to write."""
    directory = HdfsDirectory(hdfs_cluster, "/ten-thousand")
    directory.put_many(TEN_THOUSAND)
    return directory
