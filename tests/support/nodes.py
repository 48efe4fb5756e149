"""The nodes of a job on one machine: hosts of their own, each with a daemon, a cache and a limited link.

Needs root. Usable without pytest: the benchmark has nodes too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from unittest.mock import patch

import hostlist
import msgspec

from fusestripe.cache.ledger import decode_header, decode_records
from fusestripe.launch import DAEMON
from tests.support.false_peer import false_peer
from tests.support.hadoop.cluster import HdfsCluster
from tests.support.mounted import Mounted, mounted_by, until
from tests.support.network import Hosts, Traffic
from tests.support.node_reader import NodeReader, Read
from tests.support.seaweed import SeaweedServer

__all__ = ["Nodes", "Origin", "Outcome", "Race", "hdfs_origin", "s3_origin"]

PEER_PORT = 7070
STARTED_AT_ONCE = 4  # daemons: a start is mostly imports
TOKEN = "a token that opens nothing but the nodes of a test"
LIMITS: Mapping[str, Mapping[str, object]] = {
    "stripes": {"memory": "128MiB"},
    "mount": {"timeout": 60},
    "cache": {"reserve": "64MiB"},
}
"""Settings of every node, unless said otherwise: many daemons share this machine."""


class Origin(msgspec.Struct, frozen=True):
    """What all nodes mount: the directory ``source``. ``hosts`` are those that its bytes come from."""

    source: str
    hosts: tuple[int, ...]
    endpoint: str = ""
    environment: Mapping[str, str] = {}


@contextmanager
def s3_origin(
    hosts: Hosts, host: int, directory: Path, files: Mapping[str, Path], bucket: str = "nodes"
) -> Iterator[Origin]:
    """A real S3 server on ``host``, ``files`` (name -> what is in it) in its bucket."""
    with SeaweedServer(directory, address=hosts.addresses[host], prefix=hosts.prefix(host)) as server:
        server.create_bucket(bucket)
        for name, path in files.items():
            server.put_file(bucket, name, path)
        yield Origin(f"s3://{bucket}", (host,), server.endpoint, server.environment)


@contextmanager
def hdfs_origin(
    hosts: Hosts, datanodes: Sequence[int], directory: Path, files: Mapping[str, Path], block: int
) -> Iterator[Origin]:
    """A real HDFS with a DataNode on each of those hosts, ``files`` in one of its directories."""
    with HdfsCluster(
        directory,
        datanodes=len(datanodes),
        block_size=block,
        addresses=[hosts.addresses[host] for host in datanodes],
        prefixes=[hosts.prefix(host) for host in datanodes],
        namenode_address=hosts.gateway,
    ) as cluster:
        for name, path in files.items():
            cluster.shell("begin", f"/nodes/{name}", str(len(datanodes)))
            with open(path, "rb") as file:
                while piece := file.read(block):
                    cluster.shell("write", f"/nodes/{name}", "", piece)
            cluster.shell("end", f"/nodes/{name}")
        yield Origin(f"{cluster.url}/nodes", tuple(datanodes), environment=cluster.environment)


class Nodes:
    """``count`` nodes on the first of ``hosts``, all with ``origin`` at the top of their trees.

    Each has its own TOML file, with a table [peers] that names all of them if ``peers``. ``settings``
    (section -> key -> value) come on top of ``LIMITS``. No daemon runs before ``start``; at the end of the
    block no reader, no daemon and no mount is left.
    """

    def __init__(
        self,
        hosts: Hosts,
        origin: Origin,
        directory: Path,
        count: int,
        *,
        peers: bool,
        slurm: bool = False,
        settings: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        self.hosts = hosts
        self.origin = origin
        self.count = count
        self._directory = directory
        self._peers = peers
        self._slurm = slurm
        self._settings = dict(settings or {})
        self._stack = ExitStack()
        self._readers = ExitStack()
        self._mounts: dict[int, Mounted] = {}
        self._impostors = 0
        self._token = directory / "token"

    def __enter__(self) -> Nodes:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._token.touch(mode=0o600)
        self._token.write_text(TOKEN + "\n")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack, self._readers:  # a mount with a reader is busy
            pass

    def start(
        self,
        numbers: Iterable[int] | None = None,
        *,
        complaints: bool = False,
        program: Sequence[str] = DAEMON,
    ) -> None:
        """Mount on those nodes, or on all. ``program`` is the daemon; ``complaints``: see ``mounted``."""
        chosen = list(range(self.count) if numbers is None else numbers)

        def mount(number: int) -> Mounted:
            place = self.place(number)
            place.mkdir(exist_ok=True)  # of a daemon before, with its cache
            return self._stack.enter_context(
                mounted_by(
                    [*self.hosts.prefix(number), *program],
                    str(self._write_config(number)),
                    {"cache_dir": str(place / "cache")},
                    place / "mnt",
                    {},
                    complaints=complaints,
                )
            )

        environment = {**self.origin.environment, **self._environment_of_job()}
        with patch.dict(os.environ, environment), ThreadPoolExecutor(STARTED_AT_ONCE) as pool:
            self._mounts.update(zip(chosen, pool.map(mount, chosen), strict=True))

    def _environment_of_job(self) -> dict[str, str]:
        """What Slurm sets in a job on these nodes (sbatch(1)); whose number has them at PEER_PORT + 3."""
        if not self._slurm:
            return {}
        listed = hostlist.collect_hostlist(self.hosts.addresses[: self.count])
        return {"SLURM_JOB_ID": "12003", "SLURM_JOB_NODELIST": listed}

    def meet(self) -> None:
        """Return once every node that runs knows that the others do: from here on they ask each other."""
        if self._peers:
            others = len(self._mounts) - 1 + self._impostors
            until(lambda: all(self._knows(number) == others for number in self._mounts), 30)

    def _knows(self, number: int) -> int:
        return sum(member["live"] for member in self.mount(number).status()["peers"]["members"])

    @contextmanager
    def impostor(self, number: int, file: Path, stripe_size: int, fault: str) -> Iterator[None]:
        """On that node no daemon, but a peer that has ``file`` and does not do as it should (false_peer)."""
        with false_peer(self.address(number), file, stripe_size, fault, self.hosts.prefix(number)):
            self._impostors += 1
            yield
            self._impostors -= 1

    def place(self, number: int) -> Path:
        """Where all that belongs to that node lies."""
        return self._directory / f"node-{number}"

    def mount(self, number: int) -> Mounted:
        """That node's mount."""
        return self._mounts[number]

    def address(self, number: int) -> str:
        """As the other nodes know it."""
        return f"{self.hosts.addresses[number]}:{PEER_PORT}"

    def reader(self, number: int, name: str) -> NodeReader:
        """A process that has the file open on that node, and waits for its start."""
        reader = NodeReader(self.mount(number).path / name)
        self._readers.callback(reader.close)
        return reader

    def held(self, number: int) -> set[int]:
        """The stripes that are in that node's cache, of all its files."""
        found: set[int] = set()
        for ledger in (self.place(number) / "cache").glob("objects/*/*.ledger"):
            content = ledger.read_bytes()
            header = decode_header(content)
            if header is not None:
                found.update(index for index, _ in decode_records(header, content))
        return found

    def origin_sent(self) -> int:
        """Bytes of frames that the origin has sent so far."""
        return sum(self.hosts.traffic(host).sent for host in self.origin.hosts)

    def cut_origin_off(self) -> None:
        """Nothing comes from the origin any more, not even a refusal."""
        for host in self.origin.hosts:
            self.hosts.cut(host)

    def _write_config(self, number: int) -> Path:
        route = {"path": "/", "source": self.origin.source}
        if self.origin.endpoint:
            route["endpoint"] = self.origin.endpoint
        tables: dict[str, dict[str, object]] = {name: {**table} for name, table in LIMITS.items()}
        if self._peers and self._slurm:
            tables["peers"] = {"slurm": True, "token_file": str(self._token)}
        elif self._peers:
            tables["peers"] = {
                "members": [self.address(other) for other in range(self.count)],
                "port": PEER_PORT,
                "name": self.address(number),
                "token_file": str(self._token),
            }
        for name, table in self._settings.items():
            tables[name] = {**tables.get(name, {}), **table}
        lines = [line for name, table in tables.items() for line in _lines(f"[{name}]", table)]
        path = self.place(number) / "node.toml"
        path.write_text("\n".join([*lines, *_lines("[[route]]", route)]) + "\n")
        return path


