"""What the daemon answers on its control socket: its status, and prefetching through it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import fusestripe
from fusestripe.engine import Engine
from fusestripe.errors import CacheError
from fusestripe.prefetcher import prefetch
from fusestripe.telemetry.control import Handler, Send
from fusestripe.telemetry.status import (
    CacheStatus,
    Feature,
    FileStatus,
    MemoryStatus,
    OriginStatus,
    ReadStatus,
    RouteStatus,
    ServedStatus,
    Status,
)

__all__ = ["ControlService"]

# Open files named in a status; the busiest places open ten thousand.
FILES_SHOWN = 50


class ControlService:
    """Handlers for the control socket. ``features`` is what depends on the kernel, known once mounted."""

    def __init__(self, mountpoint: str, cache_dir: str, engine: Engine, inodes: Callable[[], int]) -> None:
        self._mountpoint = mountpoint
        self._cache_dir = cache_dir
        self._engine = engine
        self._inodes = inodes
        self._started = time.monotonic()
        self.features: tuple[Feature, ...] = ()

    def handlers(self) -> dict[str, Handler]:
        """By the name of the command."""
        return {"status": self._status, "prefetch": self._prefetch}

    async def _status(self, args: Mapping[str, Any], send: Send) -> None:
        # A directory that is gone shows as it was last seen; its health tells the rest.
        with suppress(OSError, CacheError):
            await self._engine.disk.run(self._engine.cache.rescan)
        await send(self.status())

    async def _prefetch(self, args: Mapping[str, Any], send: Send) -> None:
        engine = self._engine
        check, pin = args["check"], args["pin"]
        await prefetch(engine.tree, engine.prefetcher, args["paths"], send, check=check, pin=pin)

    def status(self) -> Status:
        """The state of all parts at this moment."""
        cache = self._engine.cache.statistics()
        memory = self._engine.pool.statistics()
        fetched = self._engine.fetcher.statistics()
        reads = self._engine.reader.statistics()
        return Status(
            pid=os.getpid(),
            version=fusestripe.__version__,
            mountpoint=self._mountpoint,
            uptime=time.monotonic() - self._started,
            routes=tuple(
                RouteStatus(f"/{path}", origin.url) for path, origin in self._engine.origins.items()
            ),
            cache=CacheStatus(
                dir=self._cache_dir,
                used=cache.used,
                limit=cache.limit,
                objects=cache.objects,
                health=cache.health,
                evictions=cache.evictions,
                corrupt=cache.corrupt_stripes,
            ),
            memory=MemoryStatus(budget=memory.limit, used=memory.used, peak=memory.peak),
            reads=ReadStatus(count=reads.reads, bytes=reads.bytes, errors=reads.errors),
            origin=OriginStatus(
                requests=fetched.requests,
                bytes=fetched.bytes,
                retries=fetched.retries,
                errors=fetched.errors,
                in_flight=fetched.in_flight,
            ),
            served=ServedStatus(cache=cache.loaded_bytes + cache.direct_read_bytes, origin=fetched.bytes),
            open_files=reads.open_files,
            inodes=self._inodes(),
            features=self.features,
            files=tuple(
                FileStatus(file.name, file.size, file.present, file.from_cache, file.from_origin)
                for file in self._engine.files.statistics()[-FILES_SHOWN:]
            ),
        )
