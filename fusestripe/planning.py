"""What a prefetch would do, before it does it: files and bytes, where from, and whether there is room."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import msgspec
import trio

from fusestripe.cache.eviction import Forecast
from fusestripe.errors import FusestripeError
from fusestripe.namespace.tree import Found, Tree
from fusestripe.openfiles import OpenFiles
from fusestripe.origins.base import Origin
from fusestripe.prefetcher import Report, outermost, walk
from fusestripe.reader import Reader
from fusestripe.selection import Choice, Chooser, Selected, Wanted
from fusestripe.units import ObjectVersion, format_size

__all__ = [
    "Absent",
    "Plan",
    "PlannedFile",
    "Share",
    "Shares",
    "among",
    "from_origins",
    "make_plan",
    "plan_wanted",
]

LOOKED_AT_ONCE = 8
"""Ledgers that are read at once."""


class PlannedFile(msgspec.Struct, frozen=True):
    """A file of ``size`` bytes, of which ``cached`` are in the cache already."""

    path: str
    size: int
    cached: int


class Absent(msgspec.Struct, frozen=True):
    """A version of which ``missing`` bytes would have to be fetched."""

    origin: Origin
    version: ObjectVersion
    missing: int


class Share(msgspec.Struct, frozen=True):
    """What would come from one place, an origin by its URL or the peers, and of how many files."""

    kind: Literal["origin", "peers"]
    source: str
    files: int
    bytes: int


Shares = Callable[[Sequence[Absent]], Awaitable[Sequence[Share]]]
"""Tells where what is absent would come from."""


class Plan(msgspec.Struct, frozen=True):
    """What a prefetch of ``files`` files would do for one cache, the one in ``directory``.

    Of their ``bytes`` so many are ``cached`` already; the others would come as ``shares`` say. ``room`` is
    None where the cache does not tell, and then nothing ``fits``; ``why`` says why it does not. ``failures``
    are Reports of paths of which nothing is known; ``choices`` how the files were chosen.
    """

    directory: str
    files: int
    bytes: int
    cached: int
    shares: tuple[Share, ...]
    room: Forecast | None
    fits: bool
    why: str
    mend: str
    each: tuple[PlannedFile, ...]
    choices: tuple[Choice, ...] = ()
    failures: tuple[Report, ...] = ()


async def make_plan(
    tree: Tree, files: OpenFiles, selected: Selected, *, directory: str, shares: Shares | None = None
) -> Plan:
    """The plan for what was ``selected``. Fetches nothing, and is no use of what is in the cache.

    ``directory`` is the cache's. ``shares`` is ``from_origins`` unless there are other places.
    """
    failures = list(selected.failures)
    found: list[Found] = []
    for path in outermost(selected.paths):
        try:
            found += [one async for one in walk(tree, path)]
        except FusestripeError as error:
            failures.append(Report(path, "failed", error=error.message, mend=error.mend))
    versions = [tree.version(one.path, one.entry) for one in found]
    cached = await _present(files, versions)
    absent = [
        Absent(_origin(tree, one), version, version.size - there)
        for one, version, there in zip(found, versions, cached, strict=True)
        if there < version.size
    ]
    need = sum(one.missing for one in absent)
    room = await files.forecast(need, versions)
    why, mend = _refusal(room)
    return Plan(
        directory=directory,
        files=len(found),
        bytes=sum(version.size for version in versions),
        cached=sum(cached),
        shares=tuple(await (shares or from_origins)(absent)),
        room=room,
        fits=not why,
        why=why,
        mend=mend,
        each=tuple(
            PlannedFile(one.path, version.size, there)
            for one, version, there in zip(found, versions, cached, strict=True)
        ),
        choices=selected.choices,
        failures=tuple(failures),
    )


async def plan_wanted(
    tree: Tree,
    reader: Reader,
    files: OpenFiles,
    paths: Sequence[str],
    wanted: Wanted,
    *,
    directory: str,
    shares: Shares | None = None,
) -> Plan:
    """The plan for what ``wanted`` means at ``paths``: see ``prefetch_wanted`` and ``make_plan``."""
    selected = await Chooser(tree, reader).select(paths, wanted)
    return await make_plan(tree, files, selected, directory=directory, shares=shares)


async def from_origins(absent: Sequence[Absent]) -> list[Share]:
    """Everything from the origin of its route."""
    by_url: dict[str, list[int]] = {}
    for one in absent:
        by_url.setdefault(one.origin.url, []).append(one.missing)
    return [Share("origin", url, len(missing), sum(missing)) for url, missing in sorted(by_url.items())]


def among(nodes: int) -> Shares:
    """Where ``nodes`` bring it together: each stripe comes from its origin to one of them, and from there on.

    Who gets which is told by the stripes' names; a plan says how much that is on the average.
    """

    async def shares(absent: Sequence[Absent]) -> list[Share]:
        alone = await from_origins(absent)
        own = [msgspec.structs.replace(share, bytes=-(-share.bytes // nodes)) for share in alone]
        rest = sum(share.bytes for share in alone) - sum(share.bytes for share in own)
        others = f"{nodes - 1} other node{'' if nodes == 2 else 's'}"
        return [*own, Share("peers", others, len(absent), rest)] if absent and nodes > 1 else alone

    return shares


async def _present(files: OpenFiles, versions: Sequence[ObjectVersion]) -> list[int]:
    """How much of each the cache has; of what cannot be looked at nothing."""
    there = [0] * len(versions)
    slots = trio.Semaphore(LOOKED_AT_ONCE)

    async def look(number: int) -> None:
        try:
            there[number] = await files.present_bytes(versions[number])
        except FusestripeError:
            pass
        finally:
            slots.release()

    async with trio.open_nursery() as nursery:
        for number in range(len(versions)):
            await slots.acquire()
            nursery.start_soon(look, number)
    return there


def _origin(tree: Tree, found: Found) -> Origin:
    place = tree.place(found.path)
    assert place is not None
    return place.origin


def _refusal(room: Forecast | None) -> tuple[str, str]:
    """Why there is no room, and the mend; "" where there is."""
    if room is None:
        return "the cache does not say how much it holds", "fusestripe status tells why"
    if room.fits:
        return "", ""
    if room.kept + room.need > room.limit:
        taken = f", and {format_size(room.kept)} of it cannot be evicted" if room.kept else ""
        what = f"{format_size(room.need)} more are too much for a cache of {format_size(room.limit)}{taken}"
        return what, "name fewer files, raise --cache-size, or 'fusestripe cache unpin' what is not needed"
    disk = room.free + room.used - room.kept
    return (
        f"{format_size(room.need)} more are too much for the disk, which has {format_size(disk)} for them",
        "name fewer files, free some space on that disk, or choose another with --cache-dir",
    )
