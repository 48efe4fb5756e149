"""What a daemon says of itself. Sizes and offsets in bytes, times in seconds."""

from __future__ import annotations

import msgspec

__all__ = [
    "CacheStatus",
    "Feature",
    "FileStatus",
    "MemoryStatus",
    "OriginStatus",
    "ReadStatus",
    "RouteStatus",
    "ServedStatus",
    "Status",
]


class RouteStatus(msgspec.Struct, frozen=True):
    """``path`` of the mounted tree shows ``url``."""

    path: str
    url: str


class CacheStatus(msgspec.Struct, frozen=True):
    """The cache directory: ``used`` of ``limit`` bytes by ``objects`` versions.

    ``health`` is one word for people ("normal", or what is wrong); ``evictions`` counts versions removed to
    make room, ``corrupt`` stripes whose checksum did not match.
    """

    dir: str
    used: int
    limit: int
    objects: int
    health: str
    evictions: int
    corrupt: int


class MemoryStatus(msgspec.Struct, frozen=True):
    """The budget for everything in flight: what it is, what is taken now, the most that was."""

    budget: int
    used: int
    peak: int


class ReadStatus(msgspec.Struct, frozen=True):
    """What readers asked through the mount and got; ``errors`` are reads answered with an errno."""

    count: int
    bytes: int
    errors: int


class OriginStatus(msgspec.Struct, frozen=True):
    """What was asked of the origins; ``in_flight`` requests run now, ``errors`` are past every retry."""

    requests: int
    bytes: int
    retries: int
    errors: int
    in_flight: int


class ServedStatus(msgspec.Struct, frozen=True):
    """What was brought into memory for readers, and from where. Passthrough reads pass by uncounted."""

    cache: int
    origin: int


class Feature(msgspec.Struct, frozen=True):
    """Something that depends on the kernel or on rights; ``why`` it is off, or ""."""

    name: str
    on: bool
    why: str = ""


class FileStatus(msgspec.Struct, frozen=True):
    """A file that is open: ``present`` of ``size`` bytes are in the cache."""

    path: str
    size: int
    present: int
    from_cache: int
    from_origin: int


class Status(msgspec.Struct, frozen=True):
    """The answer to the command "status". ``inodes`` are those the daemon keeps for the kernel."""

    pid: int
    version: str
    mountpoint: str
    uptime: float
    routes: tuple[RouteStatus, ...]
    cache: CacheStatus
    memory: MemoryStatus
    reads: ReadStatus
    origin: OriginStatus
    served: ServedStatus
    open_files: int
    inodes: int
    features: tuple[Feature, ...]
    files: tuple[FileStatus, ...]
