"""The nodes of one job read one file at the same time: from each other, whatever happens. Needs root."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import xxhash

from fusestripe.units import MIB
from tests.support.mounted import until
from tests.support.mounted_store import content
from tests.support.network import Hosts
from tests.support.nodes import Nodes, Origin, Outcome, Race, hdfs_origin, s3_origin

NODES = 4
SIZE = 48 * MIB - 12_345
STRIPE = MIB
STRIPES = -(-SIZE // STRIPE)
ORIGIN_RATE, NODE_RATE = 20e6, 100e6
"""Bytes a second of a link."""
ALONE = SIZE / ORIGIN_RATE
"""Seconds that the origin needs to send the file once."""
SETTINGS = {"stripes": {"memory": "64MiB", "size": "1MiB"}}
NAME = "model.bin"
MOST = 1.25
"""Times the file that the origin sends at most: on a busy machine a node may seem late that is not."""
LONGEST = 60.0
"""Seconds after which a race is given up."""


class Lab:
    """NODES hosts, and one more for the origin with the file; links are limited as at the start of a test."""

    def __init__(self, hosts: Hosts, origin: Origin, file: Path) -> None:
        self.hosts, self.origin, self.file = hosts, origin, file
        self.digest = xxhash.xxh3_64_hexdigest(file.read_bytes())

    def limit(self) -> None:
        """Every link as it should be."""
        for host in range(NODES):
            self.hosts.limit(NODE_RATE, host=host, both_ways=True)
        for host in self.origin.hosts:
            self.hosts.join(host)
            self.hosts.limit(ORIGIN_RATE / len(self.origin.hosts), host=host, both_ways=True)

    @contextmanager
    def nodes(self, directory: Path, *, peers: bool, slurm: bool = False) -> Iterator[Nodes]:
        """None of them runs yet. ``slurm``: they know each other by the environment of a job."""
        self.limit()
        with Nodes(
            self.hosts, self.origin, directory, NODES, peers=peers, slurm=slurm, settings=SETTINGS
        ) as nodes:
            yield nodes

    def check(self, outcome: Outcome) -> None:
        """Everybody has the right bytes."""
        assert outcome.wrong(self.digest) == {}


@pytest.fixture(scope="module", params=["s3"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("nodes")
    file = directory / NAME
    file.write_bytes(content(SIZE, 1))
    with Hosts(NODES + 1) as hosts:
        if request.param == "s3":
            made = s3_origin(hosts, NODES, directory / "origin", {NAME: file})
        else:
            made = hdfs_origin(hosts, [NODES], directory / "origin", {NAME: file}, 16 * MIB)
        with made as origin:
            yield Lab(hosts, origin, file)


def all_read(nodes: Nodes) -> Outcome:
    """All of them, at the same moment."""
    nodes.start()
    nodes.meet()
    return Race(nodes, NAME).finish(LONGEST)


def test_without_peers_each_reads_it_from_the_origin(lab: Lab, tmp_path: Path) -> None:
    with lab.nodes(tmp_path, peers=False) as nodes:
        outcome = all_read(nodes)
    lab.check(outcome)
    assert outcome.origin_sent >= NODES * SIZE
    assert max(outcome.seconds.values()) >= 0.9 * NODES * ALONE
    assert all(traffic.received >= SIZE for traffic in outcome.traffic.values())


@pytest.mark.parametrize("lab", ["s3", "hdfs"], indirect=True)
def test_the_origin_sends_it_once(lab: Lab, tmp_path: Path) -> None:
    with lab.nodes(tmp_path, peers=True) as nodes:
        outcome = all_read(nodes)
    lab.check(outcome)
    assert outcome.origin_sent <= MOST * SIZE
    assert max(outcome.seconds.values()) <= 3 * ALONE


def test_nodes_of_a_slurm_job_find_each_other(lab: Lab, tmp_path: Path) -> None:
    with lab.nodes(tmp_path, peers=True, slurm=True) as nodes:
        nodes.start()
        nodes.meet()
        names = [nodes.mount(number).status()["peers"]["me"] for number in range(NODES)]
        assert names == [f"{lab.hosts.addresses[number]}:7073" for number in range(NODES)]
        outcome = Race(nodes, NAME).finish(LONGEST)
    lab.check(outcome)
    assert outcome.origin_sent <= MOST * SIZE


def test_a_node_that_is_killed_half_way(lab: Lab, tmp_path: Path) -> None:
    with lab.nodes(tmp_path, peers=True) as nodes:
        nodes.start(complaints=True)
        nodes.meet()
        race = Race(nodes, NAME)
        race.readers[1].wait_for(SIZE // 2, LONGEST)
        nodes.mount(1).kill()
        outcome = race.finish(LONGEST)
    assert outcome.reads[1].error
    assert outcome.wrong(lab.digest).keys() == {1}
    assert max(outcome.seconds.values()) <= 3 * ALONE


def test_a_node_that_joins_half_way(lab: Lab, tmp_path: Path) -> None:
    with lab.nodes(tmp_path, peers=True) as nodes:
        nodes.start(range(NODES - 1), complaints=True)
        nodes.meet()
        race = Race(nodes, NAME, range(NODES - 1))
        race.readers[0].wait_for(SIZE // 2, LONGEST)
        nodes.start([NODES - 1])
        race.join(NODES - 1)
        outcome = race.finish(LONGEST)
    lab.check(outcome)
    assert len(outcome.reads) == NODES
    assert max(outcome.seconds.values()) <= 3 * ALONE


def test_a_node_that_becomes_slow_half_way(lab: Lab, tmp_path: Path) -> None:
    with lab.nodes(tmp_path, peers=True) as nodes:
        nodes.start(complaints=True)
        nodes.meet()
        race = Race(nodes, NAME)
        race.readers[1].wait_for(SIZE // 2, LONGEST)
        nodes.hosts.limit(NODE_RATE / 20, host=1, both_ways=True)
        race.drop(1)
        outcome = race.finish(LONGEST)
    lab.check(outcome)
    assert max(outcome.seconds.values()) <= 3 * ALONE


def test_an_origin_that_is_cut_off_once_every_stripe_is_on_a_node(lab: Lab, tmp_path: Path) -> None:
    with lab.nodes(tmp_path, peers=True) as nodes:
        nodes.start(complaints=True)
        nodes.meet()
        late = nodes.reader(NODES - 1, NAME)  # what version there is it has seen
        race = Race(nodes, NAME, range(NODES - 1))

        until(
            lambda: set(range(STRIPES)) == {at for node in range(NODES) for at in nodes.held(node)}, LONGEST
        )
        nodes.cut_origin_off()
        race.add(NODES - 1, late)
        outcome = race.finish(LONGEST)
    lab.check(outcome)
    assert len(outcome.reads) == NODES


def test_a_peer_that_sends_wrong_bytes(lab: Lab, tmp_path: Path) -> None:
    with lab.nodes(tmp_path, peers=True) as nodes, nodes.impostor(NODES - 1, lab.file, STRIPE, "flip"):
        nodes.start(range(NODES - 1), complaints=True)
        nodes.meet()
        outcome = Race(nodes, NAME, range(NODES - 1)).finish(LONGEST)
        logs = [nodes.mount(node).log() for node in range(NODES - 1)]
    lab.check(outcome)
    named = re.compile(rf" ERROR .*{re.escape(nodes.address(NODES - 1))} .*it sent wrong bytes of stripe \d+")
    assert any(named.search(log) for log in logs), logs
    assert outcome.origin_sent <= 2 * SIZE
