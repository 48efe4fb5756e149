"""Everything between the kernel and the origins, put together from the settings.

The daemon stands on it, and so does a prefetch without a mount. The only place that knows the concrete
classes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from fusestripe.cache.store import CacheStore
from fusestripe.cache.threads import DiskThreads
from fusestripe.config import Route, Settings
from fusestripe.errors import CacheError, ConfigError, FusestripeError, OriginUnavailable
from fusestripe.namespace.routes import RouteTable
from fusestripe.namespace.tree import Tree
from fusestripe.openfiles import OpenFiles
from fusestripe.origins.base import Origin, OriginOptions
from fusestripe.origins.registry import open_origin
from fusestripe.origins.retry import retried
from fusestripe.prefetcher import Prefetcher
from fusestripe.readback import ReadBack
from fusestripe.reader import Reader
from fusestripe.smallreads import SmallReads
from fusestripe.stripes.fetch import Fetcher
from fusestripe.stripes.memory import BufferPool
from fusestripe.stripes.resident import ResidentStripes
from fusestripe.stripes.traffic import TrafficTable
from fusestripe.stripes.tuning import FixedStreams, Streams, TunedStreams, climb_for
from fusestripe.windows import Windows

if TYPE_CHECKING:
    from fusestripe.peering import Peering

log = logging.getLogger(__name__)

__all__ = ["Engine", "connect", "join_peers", "open_cache"]

# An endpoint that does not answer at all must not keep `mount` waiting for longer (seconds).
CHECK_SECONDS = 12.0
# For this long after the first failure a check is tried again (seconds).
CHECK_AGAIN_SECONDS = 2.0
# A request is given up, and made again while there is time, once it has been silent for so long (seconds).
SILENCE_SECONDS = 30.0
# How often memory is given back that nobody has asked for since the last time (seconds).
TRIM_SECONDS = 10.0
# How often it is seen whether an origin is silent, and whether a cache disk that failed has rested (seconds).
LOOK_SECONDS = 0.5
# A cache disk that does not answer must not keep `mount` waiting for longer (seconds).
CACHE_SECONDS = 15.0
# Requests under way at most, each with a thread and a connection: the usual limit is 1,024 descriptors.
FETCH_THREADS = 256


class Engine:
    """The parts that serve reads, for the life of ``services``, the nursery their tasks run in.

    ``peering``: nodes that share what they fetch.
    """

    def __init__(
        self,
        settings: Settings,
        origins: Mapping[str, Origin],
        cache: CacheStore,
        services: trio.Nursery,
        peering: Peering | None = None,
    ) -> None:
        self.origins = origins
        self.cache = cache
        self.pool = BufferPool(settings.stripes.memory, settings.stripes.size)
        self.stripes = ResidentStripes(self.pool, services)
        threads = min(FETCH_THREADS, self.pool.buffers)
        self.traffic = TrafficTable(partial(_streams, settings.stripes.count, self.pool.buffers), threads)
        self.fetcher = Fetcher(
            stripes=self.stripes,
            traffic=self.traffic,
            threads=threads,
            timeout=settings.mount.timeout,
        )
        self.peering = peering
        windows = Windows(
            self.pool,
            self.traffic,
            settings.stripes.size,
            nodes=peering.count if peering else None,
        )
        self.disk = DiskThreads(cache.health)
        self.files = OpenFiles(cache, self.disk)
        read_back = ReadBack(self.files, self.stripes, self.disk, services, stripe_size=settings.stripes.size)
        self.reader = Reader(
            stripes=self.stripes,
            pool=self.pool,
            fetcher=self.fetcher,
            files=self.files,
            small=SmallReads(self.stripes, self.disk, settings.stripes.size),
            disk=self.disk,
            read_back=read_back,
            windows=windows,
            stripe_size=settings.stripes.size,
            peers=peering.asking if peering else None,
        )
        self.prefetcher = Prefetcher(
            stripes=self.stripes,
            reader=self.reader,
            files=self.files,
            read_back=read_back,
            windows=windows,
            stripe_size=settings.stripes.size,
            arrange=peering.arrange if peering else None,
        )
        self.tree = Tree(
            RouteTable(origins),
            services,
            ttl=settings.metadata.ttl,
            negative_ttl=settings.metadata.negative_ttl,
            timeout=settings.mount.timeout,
        )
        services.start_soon(self._trim)
        services.start_soon(self._look_around)
        if peering is not None:
            services.start_soon(
                peering.run, self.reader, self.files, self.stripes, origins.values(), self.pool.buffers
            )

    async def _look_around(self) -> None:
        """At disk and origins, in one task: each wakes an idle daemon."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            self.traffic.look()
            if self.cache.health.state != "normal" and self.cache.health.worth_trying:
                with suppress(CacheError):
                    await self.disk.run(self.cache.try_disk)

    async def _trim(self) -> None:
        while True:
            await trio.sleep(TRIM_SECONDS)
            self.stripes.trim()
            self.tree.trim()

    def close(self) -> None:
        """Let go of the cache and of the origins' connections."""
        self.disk.at_rest(self.cache.close)  # a thread left behind still uses its descriptors
        if self.peering is not None:
            self.peering.close()
        for origin in self.origins.values():
            origin.close()


