"""How many stripes are in flight: a fixed number of each file, or as many of all as their origin rewards."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

import trio

from fusestripe.origins.base import Origin, SpreadOrigin
from fusestripe.stripes.climb import Climb
from fusestripe.stripes.resident import Stripe
from fusestripe.units import MIB, ObjectVersion

__all__ = ["START", "START_SPREAD", "FixedStreams", "Streams", "TunedStreams", "climb_for"]

# What one file needs to fill a 10 Gb/s card from stores that give 50 to 100 MB/s a connection.
START = 16
# Of an origin whose files lie on many servers: some idle by chance unless there are many more than servers.
START_SPREAD = 48
# A number in flight is judged by what comes in so many seconds, and in so many bytes for each of them.
JUDGED_SECONDS = 0.3
JUDGED_BYTES = 2 * MIB
# An eighth may be between two stripes at any moment.
SLACK = 8
# After a change, at least so many seconds pass before the new number is judged.
SETTLING = 0.1
# Answers that ask for less, within so many seconds, count as one.
THROTTLED_SECONDS = 1.0


def climb_for(origin: Origin, buffers: int) -> Climb:
    """How the number for ``origin`` is looked for; half of ``buffers`` stripes of memory wait to be read."""
    start = START_SPREAD if isinstance(origin, SpreadOrigin) else START
    return Climb(start, max(1, buffers // 2))


class Streams(Protocol):
    """The requests to one origin in flight, and how many may be. On the event loop, but for ``passed``."""

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

    def passed(self) -> None:
        """From any thread, often: bytes came."""
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

    def passed(self) -> None:
        """See Streams."""

    def ended(self, stripe: Stripe) -> None:
        """See Streams."""
        self._flights -= 1

    def throttled(self) -> None:
        """See Streams."""


class TunedStreams:
    """As many as ``climb`` finds, shared by the files that are fetched at once.

    A number is judged only while that many are in flight: where readers want less, less says nothing.
    """

    tuned = True

    def __init__(self, climb: Climb) -> None:
        self._climb = climb
        self._clock = trio.lowlevel.current_clock()
        self._token = trio.lowlevel.current_trio_token()
        # The stripes in flight, with the bytes that they had before; and how many each version has of them.
        self._flights: dict[Stripe, int] = {}
        self._files: Counter[ObjectVersion] = Counter()
        self._arrived = 0
        # When to look next, and the time and the bytes at which this measurement began.
        self._due = 0.0
        self._mark: tuple[float, int] | None = None
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
        self._flights[stripe] = stripe.filled
        self._files[stripe.key[0]] += 1

    def passed(self) -> None:
        """See Streams."""
        if self._clock.current_time() >= self._due:
            self._token.run_sync_soon(self._look, idempotent=True)

    def ended(self, stripe: Stripe) -> None:
        """See Streams."""
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
            self._settle(now)

    def _look(self) -> None:
        now = self._clock.current_time()
        if now < self._due:
            return
        count = self._climb.count
        if len(self._flights) < count - count // SLACK:
            self._mark = None
            self._due = now + SETTLING
            return
        bytes_now = self._arrived + sum(stripe.filled - had for stripe, had in self._flights.items())
        if self._mark is None:
            self._mark = now, bytes_now
            self._due = now + JUDGED_SECONDS
            return
        since, had = self._mark
        if bytes_now - had < JUDGED_BYTES * count:
            self._due = now + SETTLING
            return
        self._climb.gave((bytes_now - had) / (now - since))
        if self._climb.count == count:
            self._mark = now, bytes_now
            self._due = now + JUDGED_SECONDS
        else:
            self._settle(now)

    def _settle(self, now: float) -> None:
        """Requests made from now on have to get under way before what comes says anything."""
        self._mark = None
        self._due = now + SETTLING
