"""HDFS whose nodes fail in the middle of a read: right bytes go on, from another replica or NameNode."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.hadoop.cluster import MIB, HdfsCluster
from tests.support.mounted import mounted
from tests.support.mounted_store import content

SIZE = 48 * MIB + 12_345
CONTENT = content(SIZE, 1)
PART = MIB
BOUND = 30.0
"""Seconds within which a read must have failed: nothing hangs."""
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


def replicas(cluster: HdfsCluster, path: str) -> list[int]:
    """How many DataNodes have told of each block, or of a unit of each group."""
    return [len(line.split()) for line in cluster.shell("hosts", path).splitlines()]


def test_erasure_coded_with_two_datanodes_gone(cluster: HdfsCluster, tmp_path: Path) -> None:
    """RS-3-2: any three of five units give the bytes."""
    assert "RS-3-2" in cluster.shell("ec", "-getPolicy", "-path", "/coded/file")

    # Groups of 3 MiB lie on all DataNodes, the short one on three.
    cluster.wait_for(lambda: replicas(cluster, "/coded/file") == [5] * 16 + [3])

    def kill() -> None:
        cluster.datanodes[2].kill()
        cluster.datanodes[3].kill()

    try:
        assert read_with_a_fault(cluster, "/coded/file", tmp_path, kill) == MD5
    finally:
        revive(cluster, 2, 3)


def rot(files: Iterable[Path]) -> None:
    """One byte of each is another."""
    for path in files:
        with open(path, "r+b") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("rotten", [2, 5], ids=["some replicas", "every replica"])
def test_blocks_that_rot_on_their_datanodes(cluster: HdfsCluster, tmp_path: Path, rotten: int) -> None:
    """Another replica is taken; where there is none, reads fail. Never a wrong byte."""
    path = f"/rotten-{rotten}/file"
    cluster.shell.put(path, CONTENT)
    cluster.wait_for(lambda: replicas(cluster, path) == [3] * 49)
    for number in range(rotten):
        rot(cluster.block_files(number, path))
    with mounted(
        f"{cluster.url}/rotten-{rotten}",
        tmp_path / "mnt",
        cache_dir=tmp_path / "cache",
        environment=cluster.environment,
        complaints=True,
        stripe_size="1MiB",
        timeout=3,
    ) as mount:
        if rotten < 5:
            assert hashlib.md5((mount.path / "file").read_bytes()).hexdigest() == MD5
            return
        with open(mount.path / "file", "rb", buffering=0) as file:
            start = time.monotonic()
            with pytest.raises(OSError, match=r"Errno 5\b"):
                os.pread(file.fileno(), PART, 0)
            assert time.monotonic() - start < BOUND
        assert any("no DataNode gives its bytes" in line for line in mount.complaints())


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
