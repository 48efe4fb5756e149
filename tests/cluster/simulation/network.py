"""Links in virtual time: chunks that take turns on the way out of a node and queue on the way in."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

__all__ = ["Clock", "Link", "OriginLink", "Transfer"]


class Clock:
    """What happens when, in seconds. Things of one moment happen in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()

    def at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        """Have ``call`` happen at ``when``."""
        heapq.heappush(self._planned, (when, next(self._numbers), call, arguments))

    def run(self) -> None:
        """Until nothing is planned any more."""
        planned = self._planned
        while planned:
            self.now, _number, call, arguments = heapq.heappop(planned)
            call(*arguments)


class Transfer(Protocol):
    """Some chunks on their way, of which one at a time is on a link."""

    @property
    def to(self) -> Link:
        """The link of the node that gets it."""
        ...

    def arrived(self) -> None:
        """One more chunk is there."""
        ...


class Link:
    """A node's link: so many seconds a chunk ``up`` and ``down``.

    Whoever has a chunk to send takes turns on the way up. On the way down a chunk that finds the link free
    takes no more time than it took to send.
    """

    def __init__(self, clock: Clock, up: float, down: float) -> None:
        self._clock = clock
        self._up = up
        self._down = down
        self._turns: deque[Transfer] = deque()
        self._is_busy = False
        self._down_free = 0.0
        self.sent = 0

    def send(self, transfer: Transfer) -> None:
        """A chunk of it is to be sent."""
        self._turns.append(transfer)
        if not self._is_busy:
            self._next()

    def receive(self, transfer: Transfer) -> None:
        """The last byte of a chunk of ``transfer`` was sent now."""
        clock = self._clock
        self._down_free = when = max(clock.now, self._down_free + self._down)
        if when > clock.now:
            clock.at(when, transfer.arrived)
        else:
            transfer.arrived()

    def _next(self) -> None:
        self._is_busy = True
        self._clock.at(self._clock.now + self._up, self._is_sent, self._turns.popleft())

    def _is_sent(self, transfer: Transfer) -> None:
        self.sent += 1
        if self._turns:
            self._next()
        else:
            self._is_busy = False
        transfer.to.receive(transfer)


class OriginLink:
    """The origin: so many seconds a chunk on one ``connection``, and for all of them in ``total``."""

    def __init__(self, clock: Clock, connection: float, total: float) -> None:
        self._clock = clock
        self._connection = connection
        self._total = total
        self._free = 0.0
        self.sent = 0

    def send(self, transfer: Transfer) -> None:
        """A chunk of it is to be sent."""
        now = self._clock.now
        self._free = max(now, self._free) + self._total
        self._clock.at(max(now + self._connection, self._free), self._is_sent, transfer)

    def _is_sent(self, transfer: Transfer) -> None:
        self.sent += 1
        transfer.to.receive(transfer)
