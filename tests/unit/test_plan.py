from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fusestripe.stripes.plan import pieces, spread_out, stripe_count, stripe_length, take_turns

sizes = st.integers(0, 10_000)
stripe_sizes = st.integers(1, 700)


@given(size=sizes, stripe_size=stripe_sizes)
def test_stripes_cover_the_file_once(size: int, stripe_size: int) -> None:
    count = stripe_count(size, stripe_size)
    lengths = [stripe_length(index, size, stripe_size) for index in range(count)]
    assert sum(lengths) == size
    assert all(length == stripe_size for length in lengths[:-1])
    assert all(length > 0 for length in lengths)
    assert stripe_length(count, size, stripe_size) == 0


@given(offset=sizes, length=sizes, stripe_size=stripe_sizes)
def test_pieces_are_the_range_in_order(offset: int, length: int, stripe_size: int) -> None:
    position = offset
    for piece in pieces(offset, length, stripe_size):
        assert piece.index * stripe_size + piece.start == position
        assert 0 <= piece.start < piece.stop <= stripe_size
        position += piece.stop - piece.start
    assert position == offset + length


ranges = st.lists(st.tuples(sizes, st.integers(1, 2_000)), max_size=4)


@given(walks=st.lists(ranges, max_size=4), stripe_size=stripe_sizes)
def test_turns_name_each_stripe_once_and_miss_none(
    walks: list[list[tuple[int, int]]], stripe_size: int
) -> None:
    named = list(take_turns([iter(walk) for walk in walks], stripe_size))
    wanted = {
        byte // stripe_size
        for walk in walks
        for offset, length in walk
        for byte in range(offset, offset + length)
    }
    assert len(named) == len(set(named))
    assert set(named) == wanted


def test_turns_take_one_of_each_walk_before_the_second_of_any() -> None:
    walks = [iter([(0, 30)]), iter([(1000, 30)])]
    assert list(take_turns(walks, 10)) == [0, 100, 1, 101, 2, 102]


indexes = st.lists(st.integers(0, 200), unique=True, max_size=60)


@given(wanted=indexes, busy=indexes, stripe_size=stripe_sizes, unit=st.integers(0, 5_000))
def test_spreading_names_each_stripe_once_in_order_inside_a_unit(
    wanted: list[int], busy: list[int], stripe_size: int, unit: int
) -> None:
    spread = list(spread_out(iter(wanted), iter(busy), stripe_size, unit))
    assert sorted(spread) == sorted(wanted)
    if unit <= stripe_size:
        assert spread == wanted
    else:
        for key in {index * stripe_size // unit for index in wanted}:
            mine = [index for index in wanted if index * stripe_size // unit == key]
            assert [index for index in spread if index * stripe_size // unit == key] == mine


@given(wanted=indexes, busy=indexes, stripe_size=stripe_sizes, unit=st.integers(1, 5_000))
def test_spreading_takes_of_a_unit_that_is_least_busy(
    wanted: list[int], busy: list[int], stripe_size: int, unit: int
) -> None:
    if unit <= stripe_size:
        return
    load = Counter(index * stripe_size // unit for index in busy)
    left = Counter(index * stripe_size // unit for index in wanted)
    for index in spread_out(wanted, busy, stripe_size, unit):
        key = index * stripe_size // unit
        assert load[key] == min(load[other] for other, count in left.items() if count)
        load[key] += 1
        left[key] -= 1


def test_spreading_begins_with_the_nearest() -> None:
    assert list(spread_out(range(8), [], 10, 40)) == [0, 4, 1, 5, 2, 6, 3, 7]
    assert list(spread_out(range(1, 8), [0], 10, 40)) == [4, 1, 5, 2, 6, 3, 7]
    assert list(spread_out([3, 4, 0, 7], [], 10, 40)) == [3, 4, 0, 7]
