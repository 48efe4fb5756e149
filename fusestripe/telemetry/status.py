"""What a daemon says of itself: the statistics of its parts as they are. Bytes and seconds."""

from __future__ import annotations

import msgspec

from fusestripe.cache.health import CacheStatistics
from fusestripe.openfiles import FileStatistics
from fusestripe.peers.members import PeerStatistics
from fusestripe.reader import ReadStatistics
from fusestripe.stripes.fetch import FetchStatistics
from fusestripe.stripes.memory import PoolStatistics
from fusestripe.stripes.traffic import TrafficStatistics

__all__ = [
    "Feature",
    "RouteStatus",
    "ServedStatus",
    "Status",
]


class RouteStatus(msgspec.Struct, frozen=True):
    """``path`` of the mounted tree shows ``url``; ``traffic`` is what goes on between there and here."""

    path: str
    url: str
    traffic: TrafficStatistics


class ServedStatus(msgspec.Struct, frozen=True):
    """What was brought into memory, and from where: for readers from ``cache``, ``origin`` and ``peers``.

    ``checked`` was read back from the cache's disk only to see that it is right. What the kernel reads itself
    passes by uncounted.
    """

    cache: int
    origin: int
    peers: int
    checked: int


class Feature(msgspec.Struct, frozen=True):
    """Something that depends on the kernel or on rights; ``why`` it is off, or ""."""

    name: str
    on: bool
    why: str = ""


class Status(msgspec.Struct, frozen=True):
    """The answer to the command "status".

    ``passed_through`` of the ``open_files`` are read by the kernel itself. ``inodes`` are those the daemon
    keeps for it. ``log`` is the file that it logs to, "" for the terminal it was started from. ``peers`` is
    None where they are off.
    """

    pid: int
    version: str
    mountpoint: str
    log: str
    uptime: float
    routes: tuple[RouteStatus, ...]
    cache: CacheStatistics
    memory: PoolStatistics
    reads: ReadStatistics
    origin: FetchStatistics
    served: ServedStatus
    open_files: int
    passed_through: int
    inodes: int
    features: tuple[Feature, ...]
    peers: PeerStatistics | None
    files: tuple[FileStatistics, ...]
