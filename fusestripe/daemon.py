"""The daemon: builds the parts, mounts, serves, unmounts. The only place that knows the concrete classes."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyfuse3
import trio

from fusestripe.cache.store import CacheStore
from fusestripe.config import Route, Settings
from fusestripe.errors import FusestripeError, MountError, OriginUnavailable
from fusestripe.kernel import mounting
from fusestripe.kernel.operations import Operations, Ownership
from fusestripe.launch import Order, read_order, report
from fusestripe.namespace.routes import RouteTable
from fusestripe.namespace.tree import Tree
from fusestripe.origins.base import Origin, OriginOptions
from fusestripe.origins.registry import open_origin
from fusestripe.origins.retry import retried
from fusestripe.reader import Reader
from fusestripe.stripes.fetch import Fetcher
from fusestripe.stripes.memory import BufferPool
from fusestripe.stripes.resident import ResidentStripes
from fusestripe.stripes.tuning import stripes_in_flight
from fusestripe.telemetry.answers import Answers
from fusestripe.telemetry.control import serve, socket_path
from fusestripe.telemetry.status import Feature

__all__ = ["main"]

log = logging.getLogger("fusestripe")

# An endpoint that does not answer at all must not keep `mount` waiting for longer (seconds).
CHECK_SECONDS = 12.0
# For this long after the first failure a check is tried again (seconds).
CHECK_AGAIN_SECONDS = 2.0
# Stripes that nobody has read for this long leave the memory (seconds).
TRIM_SECONDS = 10.0
# Requests the kernel may have under way here at once; each waits in a task of its own.
MAX_TASKS = 1000


def main() -> int:
    """Serve the order on stdin until unmounted or told to end; the exit status."""
    order = read_order(sys.stdin.buffer)
    logging.basicConfig(
        level=order.settings.mount.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        failure = trio.run(_run, order)
    except FusestripeError as error:
        failure = error
    if failure is not None:
        log.error("%s", failure)
        report(order.ready_fd, failure)
    return 0 if failure is None else 1


async def _run(order: Order) -> FusestripeError | None:
    """What kept the tree from answering, or None after a whole life."""
    settings = order.settings
    origins = await _connect(settings.routes)
    cache = await trio.to_thread.run_sync(_open_cache, settings)
    failure = None
    async with trio.open_nursery() as services:
        daemon = _Daemon(order, origins, cache, services)
        try:
            await daemon.live()
        except FusestripeError as error:
            failure = error
        services.cancel_scope.cancel()
    cache.close()
    for origin in origins.values():
        origin.close()
    return failure


async def _connect(routes: Sequence[Route]) -> dict[str, Origin]:
    """The origin of each route by its path in the tree, each checked. Raises the first error."""
    origins = {route.path.strip("/"): _open(route) for route in routes}
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
        raise failures[0]
    return origins


def _open(route: Route) -> Origin:
    options = OriginOptions(
        endpoint=route.endpoint or None,
        region=route.region or None,
        profile=route.profile or None,
        anonymous=route.anonymous,
    )
    return open_origin(route.source, options)


def _open_cache(settings: Settings) -> CacheStore:
    return CacheStore(
        Path(settings.cache.dir),
        stripe_size=settings.stripes.size,
        size=settings.cache.size,
        reserve=settings.cache.reserve,
    )


class _Daemon:
    """One mount from its first to its last request."""

    def __init__(
        self, order: Order, origins: dict[str, Origin], cache: CacheStore, services: trio.Nursery
    ) -> None:
        settings = order.settings
        self._order = order
        self._origins = origins
        self._cache = cache
        self._pool = BufferPool(settings.stripes.memory, settings.stripes.size)
        self._stripes = ResidentStripes(self._pool, services)
        self._fetcher = Fetcher(threads=self._pool.buffers, timeout=settings.mount.timeout)
        self._reader = Reader(
            stripes=self._stripes,
            pool=self._pool,
            fetcher=self._fetcher,
            cache=cache,
            stripe_size=settings.stripes.size,
            count=stripes_in_flight(settings.stripes.count),
        )
        self._tree = Tree(
            RouteTable(origins),
            services,
            ttl=settings.metadata.ttl,
            negative_ttl=settings.metadata.negative_ttl,
            timeout=settings.mount.timeout,
        )
        self._operations = Operations(
            self._tree,
            self._reader,
            ownership=Ownership(uid=os.getuid(), gid=os.getgid()),
            started_ns=time.time_ns(),
        )
        self._answers = Answers(
            mountpoint=order.mountpoint,
            cache_dir=settings.cache.dir,
            origins=origins,
            tree=self._tree,
            reader=self._reader,
            pool=self._pool,
            fetcher=self._fetcher,
            cache=cache,
            inodes=self._operations.count_inodes,
        )

    async def live(self) -> None:
        """Mount, say so, serve, unmount. Raises MountError where it cannot be mounted."""
        mountpoint = self._order.mountpoint
        try:
            pyfuse3.init(self._operations, mountpoint, self._mount_options())
        except RuntimeError as error:
            raise MountError(f"{mountpoint} cannot be mounted: {error}", mend="fusestripe doctor") from None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_at_signal, nursery.cancel_scope)
                nursery.start_soon(self._trim)
                await nursery.start(serve, socket_path(mountpoint), self._answers.handlers())
                nursery.start_soon(self._announce)
                await pyfuse3.main(max_tasks=MAX_TASKS)
                nursery.cancel_scope.cancel()
        finally:
            pyfuse3.close(unmount=True)

    def _mount_options(self) -> set[str]:
        routes = self._order.settings.routes
        source = routes[0].source if len(routes) == 1 else "fusestripe"
        fsname = source.replace(",", "\\,")
        options = {*pyfuse3.default_options, "ro", "subtype=fusestripe", f"fsname={fsname}"}
        if self._order.settings.mount.allow_other:
            options.add("allow_other")
        return options

    async def _announce(self) -> None:
        mountpoint = self._order.mountpoint
        await trio.to_thread.run_sync(os.stat, mountpoint)
        why_not = await trio.to_thread.run_sync(mounting.raise_read_ahead, mountpoint)
        self._answers.features = (Feature("read-ahead", not why_not, why_not),)
        log.info("%s is mounted", mountpoint)
        report(self._order.ready_fd)

    async def _end_at_signal(self, scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async for number in signals:
                log.info("%s: ending", signal.Signals(number).name)
                scope.cancel()
                return

    async def _trim(self) -> None:
        while True:
            await trio.sleep(TRIM_SECONDS)
            self._stripes.trim()


if __name__ == "__main__":
    sys.exit(main())
