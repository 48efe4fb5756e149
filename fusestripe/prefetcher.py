"""Bringing whole files and trees into the cache before they are asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Literal

import msgspec
import trio

from fusestripe.errors import FusestripeError
from fusestripe.namespace.tree import Found, Tree
from fusestripe.reader import Reader

__all__ = ["Report", "State", "prefetch", "walk"]

State = Literal["started", "running", "done", "failed"]

# Files at once: enough to hide the round trips of small ones; large ones share the memory budget.
FILES_AT_ONCE = 8


class Report(msgspec.Struct, frozen=True):
    """Where one file stands: ``done`` of ``size`` bytes are in the cache and checked.

    ``error`` and ``mend`` say why a file failed; a path of which nothing else is known has size 0.
    """

    path: str
    state: State
    size: int = 0
    done: int = 0
    error: str = ""
    mend: str = ""


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


async def prefetch(tree: Tree, reader: Reader, paths: Sequence[str], send: Send, *, check: bool) -> None:
    """Bring the files at and below ``paths`` into the cache, telling ``send`` how each goes.

    With ``check`` nothing is fetched: a file of which not every byte is in the cache and right has failed.
    """
    slots = trio.CapacityLimiter(FILES_AT_ONCE)
    async with trio.open_nursery() as nursery:

        async def one(found: Found) -> None:
            async with slots:
                await _one(tree, reader, found, send, check=check)

        for path in paths:
            try:
                async for found in walk(tree, path):
                    nursery.start_soon(one, found)
            except FusestripeError as error:
                await send(Report(path, "failed", error=error.message, mend=error.mend))


async def _one(tree: Tree, reader: Reader, found: Found, send: Send, *, check: bool) -> None:
    path, size = found.path, found.entry.size
    await send(Report(path, "started", size))
    place = tree.place(path)
    assert place is not None
    version = tree.version(path, found.entry)
    done = 0
    moved = trio.Event()

    def report(length: int) -> None:
        nonlocal done
        done += length
        moved.set()

    async def tell() -> None:
        nonlocal moved
        while True:
            await moved.wait()
            moved = trio.Event()
            await send(Report(path, "running", size, done))
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell)
        bring = reader.check if check else reader.prefetch
        failure = await _outcome(bring(place.origin, version, report))
        nursery.cancel_scope.cancel()
    if failure is None:
        await send(Report(path, "done", size, done))
    else:
        await send(Report(path, "failed", size, done, failure.message, failure.mend))


async def _outcome(work: Awaitable[None]) -> FusestripeError | None:
    """Errors inside a nursery would come out wrapped."""
    try:
        await work
    except FusestripeError as error:
        return error
    return None
