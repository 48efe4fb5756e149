"""The daemon: mounts the tree, serves it and unmounts."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from functools import partial

import trio

from fusestripe.engine import Engine, connect, open_cache
from fusestripe.errors import FusestripeError
from fusestripe.kernel import mounting
from fusestripe.kernel.attach import MountOptions
from fusestripe.kernel.operations import Operations, Ownership
from fusestripe.kernel.session import Session, mount_session
from fusestripe.launch import Order, discard_log, read_order, report
from fusestripe.telemetry.control import serve, socket_path
from fusestripe.telemetry.service import ControlService
from fusestripe.telemetry.status import Feature

__all__ = ["main"]

log = logging.getLogger("fusestripe")


def main() -> int:
    """Serve the order on stdin until unmounted or told to end; the exit status."""
    order = read_order(sys.stdin.buffer)
    # What is imported stays; without this the collector looks at all of it again and again while reads wait.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    log.setLevel(order.settings.mount.log_level.upper())
    failure = trio.run(_run, order)
    if failure is not None:
        log.error("%s", failure)
        report(order.ready_fd, failure)
    discard_log(order)
    return 0 if failure is None else 1


async def _run(order: Order) -> FusestripeError | None:
    """What kept the tree from answering, or None after a whole life.

    An error inside a nursery would come out wrapped; so it is returned.
    """
    try:
        origins = await connect(order.settings.routes, timeout=order.settings.mount.timeout)
        cache = await open_cache(order.settings)
    except FusestripeError as error:
        return error
    failure = None
    async with trio.open_nursery() as services:
        engine = Engine(order.settings, origins, cache, services)
        try:
            await _live(order, engine, services)
        except FusestripeError as error:
            failure = error
        services.cancel_scope.cancel()
    engine.close()
    return failure


async def _live(order: Order, engine: Engine, services: trio.Nursery) -> None:
    """Mount, say so, serve, unmount. Raises MountError where it cannot be mounted."""
    build = partial(
        Operations,
        engine.tree,
        engine.reader,
        ownership=Ownership(uid=os.getuid(), gid=os.getgid()),
        started_ns=time.time_ns(),
    )
    # Until the mount is gone: a second signal must not kill what the first has told to unmount.
    with (
        trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals,
        mount_session(
            order.mountpoint,
            MountOptions(_source_of(order), order.settings.mount.allow_other),
            lambda offer: build(offer=offer),
            engine.reader,
            services,
            channel=order.settings.mount.channel,
            passthrough=order.settings.mount.passthrough,
        ) as session,
    ):
        service = ControlService(
            order.mountpoint,
            engine,
            inodes=session.operations.count_inodes,
            passed_through=session.passed_through,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_at, signals, nursery.cancel_scope)
            await nursery.start(serve, socket_path(order.mountpoint), service.handlers())
            nursery.start_soon(_announce, order, service, session)
            await session.serve()
            nursery.cancel_scope.cancel()


def _source_of(order: Order) -> str:
    """What mount(8) and df show as mounted."""
    routes = order.settings.routes
    return routes[0].source if len(routes) == 1 else "fusestripe"


async def _announce(order: Order, service: ControlService, session: Session) -> None:
    """Say that the tree answers, once it does."""
    await trio.to_thread.run_sync(os.stat, order.mountpoint)
    no_read_ahead = await trio.to_thread.run_sync(mounting.raise_read_ahead, order.mountpoint)

    def features() -> tuple[Feature, ...]:
        reasons = {
            "read-ahead": no_read_ahead,
            "channel": session.channel(),
            "passthrough": session.passthrough(),
        }
        return tuple(Feature(name, not why_not, why_not) for name, why_not in reasons.items())

    service.features = features
    log.info("%s is mounted", order.mountpoint)
    report(order.ready_fd)


async def _end_at(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for number in signals:
        log.info("%s: ending", signal.Signals(number).name)
        scope.cancel()


if __name__ == "__main__":
    sys.exit(main())
