"""What can be set: the frozen settings, and the one table that flags, environment, ``-o`` and TOML follow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import msgspec

from fusestripe.units import GIB, MIB

__all__ = [
    "JOB_SETTINGS",
    "LEVELS",
    "SECTIONS",
    "SETTINGS",
    "CacheSettings",
    "Kind",
    "MetadataSettings",
    "MountSettings",
    "PeerSettings",
    "Route",
    "Setting",
    "Settings",
    "StripeSettings",
    "default_cache_dir",
]


class CacheSettings(msgspec.Struct, frozen=True):
    """Where stripes are kept. ``size`` and ``reserve`` in bytes; ``size`` None: 80% of what is free."""

    dir: str
    size: int | None
    reserve: int


class StripeSettings(msgspec.Struct, frozen=True):
    """``size`` and ``memory`` in bytes; ``count`` stripes of one file in flight, -1: found while reading."""

    size: int
    count: int
    memory: int


class MetadataSettings(msgspec.Struct, frozen=True):
    """Seconds that attributes and listings (``ttl``) and "no such file" (``negative_ttl``) are believed."""

    ttl: float
    negative_ttl: float


class MountSettings(msgspec.Struct, frozen=True):
    """``timeout``: seconds after which a read that the origin does not answer fails with EIO.

    ``channel``: reads are answered past pyfuse3; ``passthrough``: by the kernel itself where files are whole.
    ``noexec``: nothing in the tree can be executed. ``uid`` and ``gid`` own all that is shown, ``umask`` are
    permission bits that nothing shown has; None: as the origin knows it (see ``namespace.ownership``).
    ``fsname`` is shown as what is mounted; "": the source of the only route.
    ``point``: where to mount unless the command says so; "" where the file leaves that to it.
    ``keeper``: a parent keeps the mount when the daemon dies.
    """

    point: str
    allow_other: bool
    timeout: float
    log_level: str
    channel: bool
    passthrough: bool
    noexec: bool
    uid: int | None
    gid: int | None
    umask: int | None
    fsname: str
    keeper: bool


class PeerSettings(msgspec.Struct, frozen=True):
    """The nodes that share what they fetch, "host:port" each, or hosts with ``port``.

    They are ``members``, the addresses of the name ``dns``, or with ``slurm`` the nodes of the job. This node
    listens at ``listen`` and is ``name`` among them; "": every address, and the member that is here. Files in
    PEM, and the token that all share; "" where there is none.
    """

    members: tuple[str, ...]
    dns: str
    slurm: bool
    port: int
    listen: str
    name: str
    token_file: str
    tls_cert: str
    tls_key: str
    tls_ca: str

    @property
    def are_on(self) -> bool:
        """Whether there is a way to know members."""
        return bool(self.members or self.dns or self.slurm)


class Route(msgspec.Struct, frozen=True):
    """``path`` of the mounted tree ("/" or "/a/b") shows the origin URL ``source``; "" means not set."""

    path: str
    source: str
    endpoint: str = ""
    region: str = ""
    profile: str = ""
    anonymous: bool = False
    client: str = ""


class Settings(msgspec.Struct, frozen=True):
    """All that a daemon is told. Holds no secret; goes to the daemon as JSON (msgspec)."""

    cache: CacheSettings
    stripes: StripeSettings
    metadata: MetadataSettings
    mount: MountSettings
    peers: PeerSettings
    routes: tuple[Route, ...]


Kind = Literal[
    "size",
    "count",
    "seconds",
    "switch",
    "text",
    "texts",
    "directory",
    "file",
    "level",
    "user",
    "group",
    "mask",
]
LEVELS = ("debug", "info", "warning", "error")


class Setting(msgspec.Struct, frozen=True):
    """One thing that can be set. ``option`` is its name in ``-o``; "" where only the TOML file can say it."""

    section: str
    key: str
    option: str
    kind: Kind
    default: str | int | float | bool | tuple[str, ...] | None
    meaning: str
    has_flag: bool = False

    @property
    def environment(self) -> str:
        """The environment variable, "" where there is none."""
        return f"FUSESTRIPE_{self.option.upper()}" if self.option else ""

    @property
    def flag(self) -> str:
        """The command-line flag of `fusestripe mount`, "" where there is none."""
        return f"--{self.option.replace('_', '-')}" if self.has_flag else ""


SETTINGS = (
    Setting("cache", "dir", "cache_dir", "directory", None, "where stripes are kept, on local NVMe", True),
    Setting("cache", "size", "cache_size", "size", None, "limit of the cache (default: 80% of free)", True),
    Setting("cache", "reserve", "cache_reserve", "size", GIB, "room on the disk that the cache leaves free"),
    Setting("stripes", "size", "stripe_size", "size", 8 * MIB, "bytes of one range request", True),
    Setting(
        "stripes",
        "count",
        "stripe_count",
        "count",
        -1,
        "stripes of a file in flight; -1: found while reading",
        True,
    ),
    Setting("stripes", "memory", "memory", "size", GIB, "budget for everything in flight", True),
    Setting("metadata", "ttl", "ttl", "seconds", 60.0, "how long attributes and listings are believed"),
    Setting("metadata", "negative_ttl", "negative_ttl", "seconds", 5.0, "the same for missing names"),
    Setting("mount", "point", "", "directory", "", "where to mount, unless the command names another place"),
    Setting("mount", "allow_other", "allow_other", "switch", False, "let other users into the mount", True),
    Setting("mount", "timeout", "timeout", "seconds", 300.0, "a read without an answer fails after this"),
    Setting("mount", "log_level", "log_level", "level", "info", "one of debug, info, warning, error"),
    Setting("mount", "channel", "channel", "switch", True, "answer reads in our own threads, past pyfuse3"),
    Setting("mount", "passthrough", "passthrough", "switch", True, "let the kernel read whole files itself"),
    Setting("mount", "noexec", "noexec", "switch", False, "nothing in the tree can be executed"),
    Setting("mount", "uid", "uid", "user", None, "user, by number or name, who owns all that is shown"),
    Setting("mount", "gid", "gid", "group", None, "group that all that is shown belongs to"),
    Setting("mount", "umask", "umask", "mask", None, "permission bits that nothing shown has, like 027"),
    Setting(
        "mount", "fsname", "fsname", "text", "", "what mount(8) and df show as mounted (default: the source)"
    ),
    Setting(
        "mount", "keeper", "keeper", "switch", True, "keep the mount when its daemon dies, and start another"
    ),
    Setting("peers", "members", "peers", "texts", (), "nodes that share what they fetch, host:port each"),
    Setting("peers", "dns", "peers_dns", "text", "", "a name whose addresses are the members"),
    Setting("peers", "slurm", "peers_slurm", "switch", False, "the members are the nodes of the Slurm job"),
    Setting("peers", "port", "peers_port", "count", 7070, "where members listen that name no port"),
    Setting("peers", "listen", "peers_listen", "text", "", "address to listen at (default: all)"),
    Setting("peers", "name", "peers_name", "text", "", "which member this node is (default: it looks)"),
    Setting("peers", "token_file", "peers_token_file", "file", "", "file with the token that members share"),
    Setting("peers", "tls_cert", "peers_tls_cert", "file", "", "certificate of this node, PEM: TLS is on"),
    Setting("peers", "tls_key", "peers_tls_key", "file", "", "its key"),
    Setting("peers", "tls_ca", "peers_tls_ca", "file", "", "authority that every member's is of: mutual TLS"),
    Setting("route", "path", "", "text", "/", "path in the mounted tree"),
    Setting("route", "source", "", "text", None, "URL of the origin shown there"),
    Setting(
        "route", "endpoint", "endpoint", "text", "", "URL of the store's server, where it is not its own"
    ),
    Setting("route", "region", "region", "text", "", "region of the bucket"),
    Setting("route", "profile", "profile", "text", "", "profile in the store's own credential files"),
    Setting("route", "anonymous", "anonymous", "switch", False, "send no credentials"),
    Setting("route", "client", "client", "text", "", "for HDFS: native, or libhdfs through the JVM"),
)
"""Times in seconds; sizes in bytes, or written like "8MiB"."""

JOB_SETTINGS = (
    Setting("job", "prefetch", "", "texts", (), "paths of the mounted tree to bring into the cache"),
    Setting("job", "latest", "", "switch", False, "of those, the newest complete checkpoint alone"),
    Setting("job", "rank_local", "", "switch", False, "of those, what the ranks on this node read"),
    Setting("job", "pin", "", "switch", False, "keep what was prefetched from eviction while the job runs"),
    Setting("job", "wait", "", "seconds", 0.0, "how long the job's start may wait for the prefetch"),
    Setting(
        "job",
        "mountpoint",
        "",
        "text",
        "",
        "a directory of the user's own; %j is the job's id (default: made)",
    ),
)
"""What a job of a batch system asks for (``config.job``), in a file's [job] and in the job's comment."""

SECTIONS = tuple(dict.fromkeys(setting.section for setting in SETTINGS))


def default_cache_dir(environ: Mapping[str, str]) -> str:
    """/var/cache/fusestripe for root; else below $XDG_CACHE_HOME or ~/.cache (XDG Base Directory)."""
    if os.geteuid() == 0:
        return "/var/cache/fusestripe"
    base = environ.get("XDG_CACHE_HOME", "")
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "fusestripe")
