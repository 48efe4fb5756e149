"""HDFS with a DataNode that is slow but not silent: it is left for another replica. Needs root."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hadoop.cluster import MIB, HdfsCluster
from tests.support.mounted import mounted
from tests.support.mounted_store import content
from tests.support.network import Hosts

DATANODES = 3
FAST, SLOW = 100e6, 1e6
"""Bytes a second that a DataNode sends at most."""
SIZE = 96 * MIB + 12_345
SHARE = SIZE / DATANODES / SLOW
"""Seconds that the slow one would need for its share, alone."""


class Limited:
    """A cluster whose DataNodes have hosts of their own. All are fast at the start of a test."""

    def __init__(self, hosts: Hosts, cluster: HdfsCluster) -> None:
        self.hosts = hosts
        self.cluster = cluster

    def seconds(self, path: str, place: Path, *, stripe: str) -> float:
        """How long ``path`` takes to be read from its first byte to its last, cold; its bytes are checked."""
        directory, _, name = path.rpartition("/")
        place.mkdir()
        with mounted(
            self.cluster.url + directory,
            place / "mnt",
            cache_dir=place / "cache",
            environment=self.cluster.environment,
            stripe_size=stripe,
        ) as mount:
            start = time.monotonic()
            digest = hashlib.md5((mount.path / name).read_bytes()).hexdigest()
            seconds = time.monotonic() - start
            origin = mount.status()["origin"]
        assert digest == hashlib.md5(content(SIZE, 1)).hexdigest()
        assert origin["errors"] == 0
        assert origin["hedged"] < 0.05 * SIZE
        return seconds


@pytest.fixture(scope="module", params=[1, 16], ids=["blocks of 1 MiB", "blocks of 16 MiB"])
def limited(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    """/data/file lies on every DataNode."""
    with (
        Hosts(DATANODES) as hosts,
        HdfsCluster(
            tmp_path_factory.mktemp("slow"),
            datanodes=DATANODES,
            block_size=request.param * MIB,
            addresses=hosts.addresses,
            prefixes=[hosts.prefix(number) for number in range(DATANODES)],
            namenode_address=hosts.gateway,
        ) as cluster,
    ):
        cluster.shell.put("/data/file", content(SIZE, 1), replication=DATANODES)
        yield Limited(hosts, cluster)


@pytest.mark.parametrize("stripe", ["1MiB", "8MiB"])
def test_a_datanode_that_is_slow(limited: Limited, tmp_path: Path, stripe: str) -> None:
    limited.hosts.limit(FAST)
    without = limited.seconds("/data/file", tmp_path / "without", stripe=stripe)
    limited.hosts.limit(SLOW, host=1)
    with_it = limited.seconds("/data/file", tmp_path / "with", stripe=stripe)
    print(f"without {without:.2f} s, with {with_it:.2f} s: {with_it / without:.1f}; alone {SHARE:.0f} s")
    assert with_it < SHARE / 3
