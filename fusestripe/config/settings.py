"""What can be set: the frozen settings, and the one table that flags, environment, ``-o`` and TOML follow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import msgspec

from fusestripe.units import GIB, MIB

__all__ = [
    "LEVELS",
    "SECTIONS",
    "SETTINGS",
    "CacheSettings",
    "Kind",
    "MetadataSettings",
    "MountSettings",
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
    """

    allow_other: bool
    timeout: float
    log_level: str
    channel: bool
    passthrough: bool


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
    routes: tuple[Route, ...]


Kind = Literal["size", "count", "seconds", "switch", "text", "directory", "level"]
LEVELS = ("debug", "info", "warning", "error")


class Setting(msgspec.Struct, frozen=True):
    """One thing that can be set. ``option`` is its name in ``-o``; "" where only the TOML file can say it."""

    section: str
    key: str
    option: str
    kind: Kind
    default: str | int | float | bool | None
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
    Setting("mount", "allow_other", "allow_other", "switch", False, "let other users into the mount", True),
    Setting("mount", "timeout", "timeout", "seconds", 300.0, "a read without an answer fails after this"),
    Setting("mount", "log_level", "log_level", "level", "info", "one of debug, info, warning, error"),
    Setting("mount", "channel", "channel", "switch", True, "answer reads in our own threads, past pyfuse3"),
    Setting("mount", "passthrough", "passthrough", "switch", True, "let the kernel read whole files itself"),
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

SECTIONS = tuple(dict.fromkeys(setting.section for setting in SETTINGS))


def default_cache_dir(environ: Mapping[str, str]) -> str:
    """/var/cache/fusestripe for root; else below $XDG_CACHE_HOME or ~/.cache (XDG Base Directory)."""
    if os.geteuid() == 0:
        return "/var/cache/fusestripe"
    base = environ.get("XDG_CACHE_HOME", "")
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "fusestripe")
