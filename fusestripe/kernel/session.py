"""One mount from its beginning to its end: through the channel where that is possible, else plain pyfuse3."""

from __future__ import annotations

import logging
import os
import platform
import select
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import msgspec
import pyfuse3
import trio

from fusestripe.errors import MountError
from fusestripe.kernel import mounting
from fusestripe.kernel.attach import MountOptions, attach
from fusestripe.kernel.channel import Channel
from fusestripe.kernel.interrupts import sees_readers
from fusestripe.kernel.operations import Operations
from fusestripe.kernel.passthrough import Passthrough
from fusestripe.kernel.reads import Reads
from fusestripe.kernel.support import channel_refusal, passthrough_refusal
from fusestripe.reader import Reader
from fusestripe.units import ObjectVersion

__all__ = ["Session", "mount_session"]

log = logging.getLogger(__name__)

# Requests the kernel may have under way at pyfuse3 at once, each in a task of its own; and tasks that stay
# when there are fewer: with pyfuse3's one, every request starts a task and ends another.
MAX_TASKS = 1000
MIN_TASKS = 64
# How often it is looked whether the connection of plain pyfuse3 still stands (seconds).
LOOK = 1.0


class Session(msgspec.Struct, frozen=True):
    """A mount that stands. ``serve`` answers requests until it is taken away.

    ``channel`` and ``passthrough`` say "" where that is on, else why it is off by now; ``passed_through`` are
    the open versions that the kernel reads itself.
    """

    operations: Operations
    serve: Callable[[], Awaitable[None]]
    channel: Callable[[], str]
    passthrough: Callable[[], str]
    passed_through: Callable[[], frozenset[ObjectVersion]]


Offer = Callable[[int, int], None]
Build = Callable[["Offer | None"], Operations]
"""Makes the operations; they are told of nothing where there is no passthrough (see Operations)."""


@contextmanager
def mount_session(
    mountpoint: str,
    options: MountOptions,
    build: Build,
    reader: Reader,
    nursery: trio.Nursery,
    *,
    channel: bool,
    passthrough: bool,
) -> Iterator[Session]:
    """Mount on ``mountpoint`` for the time of the block, whatever is open there at its end.

    ``channel`` and ``passthrough``: whether they are wanted. Raises MountError.
    """
    release = platform.release()
    no_channel = channel_refusal(release, wanted=channel)
    if no_channel:
        operations = build(None)
        with _plain(mountpoint, options, operations) as device:
            yield Session(
                operations,
                serve=lambda: _serve_until(partial(_gone, device)),
                channel=lambda: no_channel,
                passthrough=lambda: "it takes the channel",
                passed_through=frozenset,
            )
        return
    no_passthrough = passthrough_refusal(release, mounting.has_sys_admin(), wanted=passthrough)
    with _channelled(mountpoint, options, build, reader, nursery, no_passthrough) as session:
        yield session


@contextmanager
def _plain(mountpoint: str, options: MountOptions, operations: Operations) -> Iterator[int]:
    """The device that pyfuse3 has opened."""
    before = _devices()
    _init(operations, mountpoint, {*pyfuse3.default_options, *options.fusermount()})
    try:
        (device,) = _devices() - before
        yield device
    finally:
        pyfuse3.close(unmount=True)


@contextmanager
def _channelled(
    mountpoint: str,
    options: MountOptions,
    build: Build,
    reader: Reader,
    nursery: trio.Nursery,
    no_passthrough: str,
) -> Iterator[Session]:
    gone = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def end() -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(gone.set)

    with ExitStack() as stack:
        device = attach(mountpoint, options)
        mount = mounting.find_mount(mountpoint)
        stack.callback(_take_away, mount)  # whatever fails from here on
        channel = Channel(device, end)
        passthrough = Passthrough(device, no_passthrough)
        operations = build(None if no_passthrough else passthrough.offer)
        reads = Reads(channel, reader, operations.handle_of, operations.read_handle, nursery)
        _init(operations, channel.give_far_end(), set(pyfuse3.default_options))
        stack.callback(channel.close)
        stack.callback(_take_away, mount)
        stack.callback(reads.close)
        stack.callback(pyfuse3.close, unmount=False)
        channel.start(reads, passthrough)
        if sees_readers():
            nursery.start_soon(reads.watch)
        yield Session(
            operations,
            serve=lambda: _serve_until(gone.wait),
            channel=lambda: "",
            passthrough=lambda: passthrough.why_not,
            passed_through=lambda: operations.versions_at(passthrough.inodes()),
        )


def _init(operations: Operations, where: str, options: set[str]) -> None:
    try:
        pyfuse3.init(operations, where, options)
    except RuntimeError as error:
        raise MountError(f"{where} cannot be mounted: {error}", mend="fusestripe doctor") from None


async def _serve_until(gone: Callable[[], Awaitable[None]]) -> None:
    """Does not wait for requests under way once the mount is ``gone``: nobody waits for their answers."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_after, gone, nursery.cancel_scope)
        await pyfuse3.main(min_tasks=MIN_TASKS, max_tasks=MAX_TASKS)
        nursery.cancel_scope.cancel()


async def _cancel_after(gone: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
    await gone()
    scope.cancel()


async def _gone(device: int) -> None:
    """Return once ``device`` has no connection any more, which poll(2) says whatever it is asked for."""
    poll = select.poll()
    poll.register(device, 0)
    while not poll.poll(0):
        await trio.sleep(LOOK)


def _devices() -> set[int]:
    """The descriptors of this process that are FUSE devices."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "/dev/fuse":
                found.add(int(name))
    return found


def _take_away(mount: mounting.Mount | None) -> None:
    """Detach ``mount`` if it still stands, its connection aborted or not; never one that came after it."""
    stands = mounting.find_mount(mount.mountpoint) if mount is not None else None
    if mount is None or stands is None or stands.device != mount.device:
        return
    try:
        mounting.detach(mount.mountpoint, lazy=True)
    except MountError as error:
        log.warning("%s", error)
