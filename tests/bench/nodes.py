"""The nodes of a job, each behind a link of its own, read one file together: the origin sends it once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import xxhash

from fusestripe.units import MIB, format_size
from tests.bench.case import Case, Options, Tell
from tests.bench.lab import Lab, write_random
from tests.bench.result import Figure, Result, Side
from tests.support.mounted import until
from tests.support.network import Hosts
from tests.support.nodes import Nodes, Origin, Outcome, Race, hdfs_origin, s3_origin

__all__ = ["NODES"]

NAME = "model.bin"
SLOWER = 20
"""How many times slower one node becomes."""
KILLED, SLOWED = 0, 1
"""What happens to which node; the last one joins later."""
PATIENCE = 6.0
"""Times what each would take if all read for themselves, until a race is given up."""
HDFS_BLOCK = 32 * MIB


class Plan(msgspec.Struct, frozen=True):
    """How many nodes, the file's bytes and xxh3_64, and the rates of links (bytes/s)."""

    nodes: int
    size: int
    stripe: int
    digest: str
    origin_rate: float
    node_rate: float

    @property
    def once(self) -> float:
        """Seconds in which the origin can send the file once."""
        return self.size / self.origin_rate

    @property
    def patience(self) -> float:
        """Seconds after which a race is given up."""
        return PATIENCE * self.nodes * self.once


