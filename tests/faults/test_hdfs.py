"""HDFS whose nodes fail in the middle of a read: right bytes go on, from another replica or NameNode."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.hadoop.cluster import MIB, HdfsCluster
from tests.support.mounted import mounted
from tests.support.mounted_store import content

SIZE = 48 * MIB + 12_345
CONTENT = content(SIZE, 1)
PART = MIB
SILENCE = {"dfs.client.socket-timeout": "1000"}
"""A DataNode that says nothing for 1 s is left: what a site may set in its files, here for who reads."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """Five DataNodes, and /coded/file in three units of data and two of parity. Each test revives all."""
    with HdfsCluster(tmp_path_factory.mktemp("hdfs"), datanodes=5) as cluster:
        cluster.shell("make-directory", "/coded")
        cluster.shell("ec", "-enablePolicy", "-policy", "RS-3-2-1024k")
        cluster.shell("ec", "-setPolicy", "-path", "/coded", "-policy", "RS-3-2-1024k")
        cluster.shell.put("/coded/file", CONTENT)
        yield cluster


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """Two NameNodes, the first active."""
    with HdfsCluster(tmp_path_factory.mktemp("pair"), namenodes=2) as cluster:
        yield cluster


def read_with_a_fault(cluster: HdfsCluster, path: str, tmp_path: Path, fault: Callable[[], None]) -> str:
    """The md5 of the file, read through a mount that has few stripes ahead; ``fault`` comes in between."""
    digest = hashlib.md5()
    directory, _, name = path.rpartition("/")
    with mounted(
        cluster.url + directory,
        tmp_path / "mnt",
        cache_dir=tmp_path / "cache",
        environment={"HADOOP_CONF_DIR": str(cluster.client_configuration("impatient", core=SILENCE))},
        complaints=True,
        stripe_size="1MiB",
        stripe_count=4,
        memory="8MiB",
        timeout=60,
    ) as mount:
        descriptor = os.open(mount.path / name, os.O_RDONLY)
        try:
            for offset in range(0, SIZE, PART):
                if offset == 4 * PART:
                    assert mount.status()["origin"]["bytes"] < SIZE * 3 // 4, "the fault would come too late"
                    fault()
                digest.update(os.pread(descriptor, PART, offset))
        finally:
            os.close(descriptor)
        assert mount.status()["reads"]["errors"] == 0
    return digest.hexdigest()


MD5 = hashlib.md5(CONTENT).hexdigest()


def revive(cluster: HdfsCluster, *numbers: int) -> None:
    for number in numbers:
        cluster.datanodes[number].start()
    cluster.wait_for(lambda: cluster.shell("live") == str(len(cluster.datanodes)))


def test_a_datanode_is_killed(cluster: HdfsCluster, tmp_path: Path) -> None:
    cluster.shell.put("/killed/file", CONTENT)
    try:
        assert read_with_a_fault(cluster, "/killed/file", tmp_path, cluster.datanodes[0].kill) == MD5
    finally:
        revive(cluster, 0)


def test_a_datanode_says_nothing(cluster: HdfsCluster, tmp_path: Path) -> None:
    """It takes connections and requests and never answers."""
    cluster.shell.put("/silent/file", CONTENT)
    try:
        assert read_with_a_fault(cluster, "/silent/file", tmp_path, cluster.datanodes[1].pause) == MD5
    finally:
        cluster.datanodes[1].go_on()


def test_erasure_coded_with_two_datanodes_gone(cluster: HdfsCluster, tmp_path: Path) -> None:
    """RS-3-2: any three of five units give the bytes."""
    assert "RS-3-2" in cluster.shell("ec", "-getPolicy", "-path", "/coded/file")

    def lies_everywhere() -> bool:
        """Groups of 3 MiB on all DataNodes, the short one on three, once each has told of its units."""
        units = [len(line.split()) for line in cluster.shell("hosts", "/coded/file").splitlines()]
        return units == [5] * 16 + [3]

    cluster.wait_for(lies_everywhere)

    def kill() -> None:
        cluster.datanodes[2].kill()
        cluster.datanodes[3].kill()

    try:
        assert read_with_a_fault(cluster, "/coded/file", tmp_path, kill) == MD5
    finally:
        revive(cluster, 2, 3)


def test_failover_by_hand(pair: HdfsCluster, tmp_path: Path) -> None:
    pair.shell.put("/handed-over/file", CONTENT)
    try:
        assert read_with_a_fault(pair, "/handed-over/file", tmp_path, lambda: pair.make_active(1)) == MD5
    finally:
        pair.make_active(0)


def test_failover_from_a_namenode_that_was_killed(pair: HdfsCluster, tmp_path: Path) -> None:
    pair.shell.put("/failed-over/file", CONTENT)

    def fail_over() -> None:
        pair.namenodes[0].kill()
        pair.make_active(1)

    try:
        assert read_with_a_fault(pair, "/failed-over/file", tmp_path, fail_over) == MD5
    finally:
        pair.namenodes[0].start()
        pair.make_active(0)
