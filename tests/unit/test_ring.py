"""Which member owns a stripe: alike for all, even, and as steady as can be when members come and go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusestripe.peers.ring import own_first, owner, ranking

KEY = "0123456789abcdef0123456789abcdef"
STRIPES = 47_684
"""Of 400 GB, in stripes of 8 MiB."""

names = st.sets(st.from_regex(r"[a-z][a-z0-9.-]{0,20}:[0-9]{1,5}", fullmatch=True), min_size=1, max_size=12)
keys = st.text("0123456789abcdef", min_size=32, max_size=32)
indexes = st.integers(0, 1 << 40)


@given(members=names, key=keys, index=indexes, data=st.data())
def test_every_node_finds_the_same_in_whatever_order_it_learned_of_the_members(
    members: set[str], key: str, index: int, data: st.DataObject
) -> None:
    one, other = (data.draw(st.permutations(sorted(members))) for _ in range(2))
    ranked = ranking(one, key, index)
    assert ranked == ranking(other, key, index)
    assert sorted(ranked) == sorted(members)
    assert owner(one, key, index) == owner(other, key, index) == ranked[0]


@given(members=names, key=keys, index=indexes, data=st.data())
def test_who_goes_changes_nothing_among_the_others(
    members: set[str], key: str, index: int, data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(sorted(members)))
    ranked = ranking(members, key, index)
    assert ranking(members - {gone}, key, index) == [name for name in ranked if name != gone]


@given(members=names, new=names, key=keys, index=indexes)
def test_who_comes_takes_stripes_for_itself_only(
    members: set[str], new: set[str], key: str, index: int
) -> None:
    before, after = owner(members, key, index), owner(members | new, key, index)
    assert after == before or after in new - members


@given(
    members=names,
    key=keys,
    wanted=st.lists(st.integers(0, 10_000), unique=True, max_size=60),
    data=st.data(),
)
def test_own_stripes_come_first_and_none_is_lost(
    members: set[str], key: str, wanted: list[int], data: st.DataObject
) -> None:
    me = data.draw(st.sampled_from(sorted(members)))
    order = own_first(members, me, key, wanted)
    mine = [index for index in wanted if owner(members, key, index) == me]
    assert order[: len(mine)] == mine
    assert sorted(order) == sorted(wanted)


@given(key=keys, first=st.integers(0, 1 << 20))
@settings(max_examples=10)
def test_nodes_do_not_ask_in_the_same_order(key: str, first: int) -> None:
    members = [f"node{number}:4817" for number in range(8)]
    stripes = range(first, first + 256)
    early = [
        {index for index in own_first(members, me, key, stripes)[32:96] if owner(members, key, index) != me}
        for me in members
    ]
    # By chance a quarter of what one asks for early is what another asks for early.
    for me, mine in enumerate(early):
        for other in early[:me]:
            assert len(mine & other) < 0.6 * min(len(mine), len(other))


@pytest.mark.parametrize("count", [2, 10, 50])
def test_all_own_about_as_much(count: int) -> None:
    members = [f"node{number}:4817" for number in range(count)]
    owned = Counter(owner(members, KEY, index) for index in range(STRIPES // 8))
    mean = STRIPES // 8 / count
    # By chance one is a square root of the mean beside it; five of them happen to none of 50.
    assert len(owned) == count
    assert max(abs(number - mean) for number in owned.values()) < 5 * mean**0.5


def test_files_lie_differently() -> None:
    members = [f"node{number}:4817" for number in range(10)]
    same = sum(owner(members, KEY, index) == owner(members, KEY[::-1], index) for index in range(1000))
    assert same < 160  # a tenth by chance: 100, and six of its deviations
