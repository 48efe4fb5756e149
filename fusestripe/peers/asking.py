"""Getting a stripe from the members: whom to ask, what to make of the answer, and when to leave it."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from functools import partial

import trio

from fusestripe.peers.client import PeerClient, PeerFailed, PeerTroubled, WrongBytes
from fusestripe.peers.members import Members
from fusestripe.peers.messages import Ask, Note, SentOn, Want
from fusestripe.peers.ring import ranking
from fusestripe.peers.watched import Loop, Slow, WatchedDownload
from fusestripe.stripes.pace import Pace
from fusestripe.stripes.resident import Key, Stripe
from fusestripe.units import ObjectVersion

__all__ = ["Asking"]

# Owners that are asked for a stripe, one after the other, before the origin is; and members that one of them
# sends on to: more than trees are deep, README, "Nodes of one job".
OWNERS = 3
HOPS = 24
# For so long the first stripes wait until the members were greeted (seconds).
KNOWN_SECONDS = 2.0
# Downloads at once, and from one member: what it holds in memory for one that does not read on is bounded.
DOWNLOADS = 64
DOWNLOADS_EACH = 8
# Members that are asked for what the origin does not give.
AROUND = 8
# A member that waits itself, and for so long without a byte, has trouble with its origin (seconds).
PATIENCE = 10.0
# After so many times that the member before us had nothing of a version, it is asked once in so many stripes.
NOTHING_THERE = 4
ONCE_IN = 16


class _Outcome(enum.Enum):
    """WHOLE: all came that was asked for. MISSING: it has none of it, or was marked for failing.

    TROUBLED: it cannot have it either, its origin fails or it has no memory; others ask the same origin.
    """

    WHOLE = "whole"
    MISSING = "missing"
    TROUBLED = "troubled"


class Asking:
    """Brings stripes from ``members`` through ``client``. On the event loop.

    ``timeout``: the seconds after which a read fails that nobody answers.
    """

    def __init__(self, members: Members, client: PeerClient, stripe_size: int, timeout: float) -> None:
        self._members = members
        self._client = client
        self._stripe_size = stripe_size
        self._patience = min(PATIENCE, timeout)
        # Of what waits for others, and of what is there or not: the latter never stands behind the former.
        # Two nodes would wait for each other, each with stripes of its own that are not yet begun.
        self._downloads = {waits: trio.CapacityLimiter(DOWNLOADS) for waits in (True, False)}
        self._limiters: dict[tuple[str, bool], trio.CapacityLimiter] = {}
        self._pace, self._from_origin = Pace(), Pace()
        # By version: how often in a row the member that would own our stripes did not have them.
        self._vain: Counter[ObjectVersion] = Counter()
        # Of each stripe that is on its way from a member: that one, whom it waits for, and so on.
        self._paths: dict[Key, tuple[str, ...]] = {}

    def forget(self, member: str) -> None:
        """It is no member any more."""
        for waits in (True, False):
            self._limiters.pop((member, waits), None)
        self._client.forget(member)

    def path(self, key: Key) -> tuple[str, ...]:
        """The members that the stripe comes by, the nearest first; none: from no member. From any thread."""
        return self._paths.get(key, ())

    async def bring(self, stripe: Stripe) -> None:
        """Fill ``stripe`` from its owner, as far as that goes; the origin has to give the rest.

        Nothing is asked where this node is the owner, but whether the one that was before has it.
        """
        with trio.move_on_after(KNOWN_SECONDS):
            await self._members.known.wait()
        version, index = stripe.key
        tried: set[str] = set()
        for _ in range(OWNERS):
            ranked = [name for name in ranking(self._members.live(), version.key, index) if name not in tried]
            if not ranked:
                return
            if ranked[0] == self._members.me:
                await self._inherit(stripe, ranked[1:2])
                return
            tried.add(ranked[0])
            if await self._from_owner(stripe, ranked[0]):
                return

    async def around(self, stripe: Stripe) -> None:
        """Fill ``stripe`` from a member that has all of it: the origin does not give it.

        Asked are those that would own it, one after the other: what was fetched once is with them.
        """
        version, index = stripe.key
        others = [name for name in self._members.live() if name != self._members.me]
        with trio.move_on_after(self._patience):
            for member in ranking(others, version.key, index)[:AROUND]:
                if await self._download(stripe, member, self._ask(stripe, "whole")) is _Outcome.WHOLE:
                    return

    async def _inherit(self, stripe: Stripe, before: list[str]) -> None:
        """We own ``stripe``, perhaps since a moment ago: what ``before`` has need not be fetched again."""
        version, index = stripe.key
        if not before or (self._vain[version] >= NOTHING_THERE and index % ONCE_IN):
            return
        if await self._download(stripe, before[0], self._ask(stripe, "whole")) is _Outcome.WHOLE:
            self._vain[version] = 0
        else:
            self._vain[version] += 1
        while len(self._vain) > 1024:
            del self._vain[next(iter(self._vain))]

    async def _from_owner(self, stripe: Stripe, owner: str) -> bool:
        """Whether no other owner need be asked: all came, or the origin is to be.

        It came from ``owner`` or a member that it sends us on to.
        """
        member, avoid = owner, list[str]()
        for hops in range(HOPS):
            want: Want = "any" if member == owner else "arriving"
            outcome = await self._download(stripe, member, self._ask(stripe, want, avoid, hops))
            if isinstance(outcome, SentOn):
                if outcome.member not in avoid and self._members.is_live(outcome.member):
                    member = outcome.member
                    continue
                avoid.append(outcome.member)  # one that we do not know, or that failed us
            elif outcome in (_Outcome.WHOLE, _Outcome.TROUBLED):
                return True
            elif member == owner:
                return False
            else:
                avoid.append(member)
            member = owner
        return False

    def _ask(self, stripe: Stripe, want: Want, avoid: Sequence[str] = (), hops: int = 0) -> Ask:
        version, index = stripe.key
        me = self._members.me
        return Ask(me, version, self._stripe_size, index, stripe.filled, want, tuple(avoid), hops)

    async def _download(self, stripe: Stripe, member: str, ask: Ask) -> _Outcome | SentOn:
        """What came of asking ``member``, which is marked where it failed."""
        waits = ask.want != "whole"
        limiter = self._limiters.setdefault((member, waits), trio.CapacityLimiter(DOWNLOADS_EACH))
        async with limiter, self._downloads[waits]:
            if not self._members.is_live(member):
                return _Outcome.MISSING  # since we began to wait
            try:
                note = await self._watched(stripe, member, ask)
            except PeerTroubled:
                return _Outcome.TROUBLED
            except PeerFailed as error:
                self._mark(member, error)
                return _Outcome.MISSING
            finally:
                self._paths.pop(stripe.key, None)
        if note is None:
            return _Outcome.WHOLE
        return SentOn(note.ask) if note.ask else _Outcome.MISSING

    def _mark(self, member: str, error: PeerFailed) -> None:
        if isinstance(error, Loop):
            return
        if isinstance(error, WrongBytes):
            self._members.failed(member, "false", error.why)
        elif isinstance(error, Slow):
            self._members.failed(member, "slow", error.why)
        else:
            self._client.forget(member)
            self._members.failed(member, "stranger" if error.is_stranger else "down", error.why)

    async def _watched(self, stripe: Stripe, member: str, ask: Ask) -> Note | None:
        watched = WatchedDownload(
            stripe,
            member,
            ask,
            self._client,
            self._pace,
            self._from_origin,
            self._members,
            patience=self._patience,
        )
        return await watched.run(partial(self._paths.__setitem__, stripe.key))
