"""What the daemon answers on its control socket: its status, and prefetching through it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import msgspec

import fusestripe
from fusestripe.engine import Engine
from fusestripe.errors import CacheError
from fusestripe.origins.base import Origin, place_below
from fusestripe.planning import among, plan_wanted
from fusestripe.selection import Wanted, prefetch_wanted
from fusestripe.telemetry.control import Handler, Send
from fusestripe.telemetry.status import Feature, RouteStatus, ServedStatus, Status
from fusestripe.units import ObjectVersion

__all__ = ["ControlService"]

# Open files named in a status; the busiest places open ten thousand.
FILES_SHOWN = 50


class ControlService:
    """Handlers for the control socket. ``features`` tells what depends on the kernel.

    ``inodes`` counts those of the kernel; ``passed_through`` are the versions that it reads itself. ``log``
    is the file that is logged to, "" for the terminal. In the block of a ``successor`` another daemon can
    take over, and ``leave`` ends this one; it raises MountError where there is none.
    """

    def __init__(
        self,
        mountpoint: str,
        engine: Engine,
        *,
        inodes: Callable[[], int],
        passed_through: Callable[[], frozenset[ObjectVersion]],
        features: Callable[[], tuple[Feature, ...]],
        log: str,
        successor: Callable[[], AbstractAsyncContextManager[None]],
        leave: Callable[[], object],
    ) -> None:
        self._mountpoint = mountpoint
        self._engine = engine
        self._inodes = inodes
        self._passed_through = passed_through
        self._features = features
        self._log = log
        self._successor = successor
        self._leave = leave
        self._started = time.monotonic()

    def handlers(self) -> dict[str, Handler]:
        """By the name of the command."""
        return {
            "status": self._status,
            "prefetch": self._prefetch,
            "plan": self._plan,
            "upgrade": self._upgrade,
        }

    async def _status(self, args: Mapping[str, Any], send: Send) -> None:
        # A directory that is gone shows as it was last seen; its health tells the rest.
        with suppress(OSError, CacheError):
            await self._engine.disk.run(self._engine.cache.rescan)
        await send(self.status())

    async def _prefetch(self, args: Mapping[str, Any], send: Send) -> None:
        engine, wanted = self._engine, msgspec.convert(args["wanted"], Wanted)
        await prefetch_wanted(engine.tree, engine.reader, engine.prefetcher, args["paths"], wanted, send)

    async def _upgrade(self, args: Mapping[str, Any], send: Send) -> None:
        async with self._successor():
            await send({"leaves": os.getpid()})
            self._leave()

    async def _plan(self, args: Mapping[str, Any], send: Send) -> None:
        engine, wanted = self._engine, msgspec.convert(args["wanted"], Wanted)
        plan = await plan_wanted(
            engine.tree,
            engine.reader,
            engine.files,
            args["paths"],
            wanted,
            directory=str(engine.cache.directory),
            shares=among(engine.peering.count()) if engine.peering else None,
        )
        await send(plan)

    def status(self) -> Status:
        """The state of all parts at this moment."""
        engine = self._engine
        cache, fetched = engine.cache.statistics(), engine.fetcher.statistics()
        passed_through = self._passed_through()
        peers = None if engine.peering is None else engine.peering.statistics()
        return Status(
            pid=os.getpid(),
            version=fusestripe.__version__,
            mountpoint=self._mountpoint,
            log=self._log,
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
                peers=0 if peers is None else peers.received,
                checked=cache.checked_bytes,
            ),
            open_files=len(engine.files),
            passed_through=len(passed_through),
            inodes=self._inodes(),
            features=self._features(),
            peers=peers,
            files=tuple(engine.files.statistics(self._place, passed_through)[-FILES_SHOWN:]),
        )

    def _place(self, origin: Origin, version: ObjectVersion) -> str:
        """Where the mount shows ``version`` of ``origin``."""
        route = next(path for path, one in self._engine.origins.items() if one is origin)
        inside = place_below(origin, version) or ""
        return "/" + "/".join(filter(None, (route, inside)))
