"""Which files a prefetch is about: those that were named, the newest whole checkpoint, those of some ranks.

The same for a mount and for URLs: over the tree, and reads of small files. Listings are not older than the
question: what another job has just written counts.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing

import msgspec
import trio

from fusestripe.checkpoints import (
    LATEST,
    TRACKERS,
    Index,
    Part,
    Ranks,
    Tracker,
    Unreadable,
    are_alike,
    is_named_so,
    layout_of,
    missing_from,
    needed_by,
    order,
    parts_of,
    tracked,
)
from fusestripe.checkpoints.dcp import METADATA, needs_metadata
from fusestripe.checkpoints.huggingface import TRAINER_FILES
from fusestripe.checkpoints.indexes import names_in_json, names_in_tag
from fusestripe.errors import FusestripeError, NotFound, OriginError, VersionChanged
from fusestripe.namespace.tree import Listing, Tree
from fusestripe.origins.base import Entry, may_hide
from fusestripe.prefetcher import Pin, Prefetcher, Report, outermost, prefetch
from fusestripe.reader import Reader
from fusestripe.units import format_size, join_url
from fusestripe.unpickling import names_in_pickle

__all__ = ["Choice", "Chooser", "Selected", "SendTold", "Skipped", "Wanted", "prefetch_wanted"]

UNKNOWN = "no checkpoint of a layout that is known"
INDEX_MAXIMUM = 256 << 20
"""Bytes of the largest file that is read to know what a checkpoint has: some million entries of torch's."""
TRACKER_MAXIMUM = 4096
PIECE = 1 << 20
ATTEMPTS = 3
"""A directory that changes while it is looked at is looked at anew so many times."""


class Wanted(msgspec.Struct, frozen=True):
    """What of the paths that are named a prefetch is about, and what happens to it.

    ``latest``: of the checkpoints in each the newest that is whole. ``ranks``: only what these read.
    ``check``: nothing is fetched. ``pin``: what is done stays in the cache.
    """

    check: bool = False
    pin: Pin | None = None
    latest: bool = False
    ranks: Ranks | None = None

    @property
    def chooses(self) -> bool:
        """Whether it is not simply everything."""
        return self.latest or self.ranks is not None


class Skipped(msgspec.Struct, frozen=True):
    """A checkpoint that was not taken, and why: a few words."""

    path: str
    reason: str


class Choice(msgspec.Struct, frozen=True):
    """What was chosen at ``path``: ``taken`` is a checkpoint in it, or the same.

    ``layout`` is for people. ``skipped`` are newer than what was taken. Of its ``files`` and their ``bytes``
    those of other ranks are left: ``left`` and ``left_bytes``; ``note`` tells of the ranks.
    """

    path: str
    taken: str
    layout: str
    skipped: tuple[Skipped, ...] = ()
    files: int = 0
    bytes: int = 0
    left: int = 0
    left_bytes: int = 0
    note: str = ""


class Selected(msgspec.Struct, frozen=True):
    """``paths`` of files and directories, how they were chosen, and what could not be: failed Reports."""

    paths: tuple[str, ...]
    choices: tuple[Choice, ...] = ()
    failures: tuple[Report, ...] = ()


SendTold = Callable[["Report | Choice"], Awaitable[None]]


class _Checkpoint(msgspec.Struct, frozen=True):
    """A directory that was looked through: sizes by path below it, and its parts.

    ``hidden`` are paths of files that no listing shows.
    """

    path: str
    files: Mapping[str, int]
    parts: Sequence[Part]
    hidden: tuple[str, ...] = ()

    @property
    def all(self) -> list[str]:
        """Paths that together are all of it."""
        return [_below(self.path, name) for name in self.files] if self.hidden else [self.path]


