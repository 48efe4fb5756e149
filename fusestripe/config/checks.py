"""What settings must hold beyond their types. Pure; each refusal is one line with the place and the mend."""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath
from urllib.parse import parse_qsl, urlsplit

import msgspec

from fusestripe.cgroups import MemoryLimit
from fusestripe.config.machine import OWN_MEMORY, Machine
from fusestripe.config.settings import PeerSettings, Settings, StripeSettings
from fusestripe.config.sources import Given, Key
from fusestripe.errors import ConfigError
from fusestripe.units import KIB, MIB, format_size

__all__ = ["check_numbers", "check_routes", "check_source"]

STRIPE_ALIGNMENT = 4 * KIB
"""O_DIRECT writes whole logical blocks, 512 or 4096 bytes on the disks of today (open(2))."""
MEMORY_MINIMUM = MIB
"""One request of the kernel is up to 1 MiB (FUSE_MAX_MAX_PAGES: 256 pages of 4 KiB; fs/fuse/fuse_i.h)."""
COUNT_MAXIMUM = 1024
"""Far above what a network or an origin gains from, and as many descriptors as a process usually has."""
COMPONENT_MAXIMUM = 255
"""Bytes in one component of a path (NAME_MAX of limits.h)."""

# host, host:port, IPv6, [IPv6]:port
_MEMBER = re.compile(
    r"[\w.-]+(:\d{1,5})?|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*|\[[0-9a-fA-F:.]+\](:\d{1,5})?"
)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
# Secrets as AWS writes them may hold a "/", which ends the authority for a URL parser: what follows the
# colon there is no port, and an "@" still comes.
_SPLIT_PASSWORD = re.compile(r"[^:/]+://[^/@:\[]*:(?!\d*(?:/|$))[^@]*@")
_SECRET_PARAMETERS = frozenset(
    ("sig", "signature", "token", "access_token", "x-amz-signature", "x-amz-security-token")
)


class _Rule(msgspec.Struct, frozen=True):
    """``is_broken`` by the values of ``keys``; the first of them that was said is named."""

    is_broken: bool
    keys: tuple[Key, ...]
    message: str
    mend: str


def check_numbers(settings: Settings, given: Mapping[Key, Given], machine: Machine) -> None:
    """Raise ConfigError where a number is out of range, two do not go together, or there is no room."""
    rules = (
        *_limit_rules(settings.stripes, machine.limit, is_said=("stripes", "memory") in given),
        *_stripe_rules(settings.stripes, machine.memory),
        *_other_rules(settings),
    )
    for rule in rules:
        if rule.is_broken:
            place = next((given[key].where for key in rule.keys if key in given), "settings")
            raise ConfigError(f"{place}: {rule.message}", mend=rule.mend)


def _limit_rules(stripes: StripeSettings, limit: MemoryLimit | None, *, is_said: bool) -> tuple[_Rule, ...]:
    """Beyond the limit of a control group the kernel kills, and in the middle of a read."""
    if limit is None:
        return ()
    allowed, size, memory = format_size(limit.size), ("stripes", "size"), ("stripes", "memory")
    enough = max(2 * OWN_MEMORY, OWN_MEMORY + 2 * stripes.size)
    most = (limit.size - OWN_MEMORY) // MIB
    raised = f"the limit to {format_size(enough)} or more"
    return (
        _Rule(
            is_said and stripes.memory + OWN_MEMORY > limit.size,
            (memory,),
            f"a memory budget of {format_size(stripes.memory)}, and {format_size(OWN_MEMORY)} that fusestripe"
            f" takes beside it, are more than the {allowed} that {limit.said_by} allows",
            f"take {most}MiB or less, or raise the limit"
            if most * MIB >= stripes.size
            else f"raise {raised}",
        ),
        _Rule(
            not is_said and stripes.memory < stripes.size,
            (size,),
            f"the {allowed} of memory that {limit.said_by} allows leave no room to read"
            f" stripes of {format_size(stripes.size)}",
            f"raise {raised}",
        ),
    )


def _stripe_rules(stripes: StripeSettings, machine: int) -> tuple[_Rule, ...]:
    size, memory, count = ("stripes", "size"), ("stripes", "memory"), ("stripes", "count")
    stripe, budget = format_size(stripes.size), format_size(stripes.memory)
    return (
        _Rule(
            stripes.memory < MEMORY_MINIMUM,
            (memory,),
            f"a memory budget of {budget} is too small",
            "give it 1 MiB or more; 1GiB serves well",
        ),
        _Rule(
            stripes.memory > machine,
            (memory,),
            f"a memory budget of {budget} is more than the {format_size(machine)} of this machine",
            "leave the larger part to the job; 1GiB serves well",
        ),
        _Rule(stripes.size <= 0, (size,), "the stripe size is zero", "take a multiple of 4 KiB, like 8MiB"),
        _Rule(
            stripes.size % STRIPE_ALIGNMENT != 0,
            (size,),
            f"a stripe size of {stripes.size} bytes is not a multiple of 4 KiB",
            "take one, like 8MiB",
        ),
        _Rule(
            stripes.size > stripes.memory,
            (size, memory),
            f"a stripe of {stripe} is larger than the memory budget of {budget}",
            "raise memory or take smaller stripes",
        ),
        _Rule(
            stripes.count < 1 and stripes.count != -1,
            (count,),
            f"a stripe count of {stripes.count} would fetch nothing",
            "take 1 or more, or -1 to leave it to fusestripe",
        ),
        _Rule(
            stripes.count > COUNT_MAXIMUM,
            (count,),
            f"a stripe count of {stripes.count} would open as many connections for one file",
            f"take {COUNT_MAXIMUM} or fewer; 16 to 64 fill most networks",
        ),
    )


