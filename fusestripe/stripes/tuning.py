"""How many stripes are in flight: a fixed number of each file, or as many of all as their origin rewards."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

import msgspec
import trio

from fusestripe.origins.base import Origin, SpreadOrigin
from fusestripe.stripes.climb import Climb
from fusestripe.stripes.resident import Stripe
from fusestripe.units import ObjectVersion

__all__ = ["FixedStreams", "Streams", "TunedStreams", "climb_for"]

# What one file needs to fill a 10 Gb/s card from stores that give 50 to 100 MB/s a connection.
START = 16
# Of an origin whose files lie on many servers: some idle by chance unless there are many more than servers.
START_SPREAD = 48
# A number in flight is judged by what comes in so many seconds, and until that many stripes have come.
JUDGED_SECONDS = 0.3
# On the average so much of it has to be in flight meanwhile: where readers want less, that says nothing.
MOSTLY = 0.75
# Answers that ask for less, within so many seconds, count as one.
THROTTLED_SECONDS = 1.0


def climb_for(origin: Origin, buffers: int) -> Climb:
    """How the number for ``origin`` is looked for. Of ``buffers`` stripes of memory, most wait to be read."""
    start = START_SPREAD if isinstance(origin, SpreadOrigin) else START
    return Climb(start, max(1, buffers * 3 // 8))


class Streams(Protocol):
    """The requests to one origin in flight, and how many may be. On the event loop."""

    @property
    def allowed(self) -> int:
        """How many stripes may be in flight now: of all files where that is ``tuned``, else of each."""
        ...

    @property
    def tuned(self) -> bool:
        """Whether the number is found by trying."""
        ...

    @property
    def idle(self) -> bool:
        """Whether the origin could well do more than it is asked for now."""
        ...

    def share(self, version: ObjectVersion) -> int:
        """How many stripes of ``version`` may be in flight, as things stand."""
        ...

    def began(self, stripe: Stripe) -> None:
        """A request for ``stripe`` begins."""
        ...

    def ended(self, stripe: Stripe) -> None:
        """Nothing more comes for ``stripe``."""
        ...

    def throttled(self) -> None:
        """The origin has asked for less."""
        ...


class FixedStreams:
    """``count`` stripes of each file."""

    tuned = False

    def __init__(self, count: int) -> None:
        self._count = count
        self._flights = 0

    @property
    def idle(self) -> bool:
        """See Streams."""
        return self._flights <= self._count // 2

    @property
    def allowed(self) -> int:
        """See Streams."""
        return self._count

    def share(self, version: ObjectVersion) -> int:
        """See Streams."""
        return self._count

    def began(self, stripe: Stripe) -> None:
        """See Streams."""
        self._flights += 1

    def ended(self, stripe: Stripe) -> None:
        """See Streams."""
        self._flights -= 1

    def throttled(self) -> None:
        """See Streams."""


class TunedStreams:
    """As many as ``climb`` finds, shared by the files that are fetched at once.

    What a number brings is what one request brings while it runs, times the number: a pause of the readers
    does not count against it.
    """

    tuned = True

    def __init__(self, climb: Climb) -> None:
        self._climb = climb
        self._clock = trio.lowlevel.current_clock()
        # The stripes in flight, with the bytes that they had before; and how many each version has of them.
        self._flights: dict[Stripe, int] = {}
        self._files: Counter[ObjectVersion] = Counter()
        # Bytes of those that have ended; seconds that requests took, all together, up to a moment.
        self._arrived = 0
        self._stream_seconds = 0.0
        self._counted_at = self._clock.current_time()
        self._mark: _Mark | None = None
        self._throttled_at = -THROTTLED_SECONDS

    @property
    def allowed(self) -> int:
        """See Streams."""
        return self._climb.count

    @property
    def idle(self) -> bool:
        """See Streams."""
        return len(self._flights) <= self._climb.count // 2

    def share(self, version: ObjectVersion) -> int:
        """See Streams."""
        files = len(self._files) + (version not in self._files)
        return -(-self._climb.count // files)

    def began(self, stripe: Stripe) -> None:
        """See Streams."""
        self._count()
        self._flights[stripe] = stripe.filled
        self._files[stripe.key[0]] += 1
        if self._mark is None and len(self._flights) >= self._climb.count:
            self._mark = self._measure(stripes=0)

    def ended(self, stripe: Stripe) -> None:
        """See Streams."""
        self._count()
        self._look()
        self._arrived += stripe.filled - self._flights.pop(stripe)
        version = stripe.key[0]
        self._files[version] -= 1
        if not self._files[version]:
            del self._files[version]

    def throttled(self) -> None:
        """See Streams."""
        now = self._clock.current_time()
        if now - self._throttled_at >= THROTTLED_SECONDS:
            self._throttled_at = now
            self._climb.throttled()
            self._mark = None

    def _count(self) -> None:
        now = self._clock.current_time()
        self._stream_seconds += len(self._flights) * (now - self._counted_at)
        self._counted_at = now

    def _measure(self, *, stripes: int) -> _Mark:
        arrived = self._arrived + sum(stripe.filled - had for stripe, had in self._flights.items())
        return _Mark(self._counted_at, arrived, self._stream_seconds, stripes)

    def _look(self) -> None:
        """A stripe has come: is what came since the mark enough to judge by?"""
        since = self._mark
        if since is None:
            return
        self._mark = since = msgspec.structs.replace(since, stripes=since.stripes + 1)
        seconds = self._counted_at - since.at
        count = self._climb.count
        if seconds < JUDGED_SECONDS or since.stripes < count:
            return
        now = self._measure(stripes=0)
        self._mark = now
        stream_seconds = now.stream_seconds - since.stream_seconds
        if stream_seconds < MOSTLY * count * seconds:
            return
        self._climb.gave(count * (now.arrived - since.arrived) / stream_seconds)
        if self._climb.count != count:
            self._mark = None  # until as many are in flight


class _Mark(msgspec.Struct, frozen=True):
    """Where a measurement began: time, bytes and stream-seconds until then, stripes that came since."""

    at: float
    arrived: int
    stream_seconds: float
    stripes: int
