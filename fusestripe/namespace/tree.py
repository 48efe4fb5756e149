"""The tree of all routes: look-up and listing, with answers kept for a time.

What is asked of an origin, and how often: a directory's first look-up lists it (up to two pages), so that
the files in it cost no request of their own, and beside it the name that is looked up, if that may be a
directory itself; a directory of more than two pages is asked for single names until someone lists it whole.
Someone who lists directory after directory gets the whole tree listed at once.
Answers are kept for the TTL; "there is none" for the shorter negative TTL.
"""

from __future__ import annotations

import logging
import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import eq
from typing import TypeVar

import msgspec
import trio

from fusestripe.errors import NotFound, OriginError
from fusestripe.namespace.answers import Answers
from fusestripe.namespace.flights import Flights
from fusestripe.namespace.routes import Place, RouteTable
from fusestripe.namespace.walks import STEPS, WALK_PAGES, common_parent, directories_of
from fusestripe.origins.base import Entry, Origin, may_hide
from fusestripe.origins.retry import retried
from fusestripe.units import ObjectVersion, join_url

__all__ = ["Absent", "Found", "Listing", "Tree"]

log = logging.getLogger(__name__)
# What is a file's name, as far as one can tell before it is looked up: "x.h5", but not "llama-3.1-8b".
_FILE = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")
T = TypeVar("T")


class Found(msgspec.Struct, frozen=True):
    """What is at ``path``, and until when (trio.current_time()) that may be said without asking again."""

    path: str
    entry: Entry
    expires: float


class Listing(msgspec.Struct, frozen=True):
    """The entries of a directory by name as they were ``at`` a time; all of them, or the first pages.

    All of them are in the order of their names: who has come to one finds the next in a later listing too.
    """

    entries: Mapping[str, Entry]
    complete: bool
    at: float
    expires: float


class Absent(msgspec.Struct, frozen=True):
    """That there is nothing at a path, and until when that may be said."""

    expires: float


class _Single(msgspec.Struct, frozen=True):
    """The answer about one path; ``entry`` is None for "there is none"."""

    entry: Entry | None
    at: float
    expires: float


