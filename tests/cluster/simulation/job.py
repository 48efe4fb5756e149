"""A job in virtual time: nodes that all want one file, and get it from each other as the product does.

Who owns a stripe, in which order a node brings them, and who is sent on to whom is the product's own code.
What is asked of whom follows ``fusestripe.peers.asking`` and ``fusestripe.sharing``, step by step.
"""

from __future__ import annotations

import gc
import random
import statistics
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Literal
from unittest import mock

import msgspec

from fusestripe.peers import ring
from fusestripe.peers.asking import HOPS
from fusestripe.peers.handon import BUSY, FANOUT, HandOn
from fusestripe.peers.messages import CHUNK
from fusestripe.prefetcher import ARRANGED
from fusestripe.stripes.tuning import START
from fusestripe.units import MIB
from tests.cluster.simulation.network import Clock, Link, OriginLink

__all__ = ["Outcome", "Setup", "simulate"]

KEY = "d41d8cd98f00b204e9800998ecf8427e"
Mode = Literal["read", "prefetch"]


class Setup(msgspec.Struct, frozen=True):
    """``nodes`` of a job ``read`` or ``prefetch`` a file of ``stripes``. Rates in bytes/s, times in seconds.

    ``link`` is that of each node, both ways; ``connection`` that of one request to the origin, which gives
    ``origin`` to all. All begin within ``skew``; where ``late`` says so, one begins then, and until then only
    gives to others. One has a ``slow`` part of the link. A reader has ``window`` stripes before it, in the
    file's order unless ``arranged``.
    """

    nodes: int
    mode: Mode = "prefetch"
    stripes: int = 512
    fanout: int = FANOUT
    busy: int = BUSY
    stripe_size: int = 8 * MIB
    link: float = 1.25e9
    origin: float = 10e9
    connection: float = 100e6
    first_byte: float = 0.02
    latency: float = 0.0005
    skew: float = 0.1
    in_flight: int = START
    window: int = START + START // 2
    arranged: bool = False
    late: float = 0.0
    slow: float = 1.0
    seed: int = 1


class Outcome(msgspec.Struct, frozen=True):
    """What came of it: when the last node and the ``median`` one had the file, in ``seconds``.

    ``had``: when the last one had one stripe, two, and so on. ``from_origin``: of each byte, so many times.
    A stripe came on the average over ``depth`` nodes, at most over ``deepest``, after so many were ``asked``.
    One node sent ``most_sent`` times the file, more than any other. The last one took ``last_took``.
    """

    setup: Setup
    seconds: float
    median: float
    had: tuple[float, ...]
    from_origin: float
    depth: float
    deepest: int
    asked: float
    most_sent: float
    last_took: float

    @property
    def rate(self) -> float:
        """What the slowest node gets in the second half, in bytes/s: so it would go on with a longer file."""
        half = len(self.had) // 2
        came = (len(self.had) - half) * self.setup.stripe_size
        # Not always the same node is the slowest, but none is faster than its link.
        return min(self.setup.link, came / (self.had[-1] - self.had[half - 1]))

    def whole(self, size: int) -> float:
        """Seconds for a file of ``size`` bytes, at that rate."""
        return self.seconds + (size - len(self.had) * self.setup.stripe_size) / self.rate


class _Copy:
    """A stripe at a node: ``filled`` chunks of it are there, and others get it from there."""

    __slots__ = ("children", "depth", "filled", "index", "node")

    def __init__(self, node: _Node, index: int) -> None:
        self.node = node
        self.index = index
        self.filled = 0
        self.depth = 0
        self.children: list[_Flow] = []

    def advance(self) -> None:
        self.filled += 1
        for child in self.children:
            child.go_on()
        if self.filled == self.node._job.chunks:
            self.node.has(self)


