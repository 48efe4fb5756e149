"""What other members get from this node: stripes of its routes, from memory, the cache or the origin."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress

import trio

from fusestripe.errors import FusestripeError
from fusestripe.openfiles import OpenFile, OpenFiles
from fusestripe.origins.base import Origin, is_path, place_below
from fusestripe.peers.handon import HandOn
from fusestripe.peers.members import Members
from fusestripe.peers.messages import Ask, Hello, SentOn, Want
from fusestripe.reader import Reader
from fusestripe.stripes.plan import stripe_count, stripe_length
from fusestripe.stripes.resident import Key, ResidentStripes, Stripe
from fusestripe.units import ObjectVersion, format_size, printable

__all__ = ["Sharing"]

# What an asker does not read on for so long is taken back (seconds), and how often that is looked at.
STUCK_SECONDS = 10.0
LOOK_SECONDS = 5.0
# An asker is not kept waiting for longer until there is memory for a stripe (seconds): it may be that all of
# ours waits for stripes of its.
MEMORY_SECONDS = 0.5
# A file of more is none: 10 TiB in stripes of 1 MiB, 80 TiB in those of 8 MiB.
STRIPES_AT_MOST = 10_000_000


Path = Callable[[Key], tuple[str, ...]]
"""The members that a stripe on its way comes by, the nearest first. From any thread."""


class Sharing:
    """A Shelf: see ``PeerServer``. On the event loop; ``nursery`` is where files are let go.

    ``hello`` is what this node says of itself. ``lent_at_most``: stripes at a time, so that readers here have
    memory as well.

    Invariant: for another member no member is asked, but for stripes that it has all of: only what this node
    gets for itself may come from one that waits.
    """

    def __init__(
        self,
        origins: Collection[Origin],
        *,
        files: OpenFiles,
        reader: Reader,
        stripes: ResidentStripes,
        members: Members,
        path: Path,
        stripe_size: int,
        hello: Callable[[], Hello],
        lent_at_most: int,
        nursery: trio.Nursery,
    ) -> None:
        self._origins = origins
        self._files = files
        self._reader = reader
        self._stripes = stripes
        self._members = members
        self._path = path
        self._stripe_size = stripe_size
        self._hello = hello
        self._lent_at_most = lent_at_most
        self._nursery = nursery
        self._hand_on = HandOn()
        self._lent: set[_Lent] = set()

    def greet(self, hello: Hello) -> Hello:
        """See Shelf."""
        self._members.heard_from(hello.name)
        return self._hello()

    async def take(self, ask: Ask) -> _Lent | SentOn | None:
        """See Shelf. Raises FusestripeError for what is in no route here, or no stripe of ours."""
        self._members.heard_from(ask.asker)
        origin = self._origin_of(ask.version)
        length = self._length(ask)
        file = await self._files.hold(origin, ask.version)
        lent: _Lent | None = None
        try:
            if not self._has(file, ask.index, ask.want):
                return None
            key = (ask.version, ask.index)
            lent_now = {each.key for each in self._lent}
            if key not in lent_now and len(lent_now) >= self._lent_at_most:
                raise FusestripeError("as much as can be lent is lent")
            if ask.want != "whole":
                passes_on = ask.asker in self._members.others
                elsewhere = self._hand_on.ask(key, ask.asker, ask.avoid, hops=ask.hops, passes_on=passes_on)
                if elsewhere is not None:
                    return SentOn(elsewhere)
            stripe = self._reader.lend(file, ask.index)

            def ended(lent: _Lent, sent: int) -> None:
                self._lent.discard(lent)
                self._members.sent(ask.asker, sent)
                if ask.want != "whole":
                    self._hand_on.ended(key, ask.asker, whole=ask.start + sent == length)
                with suppress(RuntimeError):  # at the end of all nobody needs it any more
                    self._nursery.start_soon(self._files.let_go, file)

            lent = _Lent(stripe, self._stripes, self._path, ended)
            self._lent.add(lent)
            return lent
        finally:
            if lent is None:
                await self._files.let_go(file)

    async def look_after(self) -> None:
        """Take back what is lent to askers that do not read on, for ever."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            for lent in list(self._lent):
                if time.monotonic() - lent.moved_at > STUCK_SECONDS:
                    lent.take_back()

    def _origin_of(self, version: ObjectVersion) -> Origin:
        if is_path(version.path):
            for origin in self._origins:
                if place_below(origin, version) is not None:
                    return origin
        raise FusestripeError(f"{printable(str(version))} is in no route here")

    def _length(self, ask: Ask) -> int:
        if ask.stripe_size != self._stripe_size:
            raise FusestripeError(f"the stripes here are of {format_size(self._stripe_size)}")
        size = ask.version.size
        if not 0 <= ask.index < stripe_count(size, ask.stripe_size) <= STRIPES_AT_MOST:
            raise FusestripeError(f"{printable(str(ask.version))} has no stripe {ask.index}")
        length = stripe_length(ask.index, size, ask.stripe_size)
        if not 0 <= ask.start <= length:
            raise FusestripeError(f"stripe {ask.index} has {length} bytes")
        return length

    def _has(self, file: OpenFile, index: int, want: Want) -> bool:
        key = (file.version, index)
        if want == "any" or file.present(index):
            return True
        if want == "arriving":
            return key in self._stripes
        return self._stripes.arrived(key) == stripe_length(index, file.version.size, self._stripe_size)


class _Lent:
    """A Supply: a stripe that stays in memory while it is sent."""

    def __init__(
        self,
        stripe: Stripe,
        stripes: ResidentStripes,
        path: Path,
        ended: Callable[[_Lent, int], None],
    ) -> None:
        self._stripe = stripe
        self._is_back = False
        self._began_at = self.moved_at = time.monotonic()
        self._sent = 0
        self._path = path
        self._stripes = stripes
        self._ended = ended
        stripes.keep(stripe)

    @property
    def key(self) -> Key:
        """What it is."""
        return self._stripe.key

    @property
    def length(self) -> int:
        return self._stripe.length

    @property
    def filled(self) -> int:
        return self._stripe.filled

    @property
    def via(self) -> tuple[str, ...]:
        return self._path(self._stripe.key)

    def view(self, start: int, stop: int) -> memoryview:
        self._move()
        self._sent += stop - start
        return self._stripe.view[start:stop]

    async def wait(self, stop: int) -> None:
        self._move()
        if self._stripe.buffer is None and self.moved_at - self._began_at > MEMORY_SECONDS:
            raise FusestripeError("there is no memory for it")
        await self._stripes.wait(self._stripe, stop)

    def ended(self, sent: int) -> None:
        if not self._is_back:
            self._is_back = True
            self._stripes.let_go(self._stripe)
            self._ended(self, sent)

    def take_back(self) -> None:
        """Send no more of it, and have its memory."""
        self.ended(self._sent)

    def _move(self) -> None:
        if self._is_back:
            raise FusestripeError("who asked for it did not read on")
        self.moved_at = time.monotonic()
