"""Everything between the kernel and the origins, put together from the settings.

The daemon stands on it, and so does a prefetch without a mount. The only place that knows the concrete
classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import trio

from fusestripe.cache.store import CacheStore
from fusestripe.cache.threads import DiskThreads
from fusestripe.config import Route, Settings
from fusestripe.errors import CacheError, FusestripeError, OriginUnavailable
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

__all__ = ["Engine", "connect", "open_cache"]

# An endpoint that does not answer at all must not keep `mount` waiting for longer (seconds).
CHECK_SECONDS = 12.0
# For this long after the first failure a check is tried again (seconds).
CHECK_AGAIN_SECONDS = 2.0
# A request is given up, and made again while there is time, once it has been silent for so long (seconds).
SILENCE_SECONDS = 30.0
# How often memory is given back that nobody has asked for since the last time (seconds).
TRIM_SECONDS = 10.0
# A cache disk that does not answer must not keep `mount` waiting for longer (seconds).
CACHE_SECONDS = 15.0
# Requests under way at most, each with a thread and a connection: the usual limit is 1,024 descriptors.
FETCH_THREADS = 256


class Engine:
    """The parts that serve reads, for the life of ``services``, the nursery their tasks run in."""

    def __init__(
        self, settings: Settings, origins: Mapping[str, Origin], cache: CacheStore, services: trio.Nursery
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
        windows = Windows(self.pool, self.traffic, settings.stripes.size)
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
        )
        self.prefetcher = Prefetcher(
            stripes=self.stripes,
            reader=self.reader,
            files=self.files,
            read_back=read_back,
            windows=windows,
            stripe_size=settings.stripes.size,
        )
        self.tree = Tree(
            RouteTable(origins),
            services,
            ttl=settings.metadata.ttl,
            negative_ttl=settings.metadata.negative_ttl,
            timeout=settings.mount.timeout,
        )
        services.start_soon(self._trim)

    async def _trim(self) -> None:
        while True:
            await trio.sleep(TRIM_SECONDS)
            self.stripes.trim()
            self.tree.trim()

    def close(self) -> None:
        """Let go of the cache and of the origins' connections."""
        self.disk.at_rest(self.cache.close)  # a thread left behind still uses its descriptors
        for origin in self.origins.values():
            origin.close()


async def connect(routes: Sequence[Route], *, timeout: float) -> dict[str, Origin]:
    """The origin of each route by its path in the tree, each checked. Raises the first error.

    ``timeout``: the seconds without a byte after which a read has failed, and so has no request longer.
    """
    origins = {route.path.strip("/"): _open(route, min(SILENCE_SECONDS, timeout)) for route in routes}
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


async def open_cache(settings: Settings) -> CacheStore:
    """The cache of the settings. Raises CacheError."""

    def open_it() -> CacheStore:
        return CacheStore(
            Path(settings.cache.dir),
            stripe_size=settings.stripes.size,
            size=settings.cache.size,
            reserve=settings.cache.reserve,
        )

    try:
        with trio.fail_after(CACHE_SECONDS):
            return await trio.to_thread.run_sync(open_it, abandon_on_cancel=True)
    except trio.TooSlowError:
        raise CacheError(
            f"the disk of the cache directory {settings.cache.dir} does not answer",
            mend="look at the disk's health, or choose another --cache-dir",
        ) from None


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
    return open_origin(route.source, options)
