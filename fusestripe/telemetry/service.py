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
from fusestripe.telemetry.status import Feature, RouteStatus, ServedStatus, Status
from fusestripe.units import ObjectVersion

__all__ = ["ControlService"]

# Open files named in a status; the busiest places open ten thousand.
FILES_SHOWN = 50


class ControlService:
    """Handlers for the control socket. ``features`` is what depends on the kernel, known once mounted.

    ``inodes`` counts those of the kernel; ``passed_through`` are the versions that it reads itself.
    """

    def __init__(
        self,
        mountpoint: str,
        engine: Engine,
        *,
        inodes: Callable[[], int],
        passed_through: Callable[[], frozenset[ObjectVersion]],
    ) -> None:
        self._mountpoint = mountpoint
        self._engine = engine
        self._inodes = inodes
        self._passed_through = passed_through
        self._started = time.monotonic()
        self.features: Callable[[], tuple[Feature, ...]] = tuple

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
        engine = self._engine
        cache, fetched = engine.cache.statistics(), engine.fetcher.statistics()
        passed_through = self._passed_through()
        return Status(
            pid=os.getpid(),
            version=fusestripe.__version__,
            mountpoint=self._mountpoint,
            uptime=time.monotonic() - self._started,
            routes=tuple(
                RouteStatus(f"/{path}", origin.url, engine.traffic.of(origin).statistics())
                for path, origin in engine.origins.items()
            ),
            cache=cache,
            memory=engine.pool.statistics(),
            reads=engine.reader.statistics(),
            origin=fetched,
            served=ServedStatus(
                cache=cache.loaded_bytes + cache.direct_read_bytes,
                origin=fetched.bytes,
                checked=cache.checked_bytes,
            ),
            open_files=len(engine.files),
            passed_through=len(passed_through),
            inodes=self._inodes(),
            features=self.features(),
            files=tuple(engine.files.statistics(passed_through)[-FILES_SHOWN:]),
        )
