"""READ as a use case: clamp, plan, cache hit or fetch, reply. Knows nothing of FUSE."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeAlias

import msgspec
import trio

from fusestripe.cache.threads import DiskHangs, DiskThreads, NoThread
from fusestripe.errors import CacheError, VersionChanged
from fusestripe.openfiles import OpenFile, OpenFiles
from fusestripe.origins.base import Origin
from fusestripe.readback import ReadBack
from fusestripe.smallreads import SMALL, SmallReads, pages_at_hand
from fusestripe.stripes.fetch import Fetcher
from fusestripe.stripes.memory import BufferPool
from fusestripe.stripes.plan import Piece, pieces, stripe_length
from fusestripe.stripes.readahead import AccessPattern
from fusestripe.stripes.resident import ResidentStripes, Stripe
from fusestripe.units import ObjectVersion
from fusestripe.windows import Windows

__all__ = ["Handle", "ReadStatistics", "Reader"]

log = logging.getLogger(__name__)

# Stripes loaded ahead from the cache disk, which needs no more to be kept busy.
LOADS_AHEAD = 4


class Peers(Protocol):
    """Other members, who may have stripes of ours."""

    async def bring(self, stripe: Stripe) -> None:
        """Fill ``stripe`` as far as they have it or its owner gets it."""
        ...

    async def around(self, stripe: Stripe) -> None:
        """Fill it from any who has all of it: the origin does not give it."""
        ...


Data: TypeAlias = "memoryview | bytes | bytearray"


class ReadStatistics(msgspec.Struct, frozen=True):
    """Reads answered since the start, their bytes, and how many failed."""

    count: int
    bytes: int
    errors: int


class Handle:
    """One open of a version: what a reader holds."""

    __slots__ = ("file", "pattern")

    def __init__(self, file: OpenFile, pattern: AccessPattern) -> None:
        self.file = file
        self.pattern = pattern

    @property
    def version(self) -> ObjectVersion:
        """The version this handle reads, whatever the path holds by now."""
        return self.file.version


class Reader:
    """Serves reads from memory, the cache and the origins, and fetches ahead of them.

    ``windows`` says how far; ``disk`` has the threads that wait for the cache's disk; ``peers`` are asked
    before the origin.
    """

    def __init__(
        self,
        *,
        stripes: ResidentStripes,
        pool: BufferPool,
        fetcher: Fetcher,
        files: OpenFiles,
        small: SmallReads,
        disk: DiskThreads,
        read_back: ReadBack,
        windows: Windows,
        stripe_size: int,
        peers: Peers | None = None,
    ) -> None:
        self._stripes = stripes
        self._pool = pool
        self._fetcher = fetcher
        self._files = files
        self._small = small
        self._stripe_size = stripe_size
        self._windows = windows
        self._disk = disk
        self._read_back = read_back
        self._peers = peers
        self._reads = self._bytes = self._errors = 0
        # Over the patterns of handles and the counters, which any thread may touch. Never held for long.
        self._lock = threading.Lock()
        self._token = trio.lowlevel.current_trio_token()

    async def open(self, origin: Origin, version: ObjectVersion) -> Handle:
        """A handle that reads ``version`` and nothing else. Asks the origin nothing."""
        file = await self._files.hold(origin, version)
        pattern = AccessPattern(version.size, max_ahead=self._pool.buffers * self._stripe_size)
        file.patterns.add(pattern)
        return Handle(file, pattern)

    async def show_whole(self, handle: Handle, look: Callable[[int], None]) -> None:
        """Where every stripe is in the cache and checked, have ``look`` see a descriptor of the data."""
        cached = handle.file.cached
        if cached is None or not cached.all_verified:
            return

        def show() -> None:
            data = cached.open_data()
            try:
                look(data)
            finally:
                os.close(data)

        with suppress(CacheError):  # whoever reads it will find out, and say so
            await self._disk.run(show)

    def check(self, handle: Handle) -> None:
        """Have a whole file checked that another daemon saved, so that the kernel may read it."""
        cached = handle.file.cached
        if cached is not None and cached.complete and not cached.all_verified:
            self._read_back.begin(handle.file)

    async def close(self, handle: Handle) -> None:
        """Let go of the handle; stripes on their way still arrive in the cache."""
        handle.file.patterns.discard(handle.pattern)
        await self._files.let_go(handle.file)

    async def read(self, handle: Handle, offset: int, length: int) -> Data:
        """The bytes from ``offset`` on, ``length`` of them or what there is before the end of the file.

        Valid until the caller's next checkpoint: a view of a stripe's memory is not copied. Raises
        OriginError where the bytes cannot be had.
        """
        file = handle.file
        length = max(0, min(length, file.version.size - offset))
        if length == 0:
            return b""
        self._windows.touch(file)
        try:
            data = await self._read(handle, offset, length)
        except Exception as error:
            self._errors += 1  # on the event loop only
            file.changed = file.changed or isinstance(error, VersionChanged)
            raise
        with self._lock:
            self._reads += 1
            self._bytes += length
        return data

    def look(self, handle: Handle, offset: int, length: int) -> Data | None:
        """Like ``read``, from any thread, where the bytes are in memory: ours, or a checked file's pages.

        None: they are not, and ``read`` has to be asked. Waits for nothing, not for the cache's disk either.
        The bytes stay as long as anything looks at the view. ``looked`` has to be told what was found.
        """
        file = handle.file
        length = max(0, min(length, file.version.size - offset))
        if length == 0:
            return b""
        index, start = divmod(offset, self._stripe_size)
        stop = start + length
        if stop > self._stripe_size:
            return None
        found = self._stripes.look((file.version, index), start, stop)
        data = pages_at_hand(file, index, offset, length) if found is None else found
        if data is not None:
            with self._lock:  # before the reply, after which others may observe what follows
                handle.pattern.observe(offset, length)
                self._reads += 1
                self._bytes += length
        return data

    def looked(self, handle: Handle, offset: int, length: int) -> None:
        """From any thread: ``look`` had these bytes and the reader has them now; read-ahead follows."""
        if not length:
            return
        file = handle.file
        with self._lock:
            position = self._position(handle.pattern)
            moved = file.looked_at != position
            file.looked_at = position
        ended = None
        if (offset + length) % self._stripe_size == 0 or offset + length == file.version.size:
            ended = offset // self._stripe_size
        # Once a position: what keeps read-ahead back now, a stripe that comes, looks ahead again itself.
        if moved or ended is not None:
            self._soon(self._passed, file, position, ended)

    def _passed(self, file: OpenFile, position: tuple[int, int], ended: int | None) -> None:
        """On the event loop: a reader came to ``position``, and to the end of stripe ``ended``."""
        self._windows.touch(file)
        if file.users:
            self._fetch_ahead(file, position)
        if ended is not None:
            self._stripes.release((file.version, ended))

    def _position(self, pattern: AccessPattern) -> tuple[int, int]:
        """The stripes where the latest run stands and where its read-ahead ends."""
        return pattern.position // self._stripe_size, pattern.reach // self._stripe_size

    def _soon(self, call: Callable[..., None], *arguments: Any) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call, *arguments)

    async def _read(self, handle: Handle, offset: int, length: int) -> Data:
        file = handle.file
        with self._lock:
            goes_on = handle.pattern.observe(offset, length)
            position = self._position(handle.pattern)
        plan = list(pieces(offset, length, self._stripe_size))
        if not goes_on and length <= SMALL:
            read = self._read_small
        else:
            read = self._slice
            self._begin_ahead(file, (piece.index for piece in plan[1:]))
        if len(plan) == 1:
            return await read(file, plan[0], position)
        data = bytearray()
        for piece in plan:
            data += await read(file, piece, position)
        return data

    async def _slice(self, file: OpenFile, piece: Piece, position: tuple[int, int]) -> Data:
        stripe = self._stripe(file, piece.index)
        view = None
        if stripe.filled >= piece.stop:
            # Before read-ahead, which may take the memory of a stripe that nobody looks at.
            view = stripe.view[piece.start : piece.stop]
        self._fetch_ahead(file, position)
        if view is None:
            await self._stripes.wait(stripe, piece.stop)
            view = stripe.view[piece.start : piece.stop]
        if piece.stop == stripe.length:
            self._stripes.release(stripe.key)
        return view

    async def _read_small(self, file: OpenFile, piece: Piece, position: tuple[int, int]) -> Data:
        found = await self._small.from_cache(file, piece)
        if found is not None:
            return found
        stripe = self._stripe(file, piece.index)
        if self._small.is_far(file, stripe, piece):
            return await self._small.from_origin(file, stripe, piece)
        return await self._slice(file, piece, position)

    def _stripe(self, file: OpenFile, index: int) -> Stripe:
        key = (file.version, index)
        stripe = self._stripes.find(key)
        if stripe is None:
            stripe = self._begin(file, index, urgent=True)
        return stripe

    def _fetch_ahead(self, file: OpenFile, position: tuple[int, int] | None = None) -> None:
        """Begin the stripes that the file's readers will want next, as far as their share allows.

        ``position``: where the reader stands (``_position``). While that stays the same, and until another
        stripe has come, there is nothing to look for again.
        """
        nothing_new = position is not None and file.served_at == position
        if nothing_new or len(file.in_flight) >= self._windows.in_flight(file) or file.changed:
            return
        began = self._begin_ahead(file, self._wanted(file))
        file.served_at = None if began else position

    def _begin_ahead(self, file: OpenFile, indexes: Iterable[int]) -> int:
        """How many of ``indexes`` were begun; ends where as many are in flight as may be."""
        began = loads = 0
        share = self._windows.in_flight(file)
        for index in indexes:
            if file.present(index):
                loads += 1
                if loads > LOADS_AHEAD:
                    continue
            elif len(file.in_flight) >= share:
                break
            key = (file.version, index)
            if key in self._stripes:
                continue
            length = self._length(file, index)
            if self._stripes.begin_ahead(key, length, partial(self._bring, file)) is None:
                break
            self._count_in(file, index)
            began += 1
        return began

    def _wanted(self, file: OpenFile) -> Iterator[int]:
        with self._lock:
            walks = [walk for pattern in file.patterns for walk in pattern.ahead()]
        return self._windows.wanted(file, walks, lambda index: (file.version, index) in self._stripes)

    def _length(self, file: OpenFile, index: int) -> int:
        return stripe_length(index, file.version.size, self._stripe_size)

    def lend(self, file: OpenFile, index: int) -> Stripe:
        """Stripe ``index`` for another member: here, on its way, or fetched from the origin from now on."""
        return self._stripes.find((file.version, index)) or self._begin(file, index, urgent=True, alone=True)

    def _begin(self, file: OpenFile, index: int, *, urgent: bool, alone: bool = False) -> Stripe:
        key = (file.version, index)
        work = partial(self._bring, file, alone=alone)
        stripe = self._stripes.begin(key, self._length(file, index), work, urgent=urgent)
        self._count_in(file, index)
        return stripe

    def _count_in(self, file: OpenFile, index: int) -> None:
        # Before the work's first step, so that the file cannot go in between; _bring counts out.
        file.users += 1
        if not file.present(index):
            file.in_flight.add(index)

    async def _bring(self, file: OpenFile, stripe: Stripe, *, alone: bool = False) -> None:
        """The work of one stripe: from the cache if it is there and right, else fetched and saved.

        ``alone``: without asking its owner first, since a member takes us for that.
        """
        try:
            try:
                await stripe.provide()
                loaded = await self._load(file, stripe)
                if not loaded:
                    await self._fetch(file, stripe, None if alone else self._peers)
                    stripe.complete()
            finally:
                file.in_flight.discard(stripe.key[1])
            self._fetch_ahead(file)
            if not loaded:
                await self._save(file, stripe)
        finally:
            await self._files.let_go(file)

    async def _load(self, file: OpenFile, stripe: Stripe) -> bool:
        index = stripe.key[1]
        if file.cached is None or not file.cached.present(index):
            return False
        load = partial(file.cached.load, index, stripe.view)
        try:
            loaded = await self._disk.run(load)
        except DiskHangs:
            await self._stripes.renew(stripe)  # the thread left behind may still write into this memory
            return False
        except NoThread:
            return False
        if not loaded:
            return False
        file.from_cache += stripe.length
        stripe.complete()
        return True

    async def _fetch(self, file: OpenFile, stripe: Stripe, peers: Peers | None) -> None:
        """From the members as far as they have it, the rest from the origin."""
        if peers is not None:
            await peers.bring(stripe)
        from_peers = stripe.filled
        if from_peers < stripe.length:
            instead = None if self._peers is None else self._peers.around
            offset = stripe.key[1] * self._stripe_size
            from_peers += await self._fetcher.fetch(file.origin, stripe, offset, instead)
        file.from_peers += from_peers
        file.from_origin += stripe.length - from_peers

    async def _save(self, file: OpenFile, stripe: Stripe) -> None:
        if file.cached is None:
            stripe.unsaved = CacheError(
                f"the cache cannot be used for {file.version}", mend="fusestripe status names the log"
            )
            return
        save = partial(file.cached.save, stripe.key[1], stripe.view)
        try:
            saved = await self._disk.run(save, background=True)
            stripe.unsaved = saved.refusal(file.version)
            if file.cached.complete:
                self._read_back.begin(file)
        except CacheError as error:
            # The store says it in the log and in its health; the reader has its bytes.
            stripe.unsaved = error
            log.debug("stripe %d of %s is not saved: %s", stripe.key[1], file.version, error)

    async def bring(self, file: OpenFile, index: int) -> None:
        """Return when stripe ``index`` was loaded or saved. Raises what kept it from coming or being saved.

        That is an OriginError or a CacheError. The stripe may be gone again, if the cache's files are.
        """
        key = (file.version, index)
        if not file.present(index):
            # One that is only in memory could not be saved in its time, or was cleared from the disk since.
            self._stripes.discard(key)
        stripe = self._stripes.find(key) or self._begin(file, index, urgent=False)
        await stripe.settled.wait()
        if stripe.error is not None:
            raise stripe.error
        self._stripes.release(key)
        if stripe.unsaved is not None and not file.present(index):
            raise stripe.unsaved

    def statistics(self) -> ReadStatistics:
        """What was read so far."""
        return ReadStatistics(count=self._reads, bytes=self._bytes, errors=self._errors)
