"""Who is handed a stripe and who is sent on: a tree for each stripe, whatever the order of asking."""

from __future__ import annotations

from collections import Counter
from math import log
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fusestripe.peers import handon
from fusestripe.peers.handon import BUSY, FANOUT, PATIENT, HandOn

MEMBERS = [f"node{number}:4817" for number in range(8)]


class Spreading(RuleBasedStateMachine):
    """One node that a few members ask for a few stripes, beside a model of whom it sends them to."""

    def __init__(self) -> None:
        super().__init__()
        self.hand_on = HandOn(2, busy=4)
        self.sending: set[tuple[int, str]] = set()
        self.failed: set[tuple[int, str]] = set()
        self.had: set[tuple[int, str]] = set()

    def receivers(self, key: int) -> set[str]:
        return {member for stripe, member in self.sending if stripe == key}

    @rule(
        key=st.integers(0, 2),
        asker=st.sampled_from(MEMBERS),
        avoid=st.sets(st.sampled_from(MEMBERS), max_size=3),
        hops=st.integers(0, 2 * PATIENT),
        passes_on=st.booleans(),
    )
    def ask(self, key: int, asker: str, avoid: set[str], hops: int, passes_on: bool) -> None:
        if (key, asker) in self.sending:
            return
        is_busy = len(self.sending) >= 4
        receivers = self.receivers(key)
        self.failed |= {(key, member) for member in avoid}
        self.had -= self.failed
        named = self.hand_on.ask(key, asker, avoid, hops=hops, passes_on=passes_on)
        holders = {member for stripe, member in self.had if stripe == key} - {asker}
        most = 1 if is_busy and hops < PATIENT else 2
        if len(receivers) >= most and holders:
            assert named in holders
        else:
            assert named is None
            self.sending.add((key, asker))
            if passes_on:
                self.failed.discard((key, asker))
                self.had.add((key, asker))

    @precondition(lambda self: self.sending)
    @rule(data=st.data(), whole=st.booleans())
    def end(self, data: st.DataObject, whole: bool) -> None:
        key, member = data.draw(st.sampled_from(sorted(self.sending)))
        self.hand_on.ended(key, member, whole=whole)
        self.sending.discard((key, member))
        if not whole:
            self.had.discard((key, member))

    @invariant()
    def counts(self) -> None:
        assert self.hand_on.sending == len(self.sending)


TestSpreading = Spreading.TestCase
TestSpreading.settings = settings(max_examples=60, stateful_step_count=40)


class Tree:
    """All members of a job, and one stripe that nobody has yet but its owner, who is asked first."""

    def __init__(self, members: int, fanout: int, busy: int) -> None:
        self.nodes = {f"n{number}": HandOn(fanout, busy) for number in range(members)}
        self.owner = "n0"
        self.depth = {self.owner: 0}
        self.parent: dict[str, str] = {}

    def ask(self, asker: str) -> None:
        member, hops = self.owner, 0
        while True:
            named = self.nodes[member].ask("stripe", asker, hops=hops)
            assert named not in (asker, member)
            if named is None:
                break
            member, hops = named, hops + 1
        # Who was named is on its way to have it itself.
        self.depth[asker] = self.depth[member] + 1
        self.parent[asker] = member

    def ended(self, asker: str) -> None:
        self.nodes[self.parent[asker]].ended("stripe", asker, whole=True)


@given(members=st.integers(2, 300), fanout=st.integers(2, 8), chance=st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_all_at_once_make_a_tree_as_deep_as_a_logarithm(members: int, fanout: int, chance: Random) -> None:
    tree = Tree(members, fanout, BUSY)
    askers = [name for name in tree.nodes if name != tree.owner]
    chance.shuffle(askers)
    for asker in askers:
        tree.ask(asker)
    assert max(Counter(tree.parent.values()).values()) <= fanout
    # A full tree of that depth has no room for as many.
    assert max(tree.depth.values()) <= log(members, fanout) + 1


@given(members=st.integers(2, 200))
@settings(max_examples=40)
def test_where_all_are_busy_trees_are_deeper_by_so_many_hops_at_most(members: int) -> None:
    tree = Tree(members, FANOUT, busy=0)
    for number in range(1, members):
        tree.ask(f"n{number}")
    assert max(Counter(tree.parent.values()).values()) <= FANOUT
    assert max(tree.depth.values()) <= PATIENT + log(members, FANOUT) + 1


@given(members=st.integers(2, 100), fanout=st.integers(1, 8), ends=st.lists(st.booleans(), min_size=100))
@settings(max_examples=60)
def test_all_are_served_whatever_ends_meanwhile(members: int, fanout: int, ends: list[bool]) -> None:
    tree = Tree(members, fanout, BUSY)
    under_way: list[str] = []
    for number, ends_one in zip(range(1, members), ends, strict=False):
        tree.ask(f"n{number}")
        under_way.append(f"n{number}")
        if ends_one:
            tree.ended(under_way.pop(0))
        sent = Counter(tree.parent[name] for name in under_way)
        assert max(sent.values(), default=0) <= fanout
    assert len(tree.depth) == members


def test_who_has_all_of_it_is_named_before_who_still_gets_it() -> None:
    hand_on = HandOn(2)
    for name in ("a", "b"):
        assert hand_on.ask("stripe", name) is None
    hand_on.ended("stripe", "b", whole=True)
    assert hand_on.ask("stripe", "c") is None
    assert [hand_on.ask("stripe", name) for name in ("d", "e")] == ["b", "b"]


def test_who_is_busy_sends_a_stripe_once_but_not_to_who_came_far() -> None:
    hand_on = HandOn(2, busy=3)
    for stripe in ("one", "two"):
        assert hand_on.ask(stripe, "a") is None
    assert hand_on.ask("one", "b") is None
    assert hand_on.ask("two", "b") == "a"
    assert hand_on.ask("three", "b") is None
    assert hand_on.ask("two", "c", hops=PATIENT) is None


def test_who_failed_is_not_named_again_until_it_was_sent_it_anew() -> None:
    hand_on = HandOn(1)
    assert hand_on.ask("stripe", "a") is None
    assert hand_on.ask("stripe", "b") == "a"
    assert hand_on.ask("stripe", "b", ["a"]) is None
    assert hand_on.ask("stripe", "c") == "b"
    hand_on.ended("stripe", "a", whole=True)
    hand_on.ended("stripe", "b", whole=False)
    assert hand_on.ask("stripe", "c") is None


def test_who_cannot_be_sent_on_to_is_sent_it_beside_the_others() -> None:
    hand_on = HandOn(1)
    assert hand_on.ask("stripe", "guest", passes_on=False) is None
    assert hand_on.ask("stripe", "a") is None
    assert hand_on.ask("stripe", "b") == "a"


def test_what_is_on_its_way_is_remembered_and_the_rest_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handon, "REMEMBERED", 10)
    hand_on = HandOn(1)
    for stripe in range(5):
        hand_on.ask(stripe, "a")
    for stripe in range(5, 100):
        hand_on.ask(stripe, "a")
        hand_on.ended(stripe, "a", whole=True)
    assert [hand_on.ask(stripe, "b") for stripe in range(5)] == ["a"] * 5
    assert len(hand_on._spreads) == 10
