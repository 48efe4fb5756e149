"""The eviction plan: never open or pinned, oldest first, no more than needed, under the limit if possible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fusestripe.cache.eviction import Candidate, plan

candidates = st.lists(
    st.builds(
        Candidate,
        name=st.uuids().map(str),
        size=st.integers(0, 100),
        last_use_ns=st.integers(0, 20),
        in_use=st.booleans(),
        pinned=st.booleans(),
    ),
    unique_by=lambda entry: entry.name,
    max_size=12,
)
sizes = st.integers(0, 400)


@given(candidates, st.integers(0, 100), sizes, sizes, sizes)
def test_the_plan(entries: list[Candidate], need: int, limit: int, reserve: int, free: int) -> None:
    victims = plan(entries, need=need, limit=limit, reserve=reserve, free=free)
    used = sum(entry.size for entry in entries)
    freed = sum(victim.size for victim in victims)
    idle = [entry for entry in entries if not entry.in_use and not entry.pinned]

    def fits(freed: int, need: int) -> bool:
        return used - freed + need <= limit and free + freed - need >= reserve

    assert all(victim in idle for victim in victims)
    spared = [entry for entry in idle if entry not in victims]
    assert all(
        (victim.last_use_ns, victim.name) < (entry.last_use_ns, entry.name)
        for victim in victims
        for entry in spared
    )
    possible = sum(entry.size for entry in idle)
    if fits(possible, need):
        assert fits(freed, need)
        assert not victims or not fits(freed - victims[-1].size, need)
    elif fits(possible, 0):
        assert fits(freed, 0)
        assert not victims or not fits(freed - victims[-1].size, 0)
    else:
        assert freed == possible


def test_nothing_is_evicted_for_a_stripe_that_does_not_fit_anyway() -> None:
    entries = [Candidate("held", 90, 1, in_use=True), Candidate("idle", 10, 2)]
    assert plan(entries, need=20, limit=100, reserve=0, free=1000) == []


def test_a_limit_that_was_lowered_is_kept() -> None:
    entries = [Candidate("new", 50, 2), Candidate("old", 50, 1)]
    assert plan(entries, need=0, limit=60, reserve=0, free=1000) == [entries[1]]
