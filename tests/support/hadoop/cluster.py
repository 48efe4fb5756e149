"""A real HDFS on loopback: NameNodes and DataNodes of Hadoop, each in a process of its own.

Usable without pytest: the benchmark starts one too.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from xml.sax.saxutils import escape

from tests.support.hadoop.jars import NAMENODE, find_java, jars
from tests.support.hadoop.shell import HdfsShell, HdfsShellError

__all__ = ["HdfsCluster", "Node", "write_configuration"]

KIB = 1024
MIB = 1024 * KIB
START_SECONDS = 90.0
NAMESERVICE = "testns"

_JVM = (
    "-Xmx256m",
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)
_DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"


class Node:
    """One process of Hadoop's. Its configuration is its own directory's."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self._command = command
        self._environment = dict(environment)
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns at once."""
        with open(self.log, "ab") as output:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self._command],  # it ends with us, however we end
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether it was started and not killed."""
        return self._process is not None

    @property
    def ended(self) -> bool:
        """Whether it is gone although nobody killed it."""
        return self._process is not None and self._process.poll() is not None

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and says nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class HdfsCluster:
    """``namenodes`` (2: an HA pair on shared edits) and ``datanodes``, below ``directory``.

    ``settings`` go into everybody's hdfs-site.xml, ``core`` into core-site.xml. ``prefixes`` are put before
    the commands of the DataNodes ("ip netns exec ..."), ``addresses`` are theirs.
    """

    def __init__(
        self,
        directory: Path,
        *,
        datanodes: int = 3,
        namenodes: int = 1,
        settings: Mapping[str, str] | None = None,
        core: Mapping[str, str] | None = None,
        block_size: int = MIB,
        environment: Mapping[str, str] | None = None,
        addresses: Sequence[str] | None = None,
        prefixes: Sequence[Sequence[str]] | None = None,
        namenode_address: str = "127.0.0.1",
        java_options: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._addresses = list(addresses or ["127.0.0.1"] * datanodes)
        self._prefixes = [list(prefix) for prefix in prefixes or [[]] * datanodes]
        ports = _quiet_ports(2 * namenodes + 3 * datanodes)
        self._rpc, self._http = ports[:namenodes], ports[namenodes : 2 * namenodes]
        self._datanode_ports = [ports[2 * namenodes + 3 * i :][:3] for i in range(datanodes)]
        self._namenode_address = namenode_address
        self._is_pair = namenodes > 1
        self.block_size = block_size
        self._core = {"fs.defaultFS": self.url, **(core or {})}
        self._site = self._common_site() | dict(settings or {})
        self.conf = directory / "conf"
        self._jars = jars()
        self._java = [find_java(), *_JVM, f"-XX:SharedArchiveFile={self._jars.archive}", *java_options]
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(directory), **(environment or {})}
        self.namenodes: list[Node] = []
        self.datanodes: list[Node] = []
        self._shell: HdfsShell | None = None

    @property
    def url(self) -> str:
        """hdfs://host:port, or hdfs://nameservice of a pair."""
        if self._is_pair:
            return f"hdfs://{NAMESERVICE}"
        return f"hdfs://{self._namenode_address}:{self._rpc[0]}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client's shell would export."""
        return {"HADOOP_CONF_DIR": str(self.conf)}

    @property
    def shell(self) -> HdfsShell:
        """Hadoop's own client."""
        assert self._shell is not None
        return self._shell

    def client_configuration(self, name: str, *, core: Mapping[str, str]) -> Path:
        """A HADOOP_CONF_DIR like ``conf`` with ``core`` added."""
        conf = self._directory / name
        write_configuration(conf, self._core | dict(core), self._site)
        return conf

    def transfer_address(self, number: int) -> tuple[str, int]:
        """Where a DataNode serves blocks."""
        return self._addresses[number], self._datanode_ports[number][0]

    def block_files(self, number: int, path: str) -> set[Path]:
        """The files in which that DataNode keeps the bytes of ``path``: whole blocks, not coded units."""
        names = set(self.shell("blocks", path).splitlines())
        found = (self._directory / f"datanode-{number}" / "data").rglob("blk_*")
        return {file for file in found if file.name in names}

    def __enter__(self) -> HdfsCluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Return once every DataNode has reported and files can be written."""
        write_configuration(self.conf, self._core, self._site)
        self._shell = HdfsShell(self._command(self.conf), self._environment, self._directory / "shell.log")
        self.namenodes = [self._namenode(number) for number in range(len(self._rpc))]
        self.datanodes = [self._datanode(number) for number in range(len(self._datanode_ports))]
        for node in self.datanodes:
            node.start()
        self._tool(0, NAMENODE, "-format", "-force", "-nonInteractive")
        self.namenodes[0].start()
        if self._is_pair:
            self.wait_for(lambda: "is" not in self.shell("haadmin", "-getServiceState", "nn0"))
            self._tool(1, NAMENODE, "-bootstrapStandby", "-force", "-nonInteractive")
            self.namenodes[1].start()
            self.make_active(0)
        self.wait_for(lambda: self.shell("live") == str(len(self.datanodes)))

    def make_active(self, number: int) -> None:
        """Make that NameNode of the pair the active one, the other first a standby if it runs."""
        for other, node in enumerate(self.namenodes):
            if other != number and node.runs:
                self.wait_for(partial(self._transition, "-transitionToStandby", other))
        self.wait_for(partial(self._transition, "-transitionToActive", number, "--forceactive"))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until ``condition`` holds; it may fail with HdfsShellError meanwhile."""
        deadline = time.monotonic() + START_SECONDS
        said = "it never held"
        while time.monotonic() < deadline:
            try:
                if condition():
                    return
            except HdfsShellError as error:
                said = str(error)
            for node in (*self.namenodes, *self.datanodes):
                if node.ended:
                    raise RuntimeError(f"a node ended:\n{node.log.read_text()[-4000:]}")
            time.sleep(0.05)
        raise TimeoutError(said)

    def close(self) -> None:
        """End every process."""
        for node in (*self.datanodes, *self.namenodes):
            node.kill()
        if self._shell is not None:
            self._shell.close()

    def _transition(self, how: str, number: int, *options: str) -> bool:
        self.shell("haadmin", how, *options, f"nn{number}")
        return True

    def _namenode(self, number: int) -> Node:
        conf = self._directory / f"namenode-{number}"
        site = {
            "dfs.namenode.name.dir": f"file://{conf}/name",
            "dfs.ha.namenode.id": f"nn{number}",
        }
        if not self._is_pair:
            site["dfs.namenode.http-address"] = f"{self._namenode_address}:{self._http[0]}"
        write_configuration(conf, self._core, self._site | site)
        command = [*self._command(conf), NAMENODE]
        return Node(command, self._environment, self._directory / f"namenode-{number}.log")

    def _datanode(self, number: int) -> Node:
        conf = self._directory / f"datanode-{number}"
        transfer, http, ipc = self._datanode_ports[number]
        address = self._addresses[number]
        site = {
            "dfs.datanode.data.dir": f"file://{conf}/data",
            "dfs.datanode.address": f"{address}:{transfer}",
            "dfs.datanode.http.address": f"{address}:{http}",
            "dfs.datanode.ipc.address": f"{address}:{ipc}",
        }
        write_configuration(conf, self._core, self._site | site)
        command = [*self._prefixes[number], *self._command(conf), _DATANODE]
        return Node(command, self._environment, self._directory / f"datanode-{number}.log")

    def _command(self, conf: Path) -> list[str]:
        return [*self._java, "-cp", f"{self._jars.class_path}:{conf}"]

    def _tool(self, number: int, *words: str) -> None:
        """A command of Hadoop's that ends, with that NameNode's configuration."""
        conf = self._directory / f"namenode-{number}"
        done = subprocess.run(
            [*self._command(conf), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self._environment,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{words} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")

    def _common_site(self) -> dict[str, str]:
        site = {
            "dfs.blocksize": str(self.block_size),
            "dfs.namenode.fs-limits.min-block-size": str(64 * KIB),
            "dfs.replication": str(min(3, len(self._datanode_ports))),
            "dfs.client.block.write.replace-datanode-on-failure.policy": "NEVER",
            # Else a busy DataNode gets no unit of an erasure-coded group.
            "dfs.namenode.redundancy.considerLoad": "false",
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.safemode.min.datanodes": "0",
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.heartbeat.recheck-interval": "2000",
            "dfs.namenode.accesstime.precision": "0",
            "dfs.namenode.edits.noeditlogchannelflush": "true",
            "dfs.datanode.synconclose": "false",
            "dfs.datanode.fileio.profiling.sampling.percentage": "0",
            "dfs.datanode.max.transfer.threads": "512",
            "dfs.datanode.hostname": "localhost",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.startup.delay.block.deletion.sec": "0",
            "dfs.permissions.superusergroup": "supergroup",
            "dfs.namenode.rpc-bind-host": self._namenode_address,
            # A file is complete when its DataNodes have told the NameNode: looked at often, not every 400 ms.
            "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "4",
            "dfs.client.block.write.locateFollowingBlock.retries": "12",
            "ipc.client.connect.max.retries": "200",
            "ipc.client.connect.retry.interval": "100",
        }
        if self._is_pair:
            names = [f"nn{number}" for number in range(len(self._rpc))]
            site |= {
                "dfs.nameservices": NAMESERVICE,
                f"dfs.ha.namenodes.{NAMESERVICE}": ",".join(names),
                f"dfs.client.failover.proxy.provider.{NAMESERVICE}": (
                    "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
                ),
                "dfs.namenode.shared.edits.dir": f"file://{self._directory}/edits",
                "dfs.ha.automatic-failover.enabled": "false",
                "dfs.ha.fencing.methods": "shell(/bin/true)",
                "dfs.ha.tail-edits.period": "1s",
            }
            for name, rpc, http in zip(names, self._rpc, self._http, strict=True):
                address = f"{self._namenode_address}:{rpc}"
                site[f"dfs.namenode.rpc-address.{NAMESERVICE}.{name}"] = address
                site[f"dfs.namenode.http-address.{NAMESERVICE}.{name}"] = f"{self._namenode_address}:{http}"
        return site


def _quiet_ports(count: int) -> list[int]:
    """Free loopback ports that no outgoing connection takes before a node, slow to start, binds them.

    They lie below the ephemeral ports (ip_local_port_range of ip(7): from 32768 on).
    """
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def write_configuration(directory: Path, core: Mapping[str, str], site: Mapping[str, str]) -> None:
    """core-site.xml and hdfs-site.xml in ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, values in (("core-site.xml", core), ("hdfs-site.xml", site)):
        properties = "".join(
            f"<property><name>{escape(key)}</name><value>{escape(value)}</value></property>\n"
            for key, value in values.items()
        )
        text = f'<?xml version="1.0"?>\n<configuration>\n{properties}</configuration>\n'
        (directory / name).write_text(text)
