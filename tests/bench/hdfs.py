"""HDFS with three DataNodes, each behind a link of 40 MB/s: one file from all of them at once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hdfs_native import Client

from fusestripe.units import GIB, MIB
from tests.bench.case import Case, Options, Tell, take_turns
from tests.bench.lab import Lab
from tests.bench.peers import Foreground
from tests.bench.reading import dd
from tests.bench.result import Figure, Result, faster
from tests.support.hadoop.cluster import HdfsCluster
from tests.support.mounted import mounted
from tests.support.network import Hosts
from tests.support.seaweed import find_program

__all__ = ["HDFS"]

DATANODES = 3
RATE = 40e6  # bytes/s of a DataNode
FILE = "/bench/model.bin"
PIECE = 8 * MIB


class RcloneHdfs(Foreground):
    """rclone's HDFS backend under its VFS with the full cache and eight streams a file."""

    name = "rclone"

    def command(self) -> list[str]:
        """`rclone mount`."""
        return [
            find_program("rclone"),
            "mount",
            "bench:/bench",
            str(self.path),
            "--read-only",
            "--vfs-cache-mode=full",
            "--vfs-read-chunk-streams=8",
            f"--cache-dir={self.cache}",
        ]

    def environment(self) -> dict[str, str]:
        """A remote named bench."""
        return {
            "RCLONE_CONFIG": "/dev/null",
            "RCLONE_CONFIG_BENCH_TYPE": "hdfs",
            "RCLONE_CONFIG_BENCH_NAMENODE": self.endpoint.partition("://")[2],
            "RCLONE_CONFIG_BENCH_USERNAME": "root",
        }


def run(lab: Lab, options: Options, tell: Tell) -> Result:
    """Cold, cache on, against the sum of the links, one sequential reader of hdfs-native's, and rclone."""
    size = options.file_size(GIB, 192 * MIB)
    block = options.pick(128 * MIB, 16 * MIB)
    tell("starting HDFS")
    with lab.scratch() as directory, limited_cluster(directory, block, size, tell) as cluster:

        def mount() -> float:
            with (
                lab.scratch() as place,
                mounted(
                    f"{cluster.url}/bench",
                    place / "mnt",
                    cache_dir=place / "cache",
                    environment=cluster.environment,
                ) as shown,
            ):
                return size / dd(shown.path / Path(FILE).name, size)

        def sequential() -> float:
            return size / read_through(cluster, size)

        def rclone() -> float:
            with lab.scratch() as place, RcloneHdfs(cluster.url, place) as shown:
                return size / dd(shown.path / Path(FILE).name, size)

        measures = {"mount": mount, "hdfs-native": sequential}
        if options.peers:
            measures["rclone"] = rclone
        sides = take_turns(measures, options, tell)
    ours = sides["mount"]
    figures = [
        Figure("mount / the DataNodes' links", ours.median / (DATANODES * RATE), options.pick(0.9, 0.2)),
        faster(ours, sides["hdfs-native"], options.pick(2.0, 0.5)),
    ]
    if options.peers:
        figures.append(faster(ours, sides["rclone"], options.pick(2.0, 0.5)))
    return Result(
        case=HDFS.name,
        title=f"{DATANODES} DataNodes, 40 MB/s each, blocks of {block // MIB} MiB on all of them, cold",
        sides=tuple(sides.values()),
        figures=tuple(figures),
        notes=("hdfs-native: one reader from the first byte to the last",),
    )


@contextmanager
def limited_cluster(directory: Path, block: int, size: int, tell: Tell) -> Iterator[HdfsCluster]:
    """A cluster with ``FILE`` of ``size`` random bytes, its DataNodes behind their links."""
    with (
        Hosts(DATANODES) as hosts,
        HdfsCluster(
            directory,
            datanodes=DATANODES,
            block_size=block,
            addresses=hosts.addresses,
            prefixes=[hosts.prefix(number) for number in range(DATANODES)],
            namenode_address=hosts.gateway,
        ) as cluster,
    ):
        tell("storing a file")
        cluster.shell("begin", FILE, str(DATANODES))
        for start in range(0, size, PIECE):
            cluster.shell("write", FILE, "", os.urandom(min(PIECE, size - start)))
        cluster.shell("end", FILE)
        hosts.limit(RATE)
        yield cluster


def read_through(cluster: HdfsCluster, size: int) -> float:
    """Seconds that one sequential reader of hdfs-native's takes."""
    client = Client(cluster.url, config_dir=str(cluster.conf))
    start = time.perf_counter()
    got = sum(len(chunk) for chunk in client.read(FILE).read_range_stream(0, size))
    seconds = time.perf_counter() - start
    if got != size:
        raise RuntimeError(f"{got} bytes came, not {size}")
    return seconds


HDFS = Case("hdfs", "does one file come from every DataNode at once?", run, peers=("rclone",))
