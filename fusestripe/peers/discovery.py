"""Who the members are: a list, the addresses of a name, the nodes of a Slurm job; and who this node is."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress

import msgspec
import psutil
import trio

from fusestripe.config import PeerSettings
from fusestripe.errors import ConfigError
from fusestripe.slurm import expand_nodes

__all__ = ["Discovery", "discover", "find_me", "host_of", "local_addresses", "port_of", "with_port"]

# A name's addresses are asked for anew as often (seconds).
DNS_SECONDS = 5.0
# Jobs on one node must not meet at one port: so many above the one that is set are theirs in turn.
JOB_PORTS = 1000
PORTS = 1 << 16


class Discovery(msgspec.Struct, frozen=True):
    """``find`` returns the members, "host:port" each; it is worth asking again every ``again`` seconds.

    ``port`` is the one to listen at. ``again`` is infinite where nothing will change.
    """

    find: Callable[[], Awaitable[Collection[str]]]
    port: int
    again: float


def discover(settings: PeerSettings, environ: Mapping[str, str]) -> Discovery:
    """How the members of ``settings`` are found. Raises ConfigError."""
    if settings.slurm:
        above = int(environ.get("SLURM_JOB_ID") or 0) % JOB_PORTS
        port = settings.port + above % (PORTS - settings.port)
        listed = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
        hosts = expand_nodes(listed) if listed else []  # outside a job there are none
        return _fixed([f"{host}:{port}" for host in hosts], port)
    if settings.dns:
        return Discovery(lambda: _addresses(settings.dns, settings.port), settings.port, DNS_SECONDS)
    members = [with_port(member, settings.port) for member in settings.members]
    if settings.name and not find_me(members, settings.port, addresses=(), name=settings.name):
        mend = f"write it as in members: {', '.join(members[:3])}"
        raise ConfigError(f"the name {settings.name!r} of this node is none of the members", mend=mend)
    return _fixed(members, settings.port)


def with_port(member: str, port: int) -> str:
    """``member`` with a port: its own, or ``port``. An IPv6 address with a port is in brackets."""
    if member.count(":") > 1 and "]" not in member:
        return f"[{member}]:{port}"
    host, _, rest = member.rpartition(":")
    has_port = host and rest.isdigit() and (":" not in host or host.endswith("]"))
    return member if has_port else f"{member}:{port}"


def find_me(members: Collection[str], port: int, *, addresses: Collection[str], name: str) -> str:
    """The one of ``members`` that is this node; "": it is none of them. May look up names.

    ``addresses`` are those of this node; where several members are here, it is the one at ``port``. ``name``
    is what the settings say it is, "": nothing.
    """
    hosts = {member: host_of(member) for member in members}
    if name:
        wanted = with_port(name, port)
        return wanted if wanted in hosts else _only([member for member in hosts if hosts[member] == name])
    at_port = {member: host for member, host in hosts.items() if port_of(member) == port}
    for is_here in (_is_named, _is_found):  # to look up hundreds of names takes time
        for member, host in at_port.items():
            if is_here(host, addresses):
                return member
    for is_here in (_is_named, _is_found):
        here = [member for member, host in hosts.items() if is_here(host, addresses)]
        if here:
            return _only(here)
    return ""


def host_of(member: str) -> str:
    """Its host, without the brackets of an IPv6 address."""
    return member.rpartition(":")[0].strip("[]")


def port_of(member: str) -> int:
    """Where it listens; 0 for "", which is no member."""
    return int(member.rpartition(":")[2] or 0)


def _only(members: Sequence[str]) -> str:
    return members[0] if len(members) == 1 else ""


def local_addresses(environ: Mapping[str, str] = os.environ) -> set[str]:
    """The names and addresses of this node."""
    interfaces = psutil.net_if_addrs().values()
    found = {address.address.partition("%")[0] for each in interfaces for address in each}
    host = socket.gethostname()
    names = {host, host.partition(".")[0], environ.get("SLURMD_NODENAME", "")}
    return found | names - {""}


def _is_named(host: str, addresses: Collection[str]) -> bool:
    return host in addresses or host.partition(".")[0] in addresses


def _is_found(host: str, addresses: Collection[str]) -> bool:
    with suppress(OSError, UnicodeError):  # UnicodeError: no name of the DNS can be so
        return any(
            info[4][0] in addresses for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        )
    return False


def _fixed(members: Collection[str], port: int) -> Discovery:
    async def find() -> Collection[str]:
        return members

    return Discovery(find, port, float("inf"))


async def _addresses(name: str, port: int) -> Collection[str]:
    """Of a name that has many (a headless service of Kubernetes). Raises OSError."""
    try:
        found = await trio.socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{name!r} is no name: {error}") from None
    return {with_port(str(info[4][0]), port) for info in found}
