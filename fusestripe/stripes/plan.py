"""Where stripes lie in a file. Pure arithmetic; all sizes and offsets in bytes."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator

import msgspec

__all__ = ["Piece", "pieces", "spread_out", "stripe_count", "stripe_length", "take_turns"]


class Piece(msgspec.Struct, frozen=True):
    """The part ``start:stop`` of stripe ``index`` that a read asks for (offsets inside the stripe)."""

    index: int
    start: int
    stop: int


def stripe_count(size: int, stripe_size: int) -> int:
    """How many stripes a file of ``size`` has; none for an empty one."""
    return -(-size // stripe_size)


def stripe_length(index: int, size: int, stripe_size: int) -> int:
    """Length of stripe ``index``: ``stripe_size``, less for the last, 0 past the end."""
    return max(0, min(stripe_size, size - index * stripe_size))


def pieces(offset: int, length: int, stripe_size: int) -> Iterator[Piece]:
    """The pieces that cover ``length`` bytes from ``offset``, in order."""
    end = offset + length
    while offset < end:
        index, start = divmod(offset, stripe_size)
        stop = min(stripe_size, start + end - offset)
        yield Piece(index, start, stop)
        offset += stop - start


def take_turns(walks: Iterable[Iterator[tuple[int, int]]], stripe_size: int) -> Iterator[int]:
    """The stripes under the (offset, length) ranges of several walks, one of each in turn, none twice."""
    queues = [_stripes_under(walk, stripe_size) for walk in walks]
    seen: set[int] = set()
    while queues:
        for queue in list(queues):
            index = next(queue, None)
            if index is None:
                queues.remove(queue)
            elif index not in seen:
                seen.add(index)
                yield index


def spread_out(wanted: Iterable[int], busy: Iterable[int], stripe_size: int, unit: int) -> Iterator[int]:
    """The ``wanted`` stripes, each once, in an order that loads many servers at once.

    ``unit`` bytes of the file lie on one server (a block of HDFS); 0 where nothing lies anywhere. The next is
    always of a unit with the fewest stripes so far, ``busy`` ones among them; of several, the one whose
    stripe stands first in ``wanted``. Inside a unit the order stays.
    """
    if unit <= stripe_size:
        yield from wanted
        return
    units: dict[int, deque[int]] = {}
    for index in wanted:
        units.setdefault(index * stripe_size // unit, deque()).append(index)
    load = Counter(index * stripe_size // unit for index in busy)
    # Units were met in the order of their first stripes.
    heap = [(load[key], rank, queue) for rank, (key, queue) in enumerate(units.items())]
    heapq.heapify(heap)
    while heap:
        count, rank, queue = heap[0]
        yield queue.popleft()
        if queue:
            heapq.heapreplace(heap, (count + 1, rank, queue))
        else:
            heapq.heappop(heap)


def _stripes_under(walk: Iterator[tuple[int, int]], stripe_size: int) -> Iterator[int]:
    for offset, length in walk:
        yield from range(offset // stripe_size, (offset + length - 1) // stripe_size + 1)
