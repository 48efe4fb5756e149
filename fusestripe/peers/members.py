"""The members of the job as this node sees them: who is asked, who is left alone for a while, and why."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Literal

import msgspec
import trio

__all__ = ["Fault", "MemberStatistics", "Members", "PeerStatistics"]

log = logging.getLogger(__name__)

Fault = Literal["unknown", "down", "slow", "false", "stranger"]
"""Why a member is not asked: nothing was heard of it yet; it does not answer; it is far behind the others; it
sent wrong bytes; it does not take our token, or has other settings."""

# Seconds that a member is left alone after its first fault of a kind, and at most after more of them.
_REST: dict[Fault, tuple[float, float]] = {
    "unknown": (0.0, 0.0),
    "down": (0.5, 10.0),
    "slow": (10.0, 120.0),
    "false": (600.0, 3600.0),
    "stranger": (30.0, 300.0),
}
# One that asks us and that we cannot reach is looked at no more often (seconds).
HEARD_SECONDS = 2.0
# One that answered and that nobody has asked since is greeted again after so long (seconds).
LIVE_SECONDS = 30.0
# Where more than so large a part of the others is slow, it is this node that is.
_SLOW_AT_MOST = 1 / 3


class MemberStatistics(msgspec.Struct, frozen=True):
    """A member: whether it is asked, and the ``fault`` for which it is not and ``why``, or "".

    ``received`` and ``sent`` are the bytes that it gave and got since the start.
    """

    name: str
    live: bool
    fault: str
    why: str
    received: int
    sent: int


class PeerStatistics(msgspec.Struct, frozen=True):
    """``me`` is this node's name among the members, "" where it is none of them.

    ``received`` and ``sent`` are the bytes that members gave and got since the start. ``why`` this node gives
    nothing to them, or "".
    """

    me: str
    received: int
    sent: int
    why: str
    members: tuple[MemberStatistics, ...]


class _Member:
    __slots__ = ("fault", "faults", "heard_at", "received", "rests_until", "sent", "why")

    def __init__(self) -> None:
        self.fault: Fault | None = "unknown"
        self.why = "not heard of yet"
        self.rests_until = 0.0
        self.faults = 0
        self.heard_at = -HEARD_SECONDS
        self.received = 0
        self.sent = 0


class Members:
    """``me`` is this node's own name among them, "" where it is none of them. On the event loop.

    ``changed`` is set, and made anew, when there may be somebody to greet; ``known`` once all were.

    Invariant: a member is live only after it has answered since its last fault.
    """

    def __init__(self) -> None:
        self.me = ""
        self._others: dict[str, _Member] = {}
        # Kept, since each read and each stripe asks for it: ``_find_live`` after whatever changes it.
        self._live: list[str] = []
        self.changed = trio.Event()
        self.known = trio.Event()
        self._received = self._sent = 0

    def replace(self, names: Collection[str], me: str) -> None:
        """The members are ``names`` now, and ``me`` is this one; what is known of those that stay stays."""
        self.me = me
        self._others = {name: self._others.get(name) or _Member() for name in sorted(names) if name != me}
        self._find_live()
        self._has_changed()

    @property
    def others(self) -> Collection[str]:
        """All but this node."""
        return self._others.keys()

    def live(self) -> list[str]:
        """Those to ask, and this node. Not to be changed."""
        return self._live

    def is_live(self, name: str) -> bool:
        """Whether it is asked now."""
        member = self._others.get(name)
        return member is not None and member.fault is None

    def due(self) -> list[str]:
        """Those that have rested, to see whether they answer, or have not been heard of for long."""
        now = trio.current_time()
        return [name for name, member in self._others.items() if member.rests_until <= now]

    def next_due(self) -> float:
        """When (trio.current_time()) the next one is due; infinite where there is none."""
        return min((member.rests_until for member in self._others.values()), default=float("inf"))

    def answered(self, name: str) -> None:
        """It is there, and takes us in."""
        member, now = self._others.get(name), trio.current_time()
        if member is None or (member.fault is not None and member.rests_until > now):
            return  # it rests: what it was greeted for is not the worst that was found since
        if member.fault not in (None, "unknown"):
            log.info("peer %s is back", name)
        was_live = member.fault is None
        member.fault, member.why, member.rests_until = None, "", now + LIVE_SECONDS
        if not was_live:
            self._find_live()

    def well(self, name: str) -> None:
        """It gave what it was asked for: its next fault is its first again."""
        member = self._others.get(name)
        if member is not None and member.fault is None:
            member.faults = 0
            member.rests_until = trio.current_time() + LIVE_SECONDS

    def failed(self, name: str, fault: Fault, why: str) -> None:
        """Leave it alone for a while. Wrong bytes are an error in the log; the rest is nothing to act on."""
        member = self._others.get(name)
        if member is None:
            return
        now = trio.current_time()
        first, longest = _REST[fault]
        rest = min(longest, first * 2 ** min(member.faults, 16))
        rests = member.fault is not None and member.rests_until > now
        if rests and (member.fault == fault or member.rests_until > now + rest):
            return  # several downloads had found out
        news = member.why != why
        member.faults += 1
        member.fault, member.why = fault, why
        member.rests_until = now + rest
        self._find_live()
        if news:
            level = logging.ERROR if fault in ("false", "stranger") else logging.INFO
            log.log(level, "peer %s is left alone for %g s: %s", name, rest, why)
        self._has_changed()

    def may_be_slow(self, name: str) -> bool:
        """Whether that one may be called slow: where many others are, it is this node."""
        if not self.is_live(name):
            return True  # it has been called worse already
        slow = sum(member.fault == "slow" for member in self._others.values())
        return slow < max(1, int(len(self._others) * _SLOW_AT_MOST))

    def heard_from(self, name: str) -> None:
        """It asks us: where it did not answer, it is worth a look now."""
        member = self._others.get(name)
        now = trio.current_time()
        if member is None or member.fault not in ("unknown", "down"):
            return
        if member.heard_at + HEARD_SECONDS <= now < member.rests_until:
            member.rests_until, member.heard_at = now, now
            self._has_changed()

    def received(self, name: str, size: int) -> None:
        """It gave ``size`` bytes."""
        self._received += size
        if name in self._others:
            self._others[name].received += size

    def sent(self, name: str, size: int) -> None:
        """It got ``size`` bytes."""
        self._sent += size
        if name in self._others:
            self._others[name].sent += size

    def is_me(self, name: str) -> None:
        """That member has turned out to be this node, which did not know itself or is named twice."""
        if not self.me:
            log.info("this node is %s", name)
            self.me = name
            del self._others[name]
            self._find_live()
        else:
            self.failed(name, "stranger", f"it is this node, which is {self.me}")

    def statistics(self, why: str = "") -> PeerStatistics:
        """How it stands now. ``why`` this node gives nothing to them."""
        return PeerStatistics(
            me=self.me,
            received=self._received,
            sent=self._sent,
            why=why,
            members=tuple(
                MemberStatistics(
                    name, member.fault is None, member.fault or "", member.why, member.received, member.sent
                )
                for name, member in self._others.items()
            ),
        )

    def _find_live(self) -> None:
        mine = [self.me] if self.me else []
        self._live = mine + [name for name, member in self._others.items() if member.fault is None]

    def _has_changed(self) -> None:
        self.changed.set()
        self.changed = trio.Event()