class _FromOrigin:
    """A Transfer: a request to the origin."""

    __slots__ = ("_copy", "to")

    def __init__(self, copy: _Copy) -> None:
        self._copy = copy
        self.to = copy.node.link
        job = copy.node._job
        job.from_origin += 1
        job.clock.at(job.clock.now + job.setup.first_byte, job.origin.send, self)

    def arrived(self) -> None:
        copy = self._copy
        copy.advance()
        if copy.filled < copy.node._job.chunks:
            copy.node._job.origin.send(self)


class _Flow:
    """A Transfer: a stripe from one node to another."""

    __slots__ = ("_chunks", "_is_on_link", "_source", "_target", "to")

    def __init__(self, source: _Copy, target: _Copy) -> None:
        self._source = source
        self._target = target
        self._chunks = source.node._job.chunks
        self.to = target.node.link
        self._is_on_link = False
        target.depth = source.depth + 1
        source.children.append(self)
        self.go_on()

    def go_on(self) -> None:
        if not self._is_on_link and self._target.filled < self._source.filled:
            self._is_on_link = True
            self._source.node.link.send(self)

    def arrived(self) -> None:
        self._is_on_link = False
        source, target = self._source, self._target
        target.filled += 1
        if target.filled == self._chunks:
            source.children.remove(self)
            source.node.hand_on.ended(target.index, target.node.name, whole=True)
        else:
            self.go_on()
        for child in target.children:
            child.go_on()
        if target.filled == self._chunks:
            target.node.has(target)


class _Node:
    def __init__(self, job: _Job, name: str, rate: float) -> None:
        self._job = job
        self.name = name
        self.link = Link(job.clock, CHUNK / rate, CHUNK / rate)
        self.hand_on = HandOn(job.setup.fanout, job.setup.busy)
        self._copies: dict[int, _Copy] = {}
        self._whole: set[int] = set()
        self._in_flight: set[int] = set()
        # Of a prefetch: what it has still to bring, and what it waits for.
        self._has_begun = False
        self._order = self._arranged()
        self._slots: set[int] = set()
        # Of a reader: the first stripe that it does not have.
        self._position = 0

    def begin(self) -> None:
        """It wants the file now."""
        self._has_begun = True
        self._bring_more()

    def has(self, copy: _Copy) -> None:
        """All of ``copy`` is here."""
        self._whole.add(copy.index)
        self._in_flight.discard(copy.index)
        self._slots.discard(copy.index)
        self._job.note(self, len(self._whole), copy.depth)
        self._bring_more()

    def _arranged(self) -> Iterator[int]:
        """As Prefetcher._order."""
        job = self._job
        for start in range(0, job.setup.stripes, ARRANGED):
            some = range(start, min(job.setup.stripes, start + ARRANGED))
            yield from ring.own_first(job.names, self.name, KEY, some)

    def _bring_more(self) -> None:
        if not self._has_begun:
            return
        if self._job.setup.mode == "prefetch":
            self._fill_slots()
        else:
            self._read_ahead()

    def _fill_slots(self) -> None:
        """As Prefetcher._for_each_stripe."""
        slots = 2 * self._job.setup.in_flight
        while len(self._slots) < slots:
            index = next(self._order, None)
            if index is None:
                return
            if index not in self._whole:
                self._slots.add(index)
                if index not in self._copies:
                    self._bring(index)

    def _read_ahead(self) -> None:
        """As Reader and Windows, of a reader that takes what it gets at once."""
        setup = self._job.setup
        while self._position in self._whole:
            self._position += 1
        ahead = range(self._position, min(setup.stripes, self._position + setup.window))
        wanted = [index for index in ahead if index not in self._copies]
        if setup.arranged:
            urgent = wanted[:1] if wanted[:1] == [self._position] else []
            others = wanted[len(urgent) :]
            wanted = urgent + ring.own_first(self._job.names, self.name, KEY, others)
        for index in wanted:
            if len(self._in_flight) >= setup.in_flight and index != self._position:
                return
            self._bring(index)

    def _bring(self, index: int) -> None:
        """As Asking.bring."""
        copy = self._begin(index)
        owner = self._job.owner(index)
        if owner is self:
            _FromOrigin(copy)
        else:
            self._ask(copy, owner, 0)

    def _ask(self, copy: _Copy, member: _Node, hops: int) -> None:
        self._job.asked += 1
        clock = self._job.clock
        clock.at(clock.now + self._job.setup.latency, member._answer, self, copy, hops)

    def _answer(self, asker: _Node, copy: _Copy, hops: int) -> None:
        """As Sharing.take."""
        elsewhere = self.hand_on.ask(copy.index, asker.name, hops=hops)
        if elsewhere is None:
            _Flow(self._lend(copy.index), copy)
        elif hops + 1 < HOPS:
            asker._ask(copy, self._job.node(elsewhere), hops + 1)
        else:
            _FromOrigin(copy)

    def _lend(self, index: int) -> _Copy:
        """As Reader.lend."""
        copy = self._copies.get(index)
        if copy is None:
            copy = self._begin(index)
            _FromOrigin(copy)
        return copy

    def _begin(self, index: int) -> _Copy:
        copy = self._copies[index] = _Copy(self, index)
        self._in_flight.add(index)
        return copy