class Chooser:
    """Makes choices for one command. ``reader`` reads small files, by way of the cache."""

    def __init__(self, tree: Tree, reader: Reader) -> None:
        self._tree = tree
        self._reader = reader
        self._began = trio.current_time()

    async def select(self, paths: Sequence[str], wanted: Wanted) -> Selected:
        """The files and directories that ``wanted`` means at ``paths``."""
        if not wanted.chooses:
            return Selected(tuple(paths))
        chosen: list[str] = []
        choices: list[Choice] = []
        failures: list[Report] = []
        for path in outermost(paths):
            try:
                some, choice = await self._choose_anew(path, wanted)
            except FusestripeError as error:
                failures.append(Report(path, "failed", error=error.message, mend=error.mend))
            else:
                chosen += some
                choices.append(choice)
        return Selected(tuple(chosen), tuple(choices), tuple(failures))

    async def _choose_anew(self, path: str, wanted: Wanted) -> tuple[list[str], Choice]:
        """As ``_choose``; a tracker may be overwritten between the listing and the read."""
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._choose(path, wanted)
            except VersionChanged:
                self._began = trio.current_time()
        return await self._choose(path, wanted)

    async def _choose(self, path: str, wanted: Wanted) -> tuple[list[str], Choice]:
        found = await self._tree.stat(path)
        if not found.entry.is_dir:
            if wanted.latest:
                raise OriginError(f"{self._shown(path)} is a file", mend="--latest wants a directory")
            note = f"{wanted.ranks}: all of it: a file"
            return [path], Choice(path, path, "", files=1, bytes=found.entry.size, note=note)
        trackers: list[str] = []
        skipped: list[Skipped] = []
        if wanted.latest:
            listing = await self._list(path)
            taken, skipped, trackers = await self._latest(path, listing)
        else:
            taken = await self._look_through(path)
        whole = Choice(
            path,
            taken.path,
            layout_of(taken.parts),
            tuple(skipped),
            files=len(taken.files),
            bytes=sum(taken.files.values()),
        )
        if wanted.ranks is None:
            return [*taken.all, *trackers], whole
        return self._of_ranks(taken, trackers, wanted.ranks, whole)

    def _of_ranks(
        self, taken: _Checkpoint, trackers: list[str], ranks: Ranks, whole: Choice
    ) -> tuple[list[str], Choice]:
        local = needed_by(taken.parts, taken.files, ranks)
        if not local.spared:
            why = local.why_all or "nothing in it is of other ranks alone"
            return [*taken.all, *trackers], msgspec.structs.replace(whole, note=f"{ranks}: all of it: {why}")
        kept = [name for name in taken.files if name not in local.spared]
        left = sum(taken.files[name] for name in local.spared)
        rest = f"; {local.why_all}" if local.why_all else ""
        note = f"{ranks}: {len(kept):,} of {len(taken.files):,} files{rest}"
        choice = msgspec.structs.replace(whole, left=len(local.spared), left_bytes=left, note=note)
        return [*(_below(taken.path, name) for name in kept), *trackers], choice

    async def _latest(self, path: str, listing: Listing) -> tuple[_Checkpoint, list[Skipped], list[str]]:
        """The newest whole checkpoint, what is newer and why it was skipped, and the tracker files."""
        names = [name for name, entry in listing.entries.items() if entry.is_dir]
        skipped: list[Skipped] = []
        tracker, files = await self._tracker(path, listing)
        if tracker is None:
            candidates = order(names)
        else:
            newer, candidates = tracked(names, tracker)
            reason = f"still being written: {tracker.name} names {tracker.directory}"
            skipped += [Skipped(_below(path, name), reason) for name in newer]
            if tracker.directory not in names:
                skipped.append(
                    Skipped(_below(path, tracker.directory), f"missing, though {tracker.name} names it")
                )
                candidates = [name for name in candidates if name != tracker.directory]
        if tracker is not None and tracker.name == LATEST and TRAINER_FILES & listing.entries.keys():
            candidates = []  # a checkpoint of the Trainer's, with one of DeepSpeed's inside
        for name in candidates:
            try:
                checkpoint = await self._look_through(_below(path, name))
            except NotFound:
                skipped.append(Skipped(_below(path, name), "gone meanwhile"))
                continue
            is_tracked = tracker is not None and name == tracker.directory
            reason = await self._reason_against(checkpoint, is_tracked)
            if not reason:
                return checkpoint, [one for one in skipped if _needs_telling(one, checkpoint.path)], files
            skipped.append(Skipped(checkpoint.path, reason))
        return await self._itself(path, skipped), skipped, files

    async def _itself(self, path: str, skipped: list[Skipped]) -> _Checkpoint:
        """Where no directory in ``path`` is a checkpoint, it may be one itself."""
        reasons = [f"{one.path.rpartition('/')[2]}: {one.reason}" for one in skipped]
        if all(one.reason == UNKNOWN for one in skipped):
            checkpoint = await self._look_through(path)
            if any(not part.directory for part in checkpoint.parts):
                reason = await self._reason_against(checkpoint, is_tracked=False)
                if not reason:
                    skipped.clear()
                    return checkpoint
                reasons = [reason]
            elif not skipped and any("/" not in name for name in checkpoint.files):
                reasons = [UNKNOWN]
        more = f"; and {len(reasons) - 3:,} more" if len(reasons) > 3 else ""
        said = f" ({'; '.join(reasons[:3])}{more})" if reasons else ""
        raise NotFound(
            f"there is no whole checkpoint in {self._shown(path)}{said}",
            mend="name the one you mean, without --latest",
        )

    async def _tracker(self, path: str, listing: Listing) -> tuple[Tracker | None, list[str]]:
        """What the tracker files in ``path`` say: the first that names a directory there, else the first."""
        said: list[Tracker] = []
        files: list[str] = []
        for name, read in TRACKERS.items():
            entry = listing.entries.get(name)
            if entry is None or entry.is_dir or entry.size > TRACKER_MAXIMUM:
                continue
            directory = read(await _joined(self._pieces(_below(path, name), entry)))
            if directory:
                said.append(Tracker(name, directory))
                files.append(_below(path, name))
        there = [one for one in said if one.directory in listing.entries]
        return next(iter(there or said), None), files

    async def _reason_against(self, checkpoint: _Checkpoint, is_tracked: bool) -> str:
        """Why ``checkpoint`` is not to be taken; "" where it may. A tracker vouches for unknown layouts."""
        if not checkpoint.parts:
            return "" if is_tracked and checkpoint.files else UNKNOWN
        if any(part.lack for part in checkpoint.parts):
            return missing_from(checkpoint.parts, checkpoint.files, {})
        named: dict[str, dict[str, int] | Unreadable] = {}
        for part in checkpoint.parts:
            for index in part.indexes:
                try:
                    named[index.path] = await self._named(checkpoint, index)
                except Unreadable as error:
                    named[index.path] = error
        return missing_from(checkpoint.parts, checkpoint.files, named)

    async def _named(self, checkpoint: _Checkpoint, index: Index) -> dict[str, int]:
        """What ``index`` names. Raises Unreadable."""
        size = checkpoint.files[index.path]
        if size > INDEX_MAXIMUM:
            raise Unreadable(f"has {format_size(size)}, too much to be looked into")
        path = _below(checkpoint.path, index.path)
        try:
            pieces = self._pieces(path, (await self._tree.stat(path)).entry)
            if index.kind == "dcp":
                async with aclosing(pieces):
                    return await names_in_pickle(pieces)
            data = await _joined(pieces)
        except (NotFound, VersionChanged):
            raise Unreadable("changed while it was read") from None
        return names_in_json(data) if index.kind == "json" else names_in_tag(data)

    async def _pieces(self, path: str, entry: Entry) -> AsyncGenerator[bytes, None]:
        """The bytes of a file, not all at once."""
        place = self._tree.place(path)
        assert place is not None
        handle = await self._reader.open(place.origin, self._tree.version(path, entry))
        try:
            for offset in range(0, entry.size, PIECE):
                yield bytes(await self._reader.read(handle, offset, PIECE))
        finally:
            with trio.CancelScope(shield=True):
                await self._reader.close(handle)

    async def _look_through(self, path: str) -> _Checkpoint:
        """All files below ``path``."""
        files: dict[str, int] = {}
        hidden: list[str] = []
        pending = [""]
        while pending:
            directory = pending.pop()
            listing = await self._list(_below(path, directory))
            for name, entry in listing.entries.items():
                below = _below(directory, name)
                if entry.is_dir:
                    pending.append(below)
                else:
                    files[below] = entry.size
            if needs_metadata(listing.entries):
                found = await self._hidden(_below(_below(path, directory), METADATA))
                if found is not None:
                    hidden.append(_below(directory, METADATA))
                    files[hidden[-1]] = found.size
        files = dict(sorted(files.items()))
        return _Checkpoint(path, files, parts_of(files), tuple(hidden))

    async def _hidden(self, path: str) -> Entry | None:
        """What is at ``path`` although no listing shows it; web servers leave out what begins with a dot."""
        place = self._tree.place(path)
        if place is None or not may_hide(place.origin, path.rpartition("/")[2]):
            return None
        try:
            return (await self._tree.stat(path)).entry
        except NotFound:
            return None

    async def _list(self, path: str) -> Listing:
        """The entries of a directory, none of them from before this command began."""
        listing = await self._tree.list_dir(path)
        if listing.at < self._began:
            self._tree.forget(_below(path, "any"))
            listing = await self._tree.list_dir(path)
        return listing

    def _shown(self, path: str) -> str:
        """What is at ``path``, for people."""
        place = self._tree.place(path)
        return f"/{path}" if place is None else join_url(place.origin.url, place.path)


async def prefetch_wanted(
    tree: Tree, reader: Reader, prefetcher: Prefetcher, paths: Sequence[str], wanted: Wanted, send: SendTold
) -> None:
    """Choose what ``wanted`` means at ``paths``, tell ``send`` of it, and prefetch it. Raises CacheError."""
    selected = await Chooser(tree, reader).select(paths, wanted)
    for choice in selected.choices:
        await send(choice)
    for failure in selected.failures:
        await send(failure)
    await prefetch(tree, prefetcher, selected.paths, send, check=wanted.check, pin=wanted.pin)


async def _joined(pieces: AsyncGenerator[bytes, None]) -> bytes:
    async with aclosing(pieces):
        return b"".join([piece async for piece in pieces])


def _needs_telling(skipped: Skipped, taken: str) -> bool:
    """What is no checkpoint, and not named like one, need not be explained."""
    name = skipped.path.rpartition("/")[2]
    return skipped.reason != UNKNOWN or are_alike(skipped.path, taken) or is_named_so(name)


def _below(path: str, name: str) -> str:
    return "/".join(filter(None, (path, name)))
