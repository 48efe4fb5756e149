"""What to evict: pure planning. All sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

__all__ = ["Candidate", "Forecast", "forecast", "plan"]


class Candidate(msgspec.Struct, frozen=True):
    """One object of the cache as eviction sees it. ``last_use_ns`` is nanoseconds since the epoch."""

    name: str
    size: int
    last_use_ns: int
    in_use: bool = False
    pinned: bool = False


class Forecast(msgspec.Struct, frozen=True):
    """What it takes to have ``need`` more bytes in the cache.

    ``used`` of the ``limit`` are taken now, and ``free`` is what the disk has left for the cache;
    ``evicted`` objects of ``evicted_bytes`` would have to go. Of what is used ``kept`` bytes cannot go: they
    are pinned, in use, or wanted themselves. ``fits``: limit and disk have the room then.
    """

    need: int
    used: int
    limit: int
    free: int
    kept: int
    evicted: int
    evicted_bytes: int
    fits: bool


def forecast(entries: Iterable[Candidate], *, need: int, limit: int, reserve: int, free: int) -> Forecast:
    """What ``plan`` comes to for the same arguments."""
    entries = list(entries)
    used = sum(entry.size for entry in entries)
    victims = plan(entries, need=need, limit=limit, reserve=reserve, free=free)
    freed = sum(entry.size for entry in victims)
    return Forecast(
        need=need,
        used=used,
        limit=limit,
        free=max(0, free - reserve),
        kept=sum(entry.size for entry in entries if entry.in_use or entry.pinned),
        evicted=len(victims),
        evicted_bytes=freed,
        fits=used + need - freed <= limit and free - need + freed >= reserve,
    )


def plan(entries: Iterable[Candidate], *, need: int, limit: int, reserve: int, free: int) -> list[Candidate]:
    """The objects to evict, least recently used first, so that ``need`` more bytes may be written.

    Afterwards the objects use at most ``limit - need``, and at least ``reserve + need`` of the disk is free
    (``free`` is now). Where that cannot be reached, no object is given up for ``need``, but the limit and the
    reserve themselves are kept as far as they can be. Objects in use and pinned ones are never named.
    """
    entries = list(entries)
    used = sum(entry.size for entry in entries)
    idle = sorted(
        (entry for entry in entries if not entry.in_use and not entry.pinned),
        key=lambda entry: (entry.last_use_ns, entry.name),
    )
    over_now = max(used - limit, reserve - free, 0)
    over_then = max(used + need - limit, reserve + need - free, 0)
    goal = over_then if sum(entry.size for entry in idle) >= over_then else over_now
    victims: list[Candidate] = []
    freed = 0
    for entry in idle:
        if freed >= goal:
            break
        victims.append(entry)
        freed += entry.size
    return victims