class _Job:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.clock = Clock()
        self.chunks = setup.stripe_size // CHUNK
        self.origin = OriginLink(self.clock, CHUNK / setup.connection, CHUNK / setup.origin)
        self.names = [f"node{number}:4817" for number in range(setup.nodes)]
        self._nodes = {
            name: _Node(self, name, setup.link * (1 if number else setup.slow))
            for number, name in enumerate(self.names)
        }
        self.from_origin = self.asked = 0
        self._depths: Counter[int] = Counter()
        self._had = [0.0] * setup.stripes
        self._done: dict[str, float] = {}

    def node(self, name: str) -> _Node:
        return self._nodes[name]

    def owner(self, index: int) -> _Node:
        return self._nodes[ring.owner(self.names, KEY, index)]

    def note(self, node: _Node, count: int, depth: int) -> None:
        """``node`` has ``count`` stripes now, the latest over ``depth`` others."""
        self._had[count - 1] = self.clock.now
        self._depths[depth] += 1
        if count == self.setup.stripes:
            self._done[node.name] = self.clock.now

    def run(self) -> Outcome:
        setup = self.setup
        chance = random.Random(setup.seed)
        begin = {name: chance.uniform(0, setup.skew) for name in self.names}
        last = self.names[-1]
        begin[last] = setup.late or begin[last]
        for name, node in self._nodes.items():
            self.clock.at(begin[name], node.begin)
        self.clock.run()
        assert len(self._done) == setup.nodes, "some wait for ever"
        came = setup.nodes * setup.stripes
        return Outcome(
            setup,
            seconds=self.clock.now,
            median=statistics.median(self._done.values()),
            had=tuple(self._had),
            from_origin=self.from_origin / setup.stripes,
            depth=sum(depth * count for depth, count in self._depths.items()) / came,
            deepest=max(self._depths),
            asked=self.asked / came,
            most_sent=max(node.link.sent for node in self._nodes.values()) / self.chunks / setup.stripes,
            last_took=self._done[last] - begin[last],
        )


def simulate(setup: Setup) -> Outcome:
    """Until the last node has the file."""
    job = _Job(setup)
    of_all = ring.owner

    # Who owns a stripe of all members is worked out once, and not by each node.
    @cache
    def owner(index: int) -> str:
        return of_all(job.names, KEY, index)

    collects = gc.isenabled()
    gc.disable()  # what lives here lives to the end: looking for garbage would take half of the time
    try:
        with mock.patch.object(ring, "owner", lambda _members, _key, index: owner(index)):
            return job.run()
    finally:
        if collects:
            gc.enable()