async def connect(routes: Sequence[Route], *, timeout: float, checked: bool = True) -> dict[str, Origin]:
    """The origin of each route by its path in the tree. Unless ``checked`` is false, raises the first error.

    ``timeout``: the seconds without a byte after which a read has failed, and so has no request longer.
    """
    origins = {route.path.strip("/"): _open(route, min(SILENCE_SECONDS, timeout)) for route in routes}
    if not checked:
        return origins
    failures: list[FusestripeError] = []
    limiter = trio.CapacityLimiter(len(origins))

    async def check(origin: Origin) -> None:
        try:
            with trio.fail_after(CHECK_SECONDS):
                await retried(origin.check, limiter=limiter, timeout=CHECK_AGAIN_SECONDS)
        except FusestripeError as error:
            failures.append(error)
        except trio.TooSlowError:
            mend = "check the endpoint and the network between"
            failures.append(OriginUnavailable(f"{origin.url} does not answer", mend=mend))

    async with trio.open_nursery() as nursery:
        for origin in origins.values():
            nursery.start_soon(check, origin)
    if failures:
        for origin in origins.values():
            origin.close()
        raise failures[0]
    return origins


async def open_cache(settings: Settings, spare: str = "") -> CacheStore:
    """The cache of the settings. Raises CacheError.

    For readers who wait already, ``spare`` is a directory for one that keeps next to nothing, where the other
    cannot be used.
    """
    stripe_size, cache = settings.stripes.size, settings.cache
    wanted = partial(CacheStore, stripe_size=stripe_size, size=cache.size, reserve=cache.reserve)
    try:
        return await _opened(wanted, cache.dir)
    except CacheError as error:
        if not spare:
            raise
        log.error("%s; reads go on without the cache", error)  # noqa: TRY400
        return await _opened(partial(CacheStore, stripe_size=stripe_size, size=stripe_size, reserve=0), spare)


async def _opened(store: Callable[[Path], CacheStore], directory: str) -> CacheStore:
    try:
        with trio.fail_after(CACHE_SECONDS):
            return await trio.to_thread.run_sync(store, Path(directory), abandon_on_cancel=True)
    except trio.TooSlowError:
        raise CacheError(
            f"the disk of the cache directory {directory} does not answer",
            mend="look at the disk's health, or choose another --cache-dir",
        ) from None


def join_peers(settings: Settings) -> Peering | None:
    """This node among the members that the settings name, if they do. Raises ConfigError."""
    if not settings.peers.are_on:
        return None
    try:
        from fusestripe.peering import Peering  # the extra "peers" has what it needs
    except ImportError:
        raise ConfigError("peers need pyarrow", mend="pip install 'fusestripe[peers]'") from None
    return Peering(settings.peers, settings.stripes.size, settings.mount.timeout)


def _streams(count: int, buffers: int, origin: Origin) -> Streams:
    """For the setting ``count``; -1: as many as the origin rewards."""
    return FixedStreams(count) if count != -1 else TunedStreams(climb_for(origin, buffers))


def _open(route: Route, timeout: float) -> Origin:
    options = OriginOptions(
        endpoint=route.endpoint or None,
        region=route.region or None,
        profile=route.profile or None,
        anonymous=route.anonymous,
        client=route.client or None,
        timeout=timeout,
    )
    try:
        return open_origin(route.source, options)
    except ConfigError as error:
        if route.path == "/":
            raise
        raise ConfigError(f"route {route.path}: {error.message}", mend=error.mend) from None
