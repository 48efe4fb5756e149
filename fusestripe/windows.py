"""How far ahead of its readers each file is fetched, and which of its stripes next: fair among files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import trio

from fusestripe.openfiles import OpenFile
from fusestripe.stripes.memory import BufferPool
from fusestripe.stripes.plan import spread_out, take_turns
from fusestripe.stripes.traffic import TrafficTable
from fusestripe.units import ObjectVersion

__all__ = ["Windows"]

# Pieces of a file, each on another server, that are read from at once as far as the memory allows.
UNITS_AHEAD = 4
# Seconds after its last read for which a file has a share of the memory.
ACTIVE = 5.0
# Of nodes that share what they fetch each has requests of its own to the origin; so many times more in flight
# are worth their memory, of which no more than this part is in flight.
NODES_AT_MOST = 4
IN_FLIGHT_PART = 3 / 8


class Windows:
    """A file holds its share of the memory of ``pool``, and has in flight what ``traffic`` says.

    ``nodes`` says how many share what they fetch, this one among them; None: it is alone. On the event loop.
    """

    def __init__(
        self,
        pool: BufferPool,
        traffic: TrafficTable,
        stripe_size: int,
        nodes: Callable[[], int] | None = None,
    ) -> None:
        self._nodes = nodes
        self._pool = pool
        self._traffic = traffic
        self._stripe_size = stripe_size
        self._active: OrderedDict[ObjectVersion, float] = OrderedDict()

    def touch(self, file: OpenFile) -> None:
        """Somebody reads from it."""
        self._active[file.version] = trio.current_time()
        self._active.move_to_end(file.version)

    def in_flight(self, file: OpenFile) -> int:
        """How many of its stripes may be in flight, from the origin or from nodes that share them."""
        share = self._traffic.of(file.origin).streams.share(file.version)
        if self._nodes is None:
            return share
        nodes = min(self._nodes(), NODES_AT_MOST)
        return max(share, min(nodes * share, int(self._pool.buffers * IN_FLIGHT_PART)))

    def wanted(
        self,
        file: OpenFile,
        walks: Iterable[Iterator[tuple[int, int]]],
        is_here: Callable[[int], bool],
    ) -> Iterator[int]:
        """The stripes of its window, the next first.

        ``walks`` are the ranges that each of its readers will want; ``is_here``: in memory or on its way.
        """
        nearest = islice(take_turns(walks, self._stripe_size), self._size(file))
        if not file.is_spread:
            return nearest
        missing = (index for index in nearest if not is_here(index))
        near = islice(missing, max(self.in_flight(file), self._units(file)))
        return spread_out(near, file.in_flight, self._stripe_size, file.unit)

    def _size(self, file: OpenFile) -> int:
        """In stripes: more than may be in flight, for those behind one that is late.

        Of a file that is spread there are more servers that may be late.
        """
        horizon = trio.current_time() - ACTIVE
        while self._active and next(iter(self._active.values())) < horizon:
            self._active.popitem(last=False)
        share = self._pool.buffers * 3 // 4 // max(1, len(self._active))
        in_flight = self.in_flight(file)
        wish = max(3 * in_flight, self._units(file)) if file.is_spread else in_flight + in_flight // 2
        return max(1, min(wish, share))

    def _units(self, file: OpenFile) -> int:
        return UNITS_AHEAD * file.unit // self._stripe_size