class Tree:
    """Paths have no leading slash; "" is the root. All times are seconds of trio's clock.

    ``ttl`` and ``negative_ttl`` in seconds. ``timeout``: how long an origin that fails is asked again.
    """

    def __init__(
        self, routes: RouteTable, nursery: trio.Nursery, *, ttl: float, negative_ttl: float, timeout: float
    ) -> None:
        self._routes = routes
        self._ttl = ttl
        self._negative_ttl = min(negative_ttl, ttl)
        self._timeout = timeout
        self._limiter = trio.CapacityLimiter(16)
        self._listings: Answers[Listing] = Answers()
        self._singles: Answers[_Single] = Answers()
        self._listing_flights: Flights[Listing] = Flights(nursery)
        self._stat_flights: Flights[_Single] = Flights(nursery)
        self._tree_flights: Flights[bool] = Flights(nursery)
        # The directories listed last and when: someone may be walking a tree.
        self._steps: deque[tuple[float, str]] = deque(maxlen=4 * STEPS)
        self._too_large: dict[str, float] = {}
        # How often something known was wrong: what was asked before the last time is neither kept nor joined.
        self._corrections = 0

    def place(self, path: str) -> Place | None:
        """Where ``path`` lies; None for a directory that only leads to routes."""
        return self._routes.place(path)

    def version(self, path: str, entry: Entry) -> ObjectVersion:
        """The version of the file ``entry`` at ``path``."""
        place = self._routes.place(path)
        if place is None:
            raise NotFound(f"no route leads to /{path}")
        return place.origin.version(place.path, entry)

    async def lookup(self, directory: str, name: str) -> Found:
        """The child ``name`` of ``directory``. Raises NotFound, or what the origin raised."""
        path = f"{directory}/{name}" if directory else name
        place = self._routes.place(path)
        if place is None or place.path == "":
            if name not in self._routes.children(directory):
                raise NotFound(f"no route leads to /{path}")
            return Found(path, Entry(name=name, is_dir=True), math.inf)
        known = self.known(path)
        if known is None and self._listings.get(directory) is None:
            if place.origin.lists_trees and not _FILE.search(name):
                self._begin_list(place, path)
            known = self._look(await self._list(directory, whole=False), path)
        if known is None:
            flight = path, self._corrections
            single = await self._stat_flights.join(flight, partial(self._stat, place, path))
            known = _answer(single, path)
        if isinstance(known, Absent):
            raise NotFound(f"{join_url(place.origin.url, place.path)} does not exist")
        return known

    async def stat(self, path: str) -> Found:
        """The same by path; the root is always there."""
        if not path:
            return Found("", Entry(name="", is_dir=True), math.inf)
        directory, _, name = path.rpartition("/")
        return await self.lookup(directory, name)

    async def list_dir(self, path: str) -> Listing:
        """All entries of a directory. Raises NotFound, or what the origin raised."""
        if self._routes.place(path) is None:
            names = sorted(self._routes.children(path))
            entries = {name: Entry(name=name, is_dir=True) for name in names}
            return Listing(entries, True, trio.current_time(), math.inf)
        listing = self._listings.get(path)
        if listing is None or not listing.complete:
            await self._list_tree_of(path)
            listing = self._listings.get(path)
        if listing is None or not listing.complete:
            listing = await self._list(path, whole=True)
        return listing

    def known(self, path: str) -> Found | Absent | None:
        """What can be said of ``path`` without asking; None for nothing."""
        now = trio.current_time()
        single = self._singles.get(path)
        listing = self._listings.get(path.rpartition("/")[0])
        if single is not None and (listing is None or single.at >= listing.at):
            return _answer(single, path)
        answer = self._look(listing, path) if listing is not None else None
        return answer if answer is not None and answer.expires > now else None

    def forget(self, path: str) -> None:
        """What was known of ``path`` is wrong: ask next time."""
        self._corrections += 1
        self._singles.forget(path)
        self._listings.forget(path.rpartition("/")[0])

    def trim(self) -> None:
        """Give back the memory of answers that are past their time."""
        self._listings.sweep()
        self._singles.sweep()
        now = trio.current_time()
        self._too_large = {path: until for path, until in self._too_large.items() if until > now}

    def _look(self, listing: Listing, path: str) -> Found | Absent | None:
        name = path.rpartition("/")[2]
        entry = listing.entries.get(name)
        if entry is not None:
            return Found(path, entry, listing.expires)
        place = self._routes.place(path)
        if not listing.complete or (place is not None and may_hide(place.origin, name)):
            return None
        return Absent(listing.at + self._negative_ttl)

    async def _list_tree_of(self, path: str) -> None:
        """If ``path`` is one more step of a walk through a store that can, list the whole tree around it."""
        place = self._routes.place(path)
        if place is None or not place.origin.lists_trees:
            return
        now = trio.current_time()
        self._steps.append((now, path))
        steps = [
            step for at, step in self._steps if at > now - self._ttl and self._within(place.origin, step)
        ]
        if len(steps) < STEPS:
            return
        top = common_parent(steps[-STEPS:])
        if self._too_large.get(top, -math.inf) < now and self._within(place.origin, top):
            await self._tree_flights.join((top, self._corrections), partial(self._fetch_tree, top))

    def _within(self, origin: Origin, path: str) -> bool:
        place = self._routes.place(path)
        return place is not None and place.origin is origin

    async def _fetch_tree(self, top: str) -> bool:
        """Whether all of it could be listed."""
        place = self._routes.place(top)
        assert place is not None
        at, corrections = trio.current_time(), self._corrections
        collect = partial(_collect_tree, partial(place.origin.walk, place.path))
        directories = await self._ask(place, collect)
        if directories is None:
            self._too_large[top] = at + self._ttl
            return False
        if corrections != self._corrections:
            return False
        for below, entries in directories.items():
            path = "/".join(part for part in (top, below) if part)
            self._listings.keep(path, Listing(entries, True, at, at + self._ttl))
        return True

    def _begin_list(self, place: Place, path: str) -> None:
        """List what may be a directory beside its parent: a file in it is a round trip nearer.

        Only where that costs one request and no error if it is none: in stores that list by prefix.
        """
        parent = path.rpartition("/")[0]
        if (parent, False, self._corrections) in self._listing_flights:
            return  # one name in a directory is worth that, not all that are looked up while it is listed
        flight = path, False, self._corrections
        # Nobody has asked for it: what fails is the matter of who does.
        work = partial(self._fetch_list, place, path, False, level=logging.INFO)
        self._listing_flights.begin(flight, work)

    async def _list(self, path: str, *, whole: bool) -> Listing:
        place = self._routes.place(path)
        assert place is not None
        flight = path, whole, self._corrections
        return await self._listing_flights.join(flight, partial(self._fetch_list, place, path, whole))

    async def _fetch_list(
        self, place: Place, path: str, whole: bool, *, level: int = logging.ERROR
    ) -> Listing:
        at, corrections = trio.current_time(), self._corrections
        collect = partial(_collect, partial(place.origin.list_dir, place.path), whole)
        entries, complete = await self._ask(place, collect, level=level)
        listing = Listing(entries, complete, at, at + self._ttl)
        kept = self._listings.get(path)
        is_more = complete or kept is None or not kept.complete
        if is_more and corrections == self._corrections:
            self._listings.keep(path, listing)
        return listing

    async def _stat(self, place: Place, path: str) -> _Single:
        at, corrections = trio.current_time(), self._corrections
        stat = partial(place.origin.stat, place.path)
        try:
            entry = await self._ask(place, stat)
            single = _Single(entry, at, at + self._ttl)
        except NotFound:
            single = _Single(None, at, at + self._negative_ttl)
        if corrections == self._corrections:
            self._singles.keep(path, single)
        return single

    async def _ask(self, place: Place, call: Callable[[], T], *, level: int = logging.ERROR) -> T:
        """What the origin answers about ``place``. Whoever asked gets an errno; the log has the reason."""
        try:
            return await retried(call, limiter=self._limiter, timeout=self._timeout)
        except NotFound:
            raise
        except OriginError as error:
            log.log(level, "%s: %s", join_url(place.origin.url, place.path), error)
            raise


def _answer(single: _Single, path: str) -> Found | Absent:
    if single.entry is None:
        return Absent(single.expires)
    return Found(path, single.entry, single.expires)


def _collect(pages: Callable[[], Iterator[list[Entry]]], whole: bool) -> tuple[dict[str, Entry], bool]:
    """Entries by name of all pages, or of the first two; and whether that is all."""
    entries: dict[str, Entry] = {}
    for number, page in enumerate(pages(), start=1):
        entries.update((entry.name, entry) for entry in page)
        if number == 2 and not whole:
            return entries, False
    return _in_order(entries), True


def _collect_tree(
    pages: Callable[[], Iterator[list[tuple[str, Entry]]]],
) -> dict[str, dict[str, Entry]] | None:
    directories = directories_of(pages(), WALK_PAGES)
    return None if directories is None else {path: _in_order(each) for path, each in directories.items()}


def _in_order(entries: dict[str, Entry]) -> dict[str, Entry]:
    """By names; nothing is made for each of a million entries."""
    names = sorted(entries)
    return entries if all(map(eq, names, entries)) else {name: entries[name] for name in names}
