"""One mount from its beginning to its end: through the channel where that is possible, else plain pyfuse3."""

from __future__ import annotations

import logging
import os
import platform
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial

import msgspec
import pyfuse3
import trio

from fusestripe.errors import MountError
from fusestripe.kernel import mounting
from fusestripe.kernel.abi import FUSE_HAS_RESEND, requested_flags
from fusestripe.kernel.attach import MountOptions, attach
from fusestripe.kernel.channel import MESSAGE, THREADS, Channel
from fusestripe.kernel.interrupts import sees_readers
from fusestripe.kernel.journal import Journal, read_past
from fusestripe.kernel.kept import Keeping
from fusestripe.kernel.opens import OpenTable
from fusestripe.kernel.operations import Operations
from fusestripe.kernel.passthrough import Passthrough
from fusestripe.kernel.reads import Reads
from fusestripe.kernel.rights import has_sys_admin
from fusestripe.kernel.support import channel_refusal, passthrough_refusal
from fusestripe.kernel.unanswered import Unanswered, read_unanswered
from fusestripe.kernel.waiting import Waiting
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

    ``is_there``: at its mountpoint, from which it may have been taken while files of it are open.
    ``channel`` and ``passthrough`` say "" where that is on, else why it is off by now; ``passed_through`` are
    the open versions that the kernel reads itself.
    """

    operations: Operations
    serve: Callable[[], Awaitable[None]]
    is_there: bool
    channel: Callable[[], str]
    passthrough: Callable[[], str]
    passed_through: Callable[[], frozenset[ObjectVersion]]


Offer = Callable[[int, int], None]
Build = Callable[[Waiting, "Offer | None", "Journal | None", int], Operations]
"""Makes the operations (see there); the number is the time that directories show, in ns since the epoch."""


@asynccontextmanager
async def mount_session(
    mountpoint: str,
    options: MountOptions,
    build: Build,
    reader: Reader,
    nursery: trio.Nursery,
    *,
    channel: bool,
    passthrough: bool,
    started_ns: int,
    keeping: Keeping,
    kept: Mapping[str, int],
    is_given: bool = False,
) -> AsyncIterator[Session]:
    """Mount on ``mountpoint`` for the time of the block, whatever is open there at its end.

    ``channel`` and ``passthrough``: whether they are wanted. With what ``keeping`` has ``kept`` the mount of
    a daemon before is taken over. It is left to the next where an error ends the block, once it has served;
    always where it ``is_given``, by the process that has made it. Raises MountError.
    """
    release = platform.release()
    no_channel = channel_refusal(release, wanted=channel)
    if no_channel and is_given:
        raise MountError(
            f"a mount that is handed over takes the channel, which is {no_channel}",
            mend="leave -o channel=no away, on Linux 6.5 or newer",
        )
    if no_channel:
        operations = build(_watched(nursery), None, None, started_ns)
        with _plain(mountpoint, options, operations) as device:
            yield Session(
                operations,
                serve=lambda: _serve_until(partial(_gone, device)),
                is_there=True,
                channel=lambda: no_channel,
                passthrough=lambda: "it takes the channel",
                passed_through=frozenset,
            )
        return
    no_passthrough = passthrough_refusal(release, has_sys_admin(), wanted=passthrough)
    place = _Place(mountpoint, options, started_ns, keeping, kept, is_given=is_given)
    async with _channelled(place, build, reader, nursery, no_passthrough) as session:
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


class _Place:
    """Where is mounted, by this daemon or by one before it, and what is to be kept of it.

    ``device`` is the kernel's descriptor; ``mount`` is None once that has another or none there.
    """

    def __init__(
        self,
        mountpoint: str,
        options: MountOptions,
        started_ns: int,
        keeping: Keeping,
        kept: Mapping[str, int],
        *,
        is_given: bool,
    ) -> None:
        self._is_given, self._keeping = is_given, keeping
        self.past = read_past(kept["state"]) if "state" in kept else None
        is_sent_again = self.past is not None and requested_flags(self.past.init) & FUSE_HAS_RESEND
        has_left = "unanswered" in kept and not is_sent_again
        self.left = list(read_unanswered(kept["unanswered"])) if has_left else []
        for name in ("state", "unanswered"):
            if name in kept:
                os.close(kept[name])
        self.has_served = self.past is not None
        self.device = kept["device"] if "device" in kept else attach(mountpoint, options)
        keeping.store("device", self.device)
        self.started_ns = started_ns if self.past is None else self.past.started_ns
        found = mounting.find_mount(mountpoint)
        is_mine = self.past is None or (found is not None and found.device == self.past.device)
        self.mount = found if is_mine and not _is_gone(self.device) else None
        self.journal = Journal(partial(keeping.store, "state"), self.past) if keeping else None
        keep = partial(keeping.store, "unanswered")
        self.noted = Unanswered(keep, self.left, THREADS, MESSAGE) if keeping else None

    def leave(self, error: type[BaseException] | None, *_more: object) -> None:
        """Take the mount away, unless the next daemon is to have it."""
        is_left = error is not None and self.has_served and bool(self._keeping)
        if not is_left and not self._is_given:
            _take_away(self.mount, self.device)
            self.mount = None


@asynccontextmanager
async def _channelled(
    place: _Place,
    build: Build,
    reader: Reader,
    nursery: trio.Nursery,
    no_passthrough: str,
) -> AsyncIterator[Session]:
    gone = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def end() -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(gone.set)

    with ExitStack() as stack:
        stack.push(place.leave)  # whatever fails from here on
        channel = Channel(place.device, end, place.noted)
        passthrough = Passthrough(place.device, no_passthrough)
        offer = None if no_passthrough else passthrough.offer
        waiting = _watched(nursery)
        operations = build(waiting, offer, place.journal, place.started_ns)
        past = place.past
        if past is not None:
            await operations.restore(past)

        def drop(fh: int) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(nursery.start_soon, operations.drop, fh)

        opens = OpenTable(
            passthrough,
            place.journal,
            past,
            started_ns=place.started_ns,
            device=place.mount.device if place.mount is not None else "",
            opened_as=operations.opened_as,
            drop=drop,
        )
        reads = Reads(channel, reader, operations.handle_of, operations.read_handle, waiting, nursery)
        _init(operations, channel.give_far_end(), set(pyfuse3.default_options))
        stack.callback(channel.close)
        stack.push(place.leave)
        if place.journal is not None:
            stack.callback(place.journal.close)
        stack.callback(reads.close)
        stack.callback(pyfuse3.close, unmount=False)
        channel.start(reads, opens, b"" if past is None else past.init, place.left)

        async def serve() -> None:
            place.has_served = True
            await _serve_until(gone.wait)

        yield Session(
            operations,
            serve=serve,
            is_there=place.mount is not None,
            channel=lambda: "",
            passthrough=lambda: passthrough.why_not,
            passed_through=lambda: operations.versions_at(passthrough.inodes()),
        )


def _watched(nursery: trio.Nursery) -> Waiting:
    """Those who wait, looked after where that can be."""
    waiting = Waiting()
    if sees_readers():
        nursery.start_soon(waiting.watch)
    return waiting


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
    """Return once ``device`` has no connection any more."""
    while not _is_gone(device):
        await trio.sleep(LOOK)


def _is_gone(device: int) -> bool:
    """Whether ``device`` has no connection any more, which poll(2) says whatever it is asked for."""
    poll = select.poll()
    poll.register(device, 0)
    return bool(poll.poll(0))


def _devices() -> set[int]:
    """The descriptors of this process that are FUSE devices."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "/dev/fuse":
                found.add(int(name))
    return found


def _take_away(mount: mounting.Mount | None, device: int) -> None:
    """Detach ``mount`` if it still stands, its connection aborted or not; never one that came after it.

    The number of a mount that is gone may be that of the next at once. Where ``device`` has no connection any
    more, the mount that was its own is dead.
    """
    stands = mounting.find_mount(mount.mountpoint) if mount is not None else None
    if mount is None or stands is None or stands.device != mount.device:
        return
    if _is_gone(device) and not mounting.is_dead(mount.mountpoint):
        return
    try:
        mounting.detach(mount.mountpoint, lazy=True)
    except MountError as error:
        log.warning("%s", error)