def _lines(head: str, table: Mapping[str, object]) -> list[str]:
    """A table of numbers, switches, strings and lists of strings: JSON writes those as TOML does."""
    return [head, *(f"{key} = {json.dumps(value)}" for key, value in table.items())]


class Outcome(msgspec.Struct, frozen=True):
    """How one race went. ``seconds`` from the common start until a node's reader ended."""

    reads: Mapping[int, Read]
    seconds: Mapping[int, float]
    traffic: Mapping[int, Traffic]
    origin_sent: int

    def wrong(self, digest: str) -> dict[int, Read]:
        """Those that did not get every byte as it is; ``digest`` is the file's xxh3_64."""
        return {node: read for node, read in self.reads.items() if read.digest != digest}


class Race:
    """Readers of one file on several nodes, started together."""

    def __init__(self, nodes: Nodes, name: str, numbers: Iterable[int] | None = None) -> None:
        self._nodes = nodes
        self._name = name
        numbers = range(nodes.count) if numbers is None else numbers
        self.readers = {number: nodes.reader(number, name) for number in numbers}
        self._before = {host: nodes.hosts.traffic(host) for host in range(nodes.count)}
        self._sent_before = nodes.origin_sent()
        self.began = time.monotonic()
        for reader in self.readers.values():
            reader.start()

    def join(self, number: int) -> None:
        """One more, on a node that has just been mounted."""
        self.add(number, self._nodes.reader(number, self._name))

    def add(self, number: int, reader: NodeReader) -> None:
        """One more, that has had the file open."""
        self.readers[number] = reader
        reader.start()

    def drop(self, number: int) -> None:
        """Nobody waits for that one any more."""
        self.readers.pop(number).close()

    def finish(self, seconds: float) -> Outcome:
        """Once all have ended. Raises TimeoutError where they have not ``seconds`` after the start."""
        reads = {number: reader.result(self.began + seconds) for number, reader in self.readers.items()}
        hosts = self._nodes.hosts
        return Outcome(
            reads,
            {number: read.ended - self.began for number, read in reads.items()},
            {number: hosts.traffic(number).since(self._before[number]) for number in self._before},
            self._nodes.origin_sent() - self._sent_before,
        )
