"""Hosts of their own on this machine, each behind a link of so many bytes per second. Needs root.

Network namespaces on one bridge (ip-netns(8), veth(4)); a token bucket (tc-tbf(8)) on the way out of each,
and on the way in where that is asked for.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType

import msgspec

__all__ = ["Hosts", "Traffic"]

BURST = "256kb"
LATENCY = "100ms"
NAMESPACES = "/run/netns"  # where ip-netns(8) has them


class Traffic(msgspec.Struct, frozen=True):
    """Bytes of Ethernet frames that a host has sent and received."""

    sent: int
    received: int

    def since(self, before: Traffic) -> Traffic:
        """What came on top of ``before``."""
        return Traffic(self.sent - before.sent, self.received - before.received)


class Hosts:
    """``count`` hosts, and this machine at ``gateway``, on a network of their own."""

    def __init__(self, count: int) -> None:
        number = os.getpid() % 250 + 1
        self._bridge = f"fsb{os.getpid() % 100_000}"
        self.names = [f"{self._bridge}n{host}" for host in range(count)]
        self.gateway = f"10.213.{number}.1"
        self.addresses = [f"10.213.{number}.{host + 11}" for host in range(count)]

    def __enter__(self) -> Hosts:
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("addr", "add", f"{self.gateway}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for number, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
                port = self._port(number)
                _ip("netns", "add", name)
                _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
                _ip("link", "set", port, "master", self._bridge, "up")
                _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "link", "set", "eth0", "up")
        except BaseException:
            self._clean()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clean()

    def prefix(self, number: int) -> list[str]:
        """What is put before a command to run it on that host.

        It has this machine's files and mounts: what it mounts is seen from here.
        """
        return ["nsenter", f"--net={NAMESPACES}/{self.names[number]}", "--"]

    def limit(self, rate: float, *, host: int | None = None, both_ways: bool = False) -> None:
        """From now on that host, or each, sends at most ``rate`` bytes/s; and receives, if ``both_ways``."""
        shape = ["root", "tbf", "rate", f"{rate * 8:.0f}bit", "burst", BURST, "latency", LATENCY]
        for number in range(len(self.names)) if host is None else [host]:
            _run("tc", "-n", self.names[number], "qdisc", "replace", "dev", "eth0", *shape)
            if both_ways:
                _run("tc", "qdisc", "replace", "dev", self._port(number), *shape)

    def cut(self, host: int) -> None:
        """From now on nothing passes that host's link: who waits for an answer waits on."""
        _ip("link", "set", self._port(host), "down")

    def join(self, host: int) -> None:
        """The end of ``cut``."""
        _ip("link", "set", self._port(host), "up")

    def traffic(self, host: int) -> Traffic:
        """What has passed that host's link so far; what a limit dropped is not in it."""
        counts = Path(f"/sys/class/net/{self._port(host)}/statistics")
        sent, received = (int((counts / name).read_text()) for name in ("rx_bytes", "tx_bytes"))
        return Traffic(sent, received)

    def _port(self, number: int) -> str:
        """This machine's end of the link of that host."""
        return f"{self._bridge}p{number}"

    def _clean(self) -> None:
        for number, name in enumerate(self.names):
            # By its own name too: a namespace lives, and its link with it, as long as a process in it.
            _ip("link", "del", self._port(number), check=False)
            _ip("netns", "del", name, check=False)
        _ip("link", "del", self._bridge, check=False)


def _ip(*words: str, check: bool = True) -> None:
    _run("ip", *words, check=check)


def _run(*command: str, check: bool = True) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