def _other_rules(settings: Settings) -> tuple[_Rule, ...]:
    cache, stripe = settings.cache.size, settings.stripes.size
    return (
        _Rule(
            cache is not None and cache < stripe,
            (("cache", "size"), ("stripes", "size")),
            f"a cache of {format_size(cache or 0)} cannot hold one stripe of {format_size(stripe)}",
            "give it room for the files you resume from",
        ),
        _Rule(
            settings.mount.timeout <= 0,
            (("mount", "timeout"),),
            "a timeout of 0 seconds fails every read",
            "take 300, or what your job can wait",
        ),
        *_peer_rules(settings.peers),
    )


def _peer_rules(peers: PeerSettings) -> tuple[_Rule, ...]:
    """How members are known is said in one way, and each can be an address."""
    ways = {"members": bool(peers.members), "dns": bool(peers.dns), "slurm": peers.slurm}
    said = [key for key, is_said in ways.items() if is_said]
    wrong = next((member for member in peers.members if not _MEMBER.fullmatch(member)), "")
    return (
        _Rule(
            len(said) > 1,
            tuple(("peers", key) for key in reversed(said)),
            f"peers are known by {' and by '.join(said)}",
            "say one of them",
        ),
        _Rule(
            not 0 < peers.port < 65536,
            (("peers", "port"),),
            f"{peers.port} is no port for peers",
            "take one from 1 to 65535, like 7070",
        ),
        _Rule(
            bool(wrong),
            (("peers", "members"),),
            f"{wrong!r} is no member",
            'write them like ["node1:7070", "node2:7070"]',
        ),
    )


def check_source(url: str, where: str, schemes: Collection[str] | None) -> None:
    """Raise ConfigError unless ``url`` names an origin and holds no secret, which is never printed."""
    if _holds_secret(url):
        raise ConfigError(
            f"{where}: there is a password or token in this URL",
            mend="take it out; credentials come from the environment or the store's own files",
        )
    match = _SCHEME.match(url)
    if match is None:
        mend = "write it like s3://bucket/prefix or file:///directory"
        if url.startswith("/"):
            mend = f"a directory is written {PurePosixPath(url).as_uri()}"
        raise ConfigError(f"{where}: {url!r} is no URL", mend=mend)
    scheme = match[1].lower()
    if schemes is not None and scheme not in schemes:
        near = difflib.get_close_matches(scheme, schemes, 1)
        known = ", ".join(f"{name}://" for name in sorted(schemes))
        raise ConfigError(
            f"{where}: unknown scheme {scheme}://",
            mend=f"did you mean {near[0]}://?" if near else f"known are {known}",
        )


def check_routes(routes: Sequence[Mapping[Key, Given]], schemes: Collection[str] | None) -> None:
    """Raise ConfigError for a route that cannot be shown, or not beside the others."""
    seen: list[str] = []
    for route in routes:
        source = route["route", "source"]
        check_source(source.value, source.where, schemes)
        endpoint = route.get(("route", "endpoint"))
        if endpoint is not None and endpoint.value:
            _check_endpoint(endpoint.value, endpoint.where)
        path = route.get(("route", "path"), Given("/", source.place, source.document))
        _check_path(path)
        for other in seen:
            _check_apart(path, other)
        seen.append(path.value)


def _check_endpoint(url: str, where: str) -> None:
    """Raise ConfigError unless ``url`` is that of a server."""
    if _holds_secret(url):
        check_source(url, where, None)  # which says so without showing it
    match = _SCHEME.match(url)
    if match is None or match[1].lower() not in ("http", "https") or not urlsplit(url).netloc:
        said = url if match is None else url[len(match[0]) :]
        mend = f"write it like http://{said or 'host:port'}, or with https://"
        raise ConfigError(f"{where}: {url!r} is no URL of a server", mend=mend)


def _holds_secret(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that are no IPv6 address: no part of it can be told from a secret
        return "@" in url
    names = {name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    if parts.password is not None or _SPLIT_PASSWORD.match(url):
        return True
    return not names.isdisjoint(_SECRET_PARAMETERS)


def _check_path(path: Given) -> None:
    value: str = path.value
    normal = posixpath.normpath("/" + value.strip("/"))
    if value != normal:
        raise ConfigError(f"{path.where}: {value!r} is not a route's path", mend=f'write it "{normal}"')
    longest = max(len(name.encode("utf-8", "surrogateescape")) for name in value.split("/"))
    if "\0" in value or longest > COMPONENT_MAXIMUM:
        raise ConfigError(
            f"{path.where}: this route's path cannot be a path", mend="a name has up to 255 bytes and no NUL"
        )


def _check_apart(path: Given, other: str) -> None:
    value: str = path.value
    if value == other:
        raise ConfigError(f'{path.where}: two routes have the path "{value}"', mend="give each its own")
    for inner, outer in ((value, other), (other, value)):
        if inner.startswith(outer.rstrip("/") + "/"):
            raise ConfigError(
                f'{path.where}: the route "{inner}" lies inside the route "{outer}"',
                mend="give them paths side by side",
            )
