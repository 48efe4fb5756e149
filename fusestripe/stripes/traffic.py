"""What goes on between this process and each origin: how fast, how much at once, how much a second time."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fusestripe.origins.base import Origin
from fusestripe.stripes.pace import Pace
from fusestripe.stripes.silence import Silence
from fusestripe.stripes.tuning import Streams
from fusestripe.units import MIB

__all__ = ["Traffic", "TrafficStatistics", "TrafficTable"]

# Of the bytes fetched, those asked for a second time are less than this share.
HEDGED_SHARE = 0.05
# Requests that have a second one, or lost to it and still run: so much memory, and one thread in so many.
HEDGED_MEMORY = 64 * MIB
HEDGED_THREADS = 8


class TrafficStatistics(msgspec.Struct, frozen=True):
    """``allowed`` stripes may be in flight now: of all files together where that is ``tuned``, else of each.

    ``fetched`` are the bytes that came from the origin since the start, ``hedged`` those asked for twice.
    ``silent``: seconds for which nothing has come of what was asked for; ``why`` is the last failure since.
    """

    allowed: int
    tuned: bool
    fetched: int
    hedged: int
    silent: float = 0.0
    why: str = ""


class Traffic:
    """The requests to one origin. ``fetched`` and ``hedged`` are bytes: all, and those asked for twice.

    ``doubles`` is how many requests have a second one, or lost to it and still run.
    """

    def __init__(self, url: str, streams: Streams, threads: int) -> None:
        self.streams = streams
        self.silence = Silence(url)
        self._doubles_at_most = max(1, threads // HEDGED_THREADS)
        self.pace = Pace()
        self.fetched = 0
        self.hedged = 0
        self.doubles = 0

    def may_hedge(self, length: int, whole: int) -> bool:
        """Whether ``length`` bytes more, of a stripe of ``whole``, may be asked for a second time."""
        at_once = max(1, min(self._doubles_at_most, HEDGED_MEMORY // whole))
        return self.doubles < at_once and self.hedged + length < HEDGED_SHARE * self.fetched

    def double_ended(self) -> None:
        """One that lost runs no more."""
        self.doubles -= 1

    def statistics(self) -> TrafficStatistics:
        """How it stands now."""
        return TrafficStatistics(
            allowed=self.streams.allowed,
            tuned=self.streams.tuned,
            fetched=self.fetched,
            hedged=self.hedged,
            silent=self.silence.seconds,
            why=self.silence.why,
        )


class TrafficTable:
    """The traffic of every origin; ``streams`` makes what decides how much of it there is at once.

    ``threads`` is how many requests can run at once, to all of them.
    """

    def __init__(self, streams: Callable[[Origin], Streams], threads: int) -> None:
        self._streams = streams
        self._threads = threads
        self._traffics: dict[Origin, Traffic] = {}

    def of(self, origin: Origin) -> Traffic:
        """The one of ``origin``."""
        traffic = self._traffics.get(origin)
        if traffic is None:
            traffic = self._traffics[origin] = Traffic(origin.url, self._streams(origin), self._threads)
        return traffic

    def look(self) -> None:
        """Tell the log of origins that are silent; to be called now and then."""
        for traffic in self._traffics.values():
            traffic.silence.look()

    @property
    def fetched(self) -> int:
        """Bytes that came, from all origins."""
        return sum(traffic.fetched for traffic in self._traffics.values())

    @property
    def hedged(self) -> int:
        """Bytes asked for a second time, of all origins."""
        return sum(traffic.hedged for traffic in self._traffics.values())
