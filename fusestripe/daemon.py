"""The daemon: mounts the tree, serves it and unmounts."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import trio

from fusestripe.config import MountSettings
from fusestripe.engine import Engine, connect, join_peers, open_cache
from fusestripe.errors import FusestripeError
from fusestripe.keeper import LEFT
from fusestripe.kernel.kept import Keeping
from fusestripe.kernel.operations import Operations
from fusestripe.kernel.read_ahead import raise_read_ahead
from fusestripe.kernel.session import Session, mount_session
from fusestripe.launch import Order, discard_log, log_path, options_of, read_order, report
from fusestripe.leftovers import spare_cache
from fusestripe.namespace.ownership import Ownership
from fusestripe.telemetry.control import serve
from fusestripe.telemetry.logs import set_up_logs
from fusestripe.telemetry.rundir import socket_path
from fusestripe.telemetry.service import ControlService
from fusestripe.telemetry.status import Feature

if TYPE_CHECKING:
    from fusestripe.peering import Peering

__all__ = ["main"]

log = logging.getLogger("fusestripe")

# At the end the cache disk has so long for what has just been read (seconds).
SAVE_SECONDS = 3.0
# How often the keeper hears that the daemon lives (seconds).
ALIVE_SECONDS = 2.0
# What a daemon ends with that met what nobody foresaw (EX_SOFTWARE of sysexits.h).
BROKEN = 70


def main() -> int:
    """Serve the order on stdin until unmounted or told to end; the exit status."""
    keeping = Keeping.from_environment(os.environ)
    order = read_order(sys.stdin.buffer)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong between members we say ourselves
    # What is imported stays; without this the collector looks at all of it again and again while reads wait.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    set_up_logs(order.mountpoint, order.settings.mount.log_level)
    kept: Mapping[str, int] = {}
    try:
        kept = keeping.take()
        failure = trio.run(_run, order, keeping, kept)
    except FusestripeError as error:
        failure = error
    except Exception:
        log.exception("the daemon is broken")
        return BROKEN
    if failure is not None:
        log.error("%s", failure)
        report(order.ready_fd, failure)
    if failure is None or "state" not in kept:
        discard_log(order)
        shutil.rmtree(spare_cache(order.mountpoint), ignore_errors=True)
    return 0 if failure is None else 1


async def _run(order: Order, keeping: Keeping, kept: Mapping[str, int]) -> FusestripeError | None:
    """What kept the tree from answering, or None after a whole life.

    An error inside a nursery would come out wrapped; so it is returned.
    """
    try:
        # What readers wait for already is not refused because the origin is away for a while.
        timeout, is_first = order.settings.mount.timeout, "state" not in kept
        origins = await connect(order.settings.routes, timeout=timeout, checked=is_first)
        peering = join_peers(order.settings)
        spare = "" if is_first else spare_cache(order.mountpoint)
        cache = await open_cache(order.settings, spare)
    except FusestripeError as error:
        return error
    failure = None
    async with trio.open_nursery() as services:
        engine = Engine(order.settings, origins, cache, services, peering)
        try:
            await _live(order, engine, services, keeping, kept)
        except FusestripeError as error:
            failure = error
        # What was read is paid for: the next mount is to find it. The origin is not waited for.
        with trio.move_on_after(SAVE_SECONDS):
            await engine.stripes.settle()
        services.cancel_scope.cancel()
    engine.close()
    return failure


async def _live(
    order: Order, engine: Engine, services: trio.Nursery, keeping: Keeping, kept: Mapping[str, int]
) -> None:
    """Mount, say so, serve, unmount. Raises MountError where it cannot be mounted."""
    build = partial(Operations, engine.tree, engine.reader, _ownership_of(order.settings.mount))
    # Until the mount is gone: a second signal must not kill what the first has told to unmount.
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with mount_session(
            order.mountpoint,
            options_of(order.settings),
            build,
            engine.reader,
            services,
            channel=order.settings.mount.channel,
            passthrough=order.settings.mount.passthrough,
            started_ns=time.time_ns(),
            keeping=keeping,
            kept=kept,
            is_given=bool(order.given),
        ) as session:
            await _serve(order, engine, session, signals, keeping)


async def _serve(
    order: Order, engine: Engine, session: Session, signals: AsyncIterator[int], keeping: Keeping
) -> None:
    """Until the mount is gone, or a signal ends it."""

    @asynccontextmanager
    async def successor() -> AsyncIterator[None]:
        async with keeping.successor():
            with trio.move_on_after(SAVE_SECONDS):
                await engine.stripes.settle()
            yield

    service = ControlService(
        order.mountpoint,
        engine,
        inodes=session.operations.count_inodes,
        passed_through=session.passed_through,
        features=partial(_features, order.mountpoint, session, keeping),
        log="" if order.foreground else log_path(order.mountpoint),
        successor=successor,
        leave=partial(os._exit, LEFT),
    )

    async def end_at_signal() -> None:
        async for number in signals:
            log.info("%s: ending", signal.Signals(number).name)
            if order.given:  # the mount goes on, and waits for who comes next
                with trio.move_on_after(SAVE_SECONDS):
                    await engine.stripes.settle()
                os._exit(0)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_at_signal)
        nursery.start_soon(keeping.listen)
        nursery.start_soon(_say_alive, keeping)
        if session.is_there:  # else the place, and its socket, are another mount's
            await nursery.start(serve, socket_path(order.mountpoint), service.handlers())
        nursery.start_soon(_announce, order, session, engine.peering, keeping)
        await session.serve()
        keeping.tell("STOPPING=1")
        nursery.cancel_scope.cancel()


def _ownership_of(settings: MountSettings) -> Ownership:
    return Ownership(os.getuid(), os.getgid(), settings.uid, settings.gid, settings.umask)


async def _say_alive(keeping: Keeping) -> NoReturn:
    """For a keeper that would end a daemon in which nothing moves any more."""
    while True:
        keeping.tell("WATCHDOG=1")
        await trio.sleep(ALIVE_SECONDS)


async def _announce(order: Order, session: Session, peering: Peering | None, keeping: Keeping) -> None:
    """Say that the tree answers, once it does."""
    if session.is_there:
        # Whatever ends the daemon meanwhile: these threads wait for what only the daemon can answer.
        await trio.to_thread.run_sync(os.stat, order.mountpoint, abandon_on_cancel=True)
        await trio.to_thread.run_sync(raise_read_ahead, order.mountpoint, abandon_on_cancel=True)
    log.info("%s is mounted", order.mountpoint)
    warning = "" if peering is None else await peering.trouble()
    if warning:
        log.warning("%s", warning)
    if os.getpgid(0) not in (os.getpid(), os.getppid()):  # an automounter's, whose way is open by now
        os.setsid()
    keeping.tell(f"READY=1\nSTATUS={options_of(order.settings).source} at {order.mountpoint}")
    report(order.ready_fd, warning=warning)


def _features(mountpoint: str, session: Session, keeping: Keeping) -> tuple[Feature, ...]:
    reasons = {
        # Who has handed the mount over raises it when it hears that the tree answers.
        "read-ahead": raise_read_ahead(mountpoint) if session.is_there else "the mount is gone",
        "channel": session.channel(),
        "passthrough": session.passthrough(),
        "keeper": session.channel() and "it takes the channel" if keeping else "there is none",
    }
    return tuple(Feature(name, not why_not, why_not) for name, why_not in reasons.items())


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    # All is let go by now. What is left are threads of libraries, which the interpreter would wait for: those
    # of gRPC send to members that may never read on.
    os._exit(status)
