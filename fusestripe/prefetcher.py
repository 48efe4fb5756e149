"""Bringing whole files and trees into the cache before they are asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Literal

import msgspec
import trio

from fusestripe.errors import CacheError, FusestripeError
from fusestripe.namespace.tree import Found, Tree
from fusestripe.openfiles import OpenFile, OpenFiles
from fusestripe.origins.base import Origin
from fusestripe.readback import ReadBack
from fusestripe.reader import Reader
from fusestripe.stripes.plan import spread_out, stripe_count, stripe_length
from fusestripe.stripes.resident import ResidentStripes
from fusestripe.units import ObjectVersion, format_size
from fusestripe.windows import Windows

__all__ = [
    "Headway",
    "NotWhole",
    "Pin",
    "Prefetcher",
    "Report",
    "Send",
    "State",
    "outermost",
    "prefetch",
    "walk",
]

State = Literal["started", "running", "done", "missing", "failed"]

# Files at once: enough to hide the round trips of small ones; large ones share the memory budget.
FILES_AT_ONCE = 8
# Stripes that are put into an order with other nodes at once.
ARRANGED = 256
# Stripes of one file that are read from the cache disk at once where only that is asked for.
CHECKED_AT_ONCE = 8
# A stripe that was saved and comes back wrong is fetched again so many times.
ATTEMPTS = 3
# How often somebody who waits is told how far a file is (seconds).
TELL_SECONDS = 0.1


class NotWhole(CacheError):
    """A file that was only looked at has bytes that are not in the cache."""


class Pin(msgspec.Struct, frozen=True):
    """A pin to be set, that holds ``until`` (seconds since the epoch); None: until it is taken away."""

    until: float | None = None


class Headway:
    """How far one file is, in bytes: those ``checked`` are in the cache and right.

    Of them and of those under way some had to be ``fetched``; the rest were ``cached``. How many of the
    former came ``from_peers`` is known once all are here.
    """

    def __init__(self) -> None:
        self.checked = self.cached = self.from_peers = 0
        self._fetched = 0
        self._under_way: dict[int, Callable[[], int]] = {}

    @property
    def fetched(self) -> int:
        """What origin or peers sent for it, each byte once; of stripes under way what is here of them."""
        return self._fetched + sum(arrived() for arrived in self._under_way.values())

    def begins(self, index: int, arrived: Callable[[], int]) -> None:
        """Stripe ``index`` has to be fetched; ``arrived`` says how many bytes of it are here."""
        self._under_way[index] = arrived

    def came(self, index: int, length: int) -> None:
        """It is here."""
        self._under_way[index] = lambda: length

    def is_right(self, index: int, length: int) -> None:
        """It is in the cache and right, whether it was there already or was fetched."""
        self.checked += length
        if self._under_way.pop(index, None) is None:
            self.cached += length
        else:
            self._fetched += length


Arrange = Callable[[ObjectVersion, Sequence[int]], Sequence[int]]
"""The order in which this node brings some stripes that other nodes of its job bring at the same time."""


class Prefetcher:
    """Brings whole versions into the cache, as much at a time as ``windows`` and the memory budget allow.

    ``arrange``: others bring the same at the same time.
    """

    def __init__(
        self,
        *,
        stripes: ResidentStripes,
        reader: Reader,
        files: OpenFiles,
        read_back: ReadBack,
        windows: Windows,
        stripe_size: int,
        arrange: Arrange | None = None,
    ) -> None:
        self._arrange = arrange
        self._stripes = stripes
        self._reader = reader
        self._files = files
        self._read_back = read_back
        self._stripe_size = stripe_size
        self._windows = windows

    @asynccontextmanager
    async def held(
        self, origin: Origin, version: ObjectVersion, after: AsyncExitStack, *, use: bool = True
    ) -> AsyncIterator[OpenFile]:
        """The open file of ``version``. Where the block does not fail, it is held until ``after`` ends.

        ``use``: as for ``OpenFiles.hold``.
        """
        async with AsyncExitStack() as until:
            file = await self._files.hold(origin, version, use=use)
            until.push_async_callback(self._files.let_go, file)
            yield file
            after.push_async_callback(until.pop_all().aclose)

    async def prefetch(self, file: OpenFile, headway: Headway) -> None:
        """Bring all of ``file`` into the cache and read it back from there once.

        Raises OriginError where the origin fails, CacheError where the cache has no room or does not keep
        what was written.
        """
        await self._for_each_stripe(
            file, partial(self._bring, headway), lambda: self._windows.in_flight(file)
        )

    async def check(self, file: OpenFile, headway: Headway) -> None:
        """Read what the cache has of ``file``. Raises NotWhole unless every byte is there and right."""
        await self._for_each_stripe(file, partial(self._check, headway), lambda: CHECKED_AT_ONCE)
        size = file.version.size
        if headway.checked < size:
            missing = f"{format_size(size - headway.checked)} of {format_size(size)}"
            raise NotWhole(f"{missing} are missing in the cache", mend="prefetch it without --check")

    async def make_sure_of_room(self, files: int, size: int) -> None:
        """Raise CacheError where ``files`` of ``size`` bytes together cannot all be in the cache."""
        capacity = await self._files.capacity()
        if capacity is None or size <= min(capacity.limit, capacity.disk):
            return
        asked = f"{files:,} file{'' if files == 1 else 's'} of {format_size(size)} are more than the"
        if capacity.limit <= capacity.disk:
            raise CacheError(
                f"{asked} {format_size(capacity.limit)} that the cache holds",
                mend="name fewer files, or raise --cache-size",
            )
        raise CacheError(
            f"{asked} {format_size(capacity.disk)} that its disk has for the cache",
            mend="name fewer files, free some space on that disk, or choose another with --cache-dir",
        )

    async def pin(self, file: OpenFile, pin: Pin) -> None:
        """Keep ``file`` from eviction as ``pin`` says. Raises CacheError where the disk fails."""
        await self._files.pin(file, pin.until)

    async def _for_each_stripe(
        self,
        file: OpenFile,
        act: Callable[[OpenFile, int], Awaitable[None]],
        at_once: Callable[[], int],
    ) -> None:
        """Raises the first error, once those stripes that were begun have ended too.

        So nothing of a file that has failed is saved later, when a file that is done may have to make way.
        """
        slots = trio.CapacityLimiter(1)
        errors: list[Exception] = []

        async def one(index: int) -> None:
            try:
                await act(file, index)
            except Exception as error:
                errors.append(error)
            finally:
                slots.release_on_behalf_of(index)

        async with trio.open_nursery() as nursery:
            for index in self._order(file):
                slots.total_tokens = at_once()
                await slots.acquire_on_behalf_of(index)
                if errors:
                    break
                nursery.start_soon(one, index)
        if errors:
            raise errors[0]

    def _order(self, file: OpenFile) -> Iterator[int]:
        """All stripes; as many units, each on servers of its own, side by side as may be in flight."""
        stripes = range(stripe_count(file.version.size, self._stripe_size))
        batch = max(1, self._windows.in_flight(file) * file.unit // self._stripe_size)
        if self._arrange is not None:
            batch = max(batch, ARRANGED)
        for start in range(0, len(stripes), batch):
            some = spread_out(stripes[start : start + batch], (), self._stripe_size, file.unit)
            yield from some if self._arrange is None else self._arrange(file.version, list(some))

    async def _bring(self, headway: Headway, file: OpenFile, index: int) -> None:
        length = self._length(file, index)
        for _attempt in range(ATTEMPTS):
            if not file.present(index):
                headway.begins(index, partial(self._stripes.arrived, (file.version, index)))
                await self._reader.bring(file, index)
                headway.came(index, length)  # its memory may go now
            if file.present(index) and await self._read_back.is_right(file, index):
                headway.is_right(index, length)
                return
        raise CacheError(f"the cache disk does not keep stripe {index} of {file.version}")

    async def _check(self, headway: Headway, file: OpenFile, index: int) -> None:
        if file.present(index) and await self._read_back.is_right(file, index):
            headway.is_right(index, self._length(file, index))

    def _length(self, file: OpenFile, index: int) -> int:
        return stripe_length(index, file.version.size, self._stripe_size)


class Report(msgspec.Struct, frozen=True):
    """Where one file stands: ``done`` of ``size`` bytes are in the cache and checked.

    ``cached`` bytes were there already, ``fetched`` came from origin or peers; of the latter those count too
    that are not checked yet, and of a whole file ``from_peers`` came from other nodes. Of a file that was
    only looked at ``missing`` bytes are not there; it has failed only where nobody could look. ``error`` and
    ``mend`` say why a file failed or what it lacks; a path of which nothing else is known has size 0.
    """

    path: str
    state: State
    size: int = 0
    done: int = 0
    error: str = ""
    mend: str = ""
    cached: int = 0
    fetched: int = 0
    from_peers: int = 0
    missing: int = 0

    @property
    def failure(self) -> str:
        """What failed, and why; by its path once, where ``error`` names it first."""
        return self.error if self.error.startswith(self.path) else f"{self.path}: {self.error}"


Send = Callable[[Report], Awaitable[None]]


async def walk(tree: Tree, path: str) -> AsyncIterator[Found]:
    """The file at ``path``, or every file below it, in the order of names. Raises what the origin raises."""
    found = await tree.stat(path)
    if not found.entry.is_dir:
        yield found
        return
    pending = [path]
    while pending:
        directory = pending.pop()
        listing = await tree.list_dir(directory)
        below = []
        for name in sorted(listing.entries):
            child = f"{directory}/{name}" if directory else name
            entry = listing.entries[name]
            if entry.is_dir:
                below.append(child)
            else:
                yield Found(child, entry, listing.expires)
        pending.extend(reversed(below))


async def prefetch(
    tree: Tree, prefetcher: Prefetcher, paths: Sequence[str], send: Send, *, check: bool, pin: Pin | None
) -> None:
    """Bring the files at and below ``paths`` into the cache, telling ``send`` how each goes.

    What has come is not evicted for what comes later: that does not fit then, and has failed. With ``check``
    nothing is fetched, and nothing counts as used: the reports say what is missing. With ``pin`` every file
    that is done stays in the cache as long as it says.

    Raises CacheError, before anything is fetched, where the cache cannot hold all of them.
    """
    if not check:
        await prefetcher.make_sure_of_room(*await _measure(tree, paths))
    slots = trio.Semaphore(FILES_AT_ONCE)
    async with AsyncExitStack() as whole, trio.open_nursery() as nursery:

        async def one(found: Found) -> None:
            try:
                await _one(tree, partial(_act, prefetcher, whole, check=check, pin=pin), found, send)
            finally:
                slots.release()

        for path in outermost(paths):
            try:
                async for found in walk(tree, path):
                    await slots.acquire()  # here, so that no task waits for each file of a large tree
                    nursery.start_soon(one, found)
            except FusestripeError as error:
                await send(Report(path, "failed", error=error.message, mend=error.mend))


async def _measure(tree: Tree, paths: Sequence[str]) -> tuple[int, int]:
    """How many files there are at and below ``paths``, and their bytes; what fails is told later."""
    files = size = 0
    for path in outermost(paths):
        with suppress(FusestripeError):
            async for found in walk(tree, path):
                files += 1
                size += found.entry.size
    return files, size


def outermost(paths: Iterable[str]) -> list[str]:
    """Those of ``paths`` ("" is the root) that lie in none of the others, each once."""
    chosen = set(paths)
    return [path for path in sorted(chosen) if not any(above in chosen for above in _above(path))]


def _above(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition("/")[0]
        yield path


Act = Callable[[Origin, ObjectVersion, Headway], Awaitable[None]]


async def _act(
    prefetcher: Prefetcher,
    whole: AsyncExitStack,
    origin: Origin,
    version: ObjectVersion,
    headway: Headway,
    *,
    check: bool,
    pin: Pin | None,
) -> None:
    async with prefetcher.held(origin, version, whole, use=not check) as file:
        before = file.from_peers
        await (prefetcher.check if check else prefetcher.prefetch)(file, headway)
        headway.from_peers = file.from_peers - before
        if pin is not None:
            await prefetcher.pin(file, pin)


async def _one(tree: Tree, act: Act, found: Found, send: Send) -> None:
    path, size = found.path, found.entry.size
    await send(Report(path, "started", size))
    place = tree.place(path)
    assert place is not None
    version = tree.version(path, found.entry)
    headway = Headway()

    def report(state: State, failure: FusestripeError | None = None) -> Report:
        error, mend = ("", "") if failure is None else (failure.message, failure.mend)
        return Report(
            path,
            state,
            size,
            headway.checked,
            error,
            mend,
            cached=headway.cached,
            fetched=headway.fetched,
            from_peers=headway.from_peers,
            missing=size - headway.checked if state == "missing" else 0,
        )

    async def tell() -> None:
        told = None
        while True:
            await trio.sleep(TELL_SECONDS)
            now = report("running")
            if now != told:
                await send(now)
            told = now

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell)
        failure = await _outcome(act(place.origin, version, headway))
        nursery.cancel_scope.cancel()
    if failure is None:
        await send(report("done"))
    else:
        await send(report("missing" if isinstance(failure, NotWhole) else "failed", failure))


async def _outcome(work: Awaitable[None]) -> FusestripeError | None:
    """Errors inside a nursery would come out wrapped."""
    try:
        await work
    except FusestripeError as error:
        return error
    return None
