"""What read-ahead asks for, for each way in which checkpoints are read."""

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from fusestripe.stripes.plan import take_turns
from fusestripe.stripes.readahead import AccessPattern
from fusestripe.units import GIB, KIB, MIB

STRIPE = 8 * MIB
AHEAD = 32 * STRIPE


def wanted(pattern: AccessPattern, limit: int = 32) -> list[int]:
    return list(itertools.islice(take_turns(pattern.ahead(), STRIPE), limit))


def read(pattern: AccessPattern, offset: int, length: int, request: int = MIB) -> None:
    """As the kernel passes it on: in requests of 1 MiB at most."""
    for start in range(offset, offset + length, request):
        pattern.observe(start, min(request, offset + length - start))


def test_what_was_asked_for_stays_whatever_is_observed_meanwhile() -> None:
    """The walks are followed on the event loop while channel threads observe."""
    pattern = AccessPattern(GIB, AHEAD)
    for record in range(4):
        pattern.observe(record * 64 * MIB, MIB)
    walks = pattern.ahead()
    pattern.observe(MIB, MIB)  # an earlier run goes on: no stride any more
    assert list(itertools.islice(take_turns(walks, STRIPE), 30))


def test_four_megabytes_from_the_start_fill_sixteen_stripes() -> None:
    pattern = AccessPattern(GIB, AHEAD)
    read(pattern, 0, 4 * MIB)
    assert wanted(pattern)[:16] == list(range(16))


def test_ahead_grows_with_what_was_read_and_ends_at_its_limit() -> None:
    pattern = AccessPattern(100 * GIB, AHEAD)
    seen = []
    for offset in range(0, 64 * MIB, 128 * KIB):
        pattern.observe(offset, 128 * KIB)
        seen.append(len(wanted(pattern, 1000)))
    assert seen[:4] == [1, 3, 5, 9]
    assert seen[:8] == sorted(seen[:8])
    assert set(seen[8:]) <= {AHEAD // STRIPE, AHEAD // STRIPE + 1}


def test_nothing_past_the_end() -> None:
    pattern = AccessPattern(20 * MIB, AHEAD)
    read(pattern, 0, 10 * MIB)
    assert wanted(pattern) == [1, 2]


def test_random_small_reads_ask_for_next_to_nothing() -> None:
    chance = random.Random(1)
    pattern = AccessPattern(100 * GIB, AHEAD)
    asked = 0
    for _ in range(1000):
        offset = chance.randrange(100 * GIB // 4096) * 4096
        pattern.observe(offset, 4096)
        asked += len(set(wanted(pattern)) - {offset // STRIPE})
    assert asked < 20


def test_random_reads_of_a_megabyte_ask_for_nothing() -> None:
    chance = random.Random(2)
    pattern = AccessPattern(400 * GIB, AHEAD)
    asked: set[int] = set()
    for _ in range(200):
        pattern.observe(chance.randrange(400 * GIB), MIB)
        asked |= set(wanted(pattern))
    assert len(asked) < 5


def test_requests_out_of_order_are_still_one_run() -> None:
    chance = random.Random(3)
    pattern = AccessPattern(10 * GIB, AHEAD)
    offsets = list(range(GIB, GIB + 64 * MIB, MIB))
    for start in range(0, len(offsets), 4):
        group = offsets[start : start + 4]
        chance.shuffle(group)
        for offset in group:
            pattern.observe(offset, MIB)
    assert len(pattern.ahead()) == 1
    assert len(wanted(pattern)) >= 16


def test_eight_threads_on_one_handle_each_have_their_read_ahead() -> None:
    pattern = AccessPattern(8 * GIB, AHEAD)
    for step in range(4):
        for thread in range(8):
            pattern.observe(thread * GIB + step * MIB, MIB)
    first_of_each = {thread * GIB // STRIPE for thread in range(8)}
    next_of_each = {index + 1 for index in first_of_each}
    assert next_of_each <= set(wanted(pattern))


def test_a_strided_walk_asks_for_the_next_records() -> None:
    pattern = AccessPattern(10 * GIB, AHEAD)
    stride = 100 * MIB
    for record in range(4):
        read(pattern, record * stride, 2 * MIB)
    expected = [record * stride // STRIPE for record in (4, 5, 6)]
    assert [index for index in expected if index not in wanted(pattern)] == []
    # Not what lies between the records.
    assert 3 * stride // STRIPE + 6 not in wanted(pattern)


@given(
    size=st.integers(1, 2**40),
    reads=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 4 * MIB)), max_size=60),
)
def test_any_reads_give_ranges_inside_the_file(size: int, reads: list[tuple[float, int]]) -> None:
    pattern = AccessPattern(size, AHEAD)
    for where, length in reads:
        offset = int(where * (size - 1))
        pattern.observe(offset, min(length, size - offset))
    for walk in pattern.ahead():
        for offset, length in itertools.islice(walk, 100):
            assert 0 <= offset < offset + length <= size


def test_small_sequential_reads_reach_ahead_too() -> None:
    pattern = AccessPattern(GIB, AHEAD)
    for offset in range(0, 2 * MIB, 16 * KIB):
        pattern.observe(offset, 16 * KIB)
    assert len(wanted(pattern)) >= 8


def test_a_run_that_nobody_continues_leaves_the_memory_to_others() -> None:
    """A header that was read, and then a tensor far behind it."""
    pattern = AccessPattern(100 * GIB, AHEAD)
    read(pattern, 0, 2 * MIB)
    read(pattern, 50 * GIB, 100 * MIB)
    first = 50 * GIB // STRIPE
    assert {index < first for index in wanted(pattern)} == {True, False}
    read(pattern, 50 * GIB + 100 * MIB, 200 * MIB)
    assert all(index >= first for index in wanted(pattern))
    read(pattern, 2 * MIB, 2 * MIB)
    assert {index < first for index in wanted(pattern)} == {True, False}
