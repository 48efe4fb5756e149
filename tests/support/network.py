"""Hosts of their own on this machine, each behind a link of so many bytes per second. Needs root.

Network namespaces on one bridge (ip-netns(8), veth(4)); a token bucket on the way out of each (tc-tbf(8)).
"""

from __future__ import annotations

import os
import subprocess
from types import TracebackType

__all__ = ["Hosts"]

BURST = "256kb"
LATENCY = "100ms"


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
                port = f"{self._bridge}p{number}"
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
        """What is put before a command to run it on that host."""
        return ["ip", "netns", "exec", self.names[number]]

    def limit(self, rate: float, *, host: int | None = None) -> None:
        """From now on that host, or each, sends at most ``rate`` bytes/s."""
        for name in self.names if host is None else [self.names[host]]:
            bits = f"{rate * 8:.0f}bit"
            shape = ["tbf", "rate", bits, "burst", BURST, "latency", LATENCY]
            _run("tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", *shape)

    def _clean(self) -> None:
        for name in self.names:
            _ip("netns", "del", name, check=False)
        _ip("link", "del", self._bridge, check=False)


def _ip(*words: str, check: bool = True) -> None:
    _run("ip", *words, check=check)


def _run(*command: str, check: bool = True) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
