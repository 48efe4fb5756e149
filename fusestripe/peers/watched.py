"""A download from a member, in a thread, watched from the event loop: left where it hangs or is late."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import trio

from fusestripe.peers.client import PeerClient, PeerFailed, PeerTroubled
from fusestripe.peers.members import Members
from fusestripe.peers.messages import Ask, Note
from fusestripe.stripes.pace import Pace
from fusestripe.stripes.resident import Stripe

__all__ = ["Loop", "Slow", "WatchedDownload"]

log = logging.getLogger(__name__)

# A member that says nothing for so long, not even that it waits itself, is gone (seconds).
SILENCE_SECONDS = 3.0
# Beyond what Pace calls late: scheduling and short stalls of a busy node (seconds).
LATE_GRACE = 1.0
# The same where it is compared by what it gets from the origin, which is not its own doing alone (seconds).
ORIGIN_GRACE = 3.0
# Late, while it is not known how fast the others are (seconds).
UNKNOWN_SECONDS = 5.0
# How often a download is looked at (seconds).
LOOK_SECONDS = 0.1
# No download goes on for longer (seconds).
DOWNLOAD_SECONDS = 600.0


class Slow(PeerFailed):
    """It is far behind the others."""


class Loop(PeerFailed):
    """It waits for this node, by way of others perhaps: they know different members, or one has just gone."""


class WatchedDownload:
    """One download in a thread, watched from the event loop.

    ``pace`` is that of the members by themselves, ``from_origin`` with what they wait for the origin.
    ``patience``: seconds without a byte after which a member that waits itself is left.
    """

    def __init__(
        self,
        stripe: Stripe,
        member: str,
        ask: Ask,
        client: PeerClient,
        pace: Pace,
        from_origin: Pace,
        members: Members,
        *,
        patience: float,
    ) -> None:
        self._stripe = stripe
        self._member = member
        self._start = ask.start
        self._pace = pace
        self._from_origin = from_origin
        self._members = members
        self._patience = patience
        # Of its own: a thread that hangs, and is left, takes nothing from others.
        self._limiter = trio.CapacityLimiter(1)
        self._clock = trio.lowlevel.current_clock()
        self._arrived = ask.start
        self._waited = 0.0
        self._via: tuple[str, ...] = ()
        self._first_byte_at: float | None = None
        self._began_at = self._heard_at = self._moved_at = math.inf
        self._download = client.download(member, ask, stripe.view, self._came, timeout=DOWNLOAD_SECONDS)

    async def run(self, tell_path: Callable[[tuple[str, ...]], None]) -> Note | None:
        """See Download.run. Raises Slow and Loop as well. ``tell_path``: see Asking.path."""
        tell_path((self._member,))
        outcome: Note | None = None
        failure: PeerFailed | None = None

        async def download(scope: trio.CancelScope) -> None:
            nonlocal outcome, failure
            try:
                outcome = await trio.to_thread.run_sync(
                    self._run, limiter=self._limiter, abandon_on_cancel=True
                )
            except PeerFailed as error:
                failure = error
            except Exception as error:  # a fault of ours, or of what we stand on: readers get their bytes
                log.exception("peer %s", self._member)
                failure = PeerFailed(f"{type(error).__name__}: {error}")
            scope.cancel()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(download, nursery.cancel_scope)
                why = await self._until_it_is_left(tell_path)
                failure = why
                nursery.cancel_scope.cancel()
        finally:
            self._download.cancel()
            self._members.received(self._member, self._arrived - self._start)
        if failure is not None:
            raise failure
        if outcome is None and self._first_byte_at is not None:
            now = self._clock.current_time()
            self._note(self._busy(now))
            whole = now - self._began_at
            if self._waited > whole / 2 and not self._via:
                first_byte = self._first_byte_at - self._began_at
                self._from_origin.note(first_byte, whole, self._stripe.length - self._start)
            self._members.well(self._member)
        return outcome

    def _run(self) -> Note | None:
        self._began_at = self._heard_at = self._moved_at = self._clock.current_time()
        return self._download.run()

    def _came(self, arrived: int, note: Note) -> None:
        """From the thread."""
        now = self._clock.current_time()
        if arrived > self._arrived and self._first_byte_at is None:
            self._first_byte_at = now
        self._heard_at, self._waited, self._via = now, note.waited, note.via
        if arrived > self._arrived:
            self._arrived, self._moved_at = arrived, now
            self._stripe.advance(arrived)

    async def _until_it_is_left(self, tell_path: Callable[[tuple[str, ...]], None]) -> PeerFailed:
        while True:
            await trio.sleep(LOOK_SECONDS)
            tell_path((self._member, *self._via))
            if self._members.me in self._via:
                return Loop("it waits for this node")
            now = self._clock.current_time()
            if now - self._heard_at > SILENCE_SECONDS:
                return PeerFailed("it does not answer")
            if self._is_behind(now) and self._members.may_be_slow(self._member):
                return Slow("it gets stripes from the origin far slower than the others")
            if now - self._moved_at > self._patience:
                # Where many get nothing it is the origin, and all the others ask the same one.
                is_alone = not self._via and self._members.may_be_slow(self._member)
                return Slow("its origin gives it nothing") if is_alone else PeerTroubled("it waits too long")
            came = self._arrived - self._start
            late = self._pace.late_after(came) or UNKNOWN_SECONDS
            if self._busy(now) > late + LATE_GRACE and self._members.may_be_slow(self._member):
                # That it took longer is known, not how much: where this node has become slow, as all will be
                # called slow otherwise, that is found by and by.
                self._note(2 * self._busy(now))
                return Slow("it is far behind the others")

    def _is_behind(self, now: float) -> bool:
        """Whether others in its place, who had to get a stripe from the origin, had far more of it by now."""
        late = self._from_origin.late_after(self._arrived - self._start)
        return not self._via and late is not None and now - self._began_at > late + ORIGIN_GRACE

    def _busy(self, now: float) -> float:
        """The seconds that it took, but for those in which it waited for bytes itself."""
        return now - self._began_at - self._waited

    def _note(self, took: float) -> None:
        length = self._stripe.length - self._start
        self._pace.note(0.0, took, length)