class Place:
    """Where races are run: the nodes' hosts, an origin with the file, and a new directory for each race."""

    def __init__(self, plan: Plan, hosts: Hosts, origin: Origin, directory: Path, tell: Tell) -> None:
        self.plan, self.hosts, self.origin, self.tell = plan, hosts, origin, tell
        self._directory = directory
        self._numbers = itertools.count()

    @contextmanager
    def nodes(self, *, peers: bool) -> Iterator[Nodes]:
        """Nodes with cold caches, all links as they should be, no daemon yet."""
        for host in range(self.plan.nodes):
            self.hosts.limit(self.plan.node_rate, host=host, both_ways=True)
        for host in self.origin.hosts:
            self.hosts.join(host)
            self.hosts.limit(self.plan.origin_rate / len(self.origin.hosts), host=host, both_ways=True)
        directory = self._directory / f"race-{next(self._numbers)}"
        settings = {"stripes": {"size": self.plan.stripe, "memory": "128MiB"}}
        with Nodes(
            self.hosts, self.origin, directory, self.plan.nodes, peers=peers, settings=settings
        ) as made:
            yield made

    def all_read(self, *, peers: bool) -> Outcome:
        """Every node reads the file, and nothing happens."""
        self.tell(f"{self.plan.nodes} nodes read {'' if peers else 'without peers'}")
        with self.nodes(peers=peers) as nodes:
            nodes.start()
            nodes.meet()
            return self.checked(Race(nodes, NAME).finish(self.plan.patience))

    def something_happens(self) -> Outcome:
        """Half way one node is killed, one becomes slow, one joins; what the others and that one did."""
        self.tell("one is killed, one slowed, one joins")
        last = self.plan.nodes - 1
        with self.nodes(peers=True) as nodes:
            nodes.start(range(last), complaints=True)
            nodes.meet()
            race = Race(nodes, NAME, range(last))
            race.readers[KILLED].wait_for(self.plan.size // 2, self.plan.patience)
            nodes.mount(KILLED).kill()
            nodes.hosts.limit(self.plan.node_rate / SLOWER, host=SLOWED, both_ways=True)
            nodes.start([last], complaints=True)
            race.join(last)
            race.drop(KILLED)
            race.drop(SLOWED)
            return self.checked(race.finish(self.plan.patience))

    def origin_goes(self) -> Outcome:
        """Once every stripe is on some node nothing comes from the origin any more; one begins only then."""
        self.tell("the origin is cut off")
        last = self.plan.nodes - 1
        with self.nodes(peers=True) as nodes:
            nodes.start(complaints=True)
            nodes.meet()
            late = nodes.reader(last, NAME)
            race = Race(nodes, NAME, range(last))

            def is_all_there() -> bool:
                held = {stripe for node in range(nodes.count) for stripe in nodes.held(node)}
                return len(held) == -(-self.plan.size // self.plan.stripe)

            until(is_all_there, self.plan.patience)
            nodes.cut_origin_off()
            race.add(last, late)
            return self.checked(race.finish(self.plan.patience))

    def one_lies(self, file: Path) -> tuple[Outcome, bool]:
        """On the last node there is a peer that sends wrong bytes; also whether the others' logs name it."""
        self.tell("a peer sends wrong bytes")
        last = self.plan.nodes - 1
        with self.nodes(peers=True) as nodes, nodes.impostor(last, file, self.plan.stripe, "flip"):
            nodes.start(range(last), complaints=True)
            nodes.meet()
            outcome = self.checked(Race(nodes, NAME, range(last)).finish(self.plan.patience))
            lines = [line for node in range(last) for line in nodes.mount(node).complaints()]
            is_named = any("wrong bytes" in line and nodes.address(last) in line for line in lines)
            return outcome, is_named

    def checked(self, outcome: Outcome) -> Outcome:
        """``outcome``, of which every reader has the right bytes. Raises RuntimeError."""
        wrong = outcome.wrong(self.plan.digest)
        if wrong:
            raise RuntimeError(f"not every node has the right bytes: {wrong}")
        return outcome


def run(lab: Lab, options: Options, tell: Tell) -> Result:
    """With peers and without, what may happen to nodes and origin on the way; with peers from HDFS too.

    "once" is what the origin needs to send the file once.
    """
    with lab.scratch() as directory:
        file = write_random(directory / NAME, options.file_size(512 * MIB, 64 * MIB))
        plan = Plan(
            nodes=options.nodes or options.pick(8, 3),
            size=file.stat().st_size,
            stripe=options.pick(8 * MIB, 2 * MIB),
            digest=_digest(file),
            origin_rate=40e6,
            node_rate=100e6,
        )
        with ExitStack() as stack:
            hosts = stack.enter_context(Hosts(plan.nodes + 1))
            tell("starting an S3 server")
            origin = stack.enter_context(s3_origin(hosts, plan.nodes, directory / "s3", {NAME: file}))
            place = Place(plan, hosts, origin, directory / "on-s3", tell)
            sides, figures, notes = _on_s3(place, file, options)
        if options.sharing and not options.short:
            with ExitStack() as stack:
                hosts = stack.enter_context(Hosts(plan.nodes + 1))
                tell("starting HDFS")
                made = hdfs_origin(hosts, [plan.nodes], directory / "hdfs", {NAME: file}, HDFS_BLOCK)
                origin = stack.enter_context(made)
                place = Place(plan, hosts, origin, directory / "on-hdfs", tell)
                outcome = place.all_read(peers=True)
            sides += _sides("HDFS", outcome)
            figures += _figures("HDFS", plan, outcome, options)
            notes += _notes("HDFS", outcome)
    return Result(
        case=NODES.name,
        title=f"{plan.nodes} nodes read one file of {format_size(plan.size)}; links of "
        f"{plan.node_rate / 1e6:.0f} MB/s, the origin's {plan.origin_rate / 1e6:.0f} MB/s",
        sides=tuple(sides),
        figures=tuple(figures),
        notes=tuple(notes),
    )


def _on_s3(place: Place, file: Path, options: Options) -> tuple[list[Side], list[Figure], list[str]]:
    plan = place.plan
    alone = place.all_read(peers=False)
    sides, notes = _sides("alone", alone), _notes("alone", alone)
    figures = [
        Figure("alone: origin's bytes / file's", alone.origin_sent / plan.size, 0.98 * plan.nodes),
        Figure("alone: seconds / once", _last(alone) / plan.once, 0.9 * plan.nodes),
    ]
    if not options.sharing:
        return sides, figures, notes
    shared = place.all_read(peers=True)
    races: Mapping[str, Callable[[], Outcome]] = {
        "half way": place.something_happens,
        "cut off": place.origin_goes,
    }
    sides += _sides("S3", shared)
    figures += _figures("S3", plan, shared, options)
    notes += _notes("S3", shared)
    for name, race in races.items():
        outcome = race()
        sides += _sides(name, outcome)
        wanted = options.pick(2.0, 10.0)  # of a small file the start of a daemon is most
        value = _last(outcome) / plan.once
        figures.append(Figure(f"{name}: seconds / once", value, wanted, at_least=False))
        notes += _notes(name, outcome)
    outcome, is_named = place.one_lies(file)
    sides += _sides("one lies", outcome)
    figures.append(Figure("one lies: it is named in a log", float(is_named), 1.0))
    return sides, figures, notes


def _figures(name: str, plan: Plan, outcome: Outcome, options: Options) -> list[Figure]:
    bytes_, seconds = outcome.origin_sent / plan.size, _last(outcome) / plan.once
    return [
        Figure(f"{name}: origin's bytes / file's", bytes_, options.pick(1.05, 1.2), at_least=False),
        Figure(f"{name}: seconds / once", seconds, options.pick(1.5, 3.0), at_least=False),
    ]


def _sides(name: str, outcome: Outcome) -> list[Side]:
    """What each node did: "median" and the others are over nodes."""
    traffic = outcome.traffic.values()
    return [
        Side(f"{name}: seconds of a node", tuple(outcome.seconds.values()), "s"),
        Side(f"{name}: received by a node", tuple(float(each.received) for each in traffic), "B"),
        Side(f"{name}: sent by a node", tuple(float(each.sent) for each in traffic), "B"),
        Side(f"{name}: sent by the origin", (float(outcome.origin_sent),), "B"),
    ]


def _notes(name: str, outcome: Outcome) -> list[str]:
    """A line a node."""
    lines = []
    for node in sorted(outcome.seconds):
        traffic = outcome.traffic[node]
        moved = f"in {format_size(traffic.received)}, out {format_size(traffic.sent)}"
        lines.append(f"{name}, node {node}: {outcome.seconds[node]:.1f} s, {moved}")
    return lines


def _last(outcome: Outcome) -> float:
    return max(outcome.seconds.values())


def _digest(path: Path) -> str:
    digest = xxhash.xxh3_64()
    with open(path, "rb") as file:
        while piece := file.read(MIB):
            digest.update(piece)
    return digest.hexdigest()


NODES = Case("nodes", "do the nodes of a job get a file from each other, whatever happens?", run)
