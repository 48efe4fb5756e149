"""When a request is far behind its fellows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fusestripe.stripes.pace import FACTOR, GRACE, KNOWN, Pace
from fusestripe.units import MIB

SECONDS = st.floats(0.001, 10)


def test_nothing_is_late_before_enough_is_known() -> None:
    pace = Pace()
    for _ in range(KNOWN - 1):
        assert pace.late_after(0) is None
        pace.note(0.02, 0.7, 8 * MIB)
    assert pace.late_after(0) is None
    pace.note(0.02, 0.7, 8 * MIB)
    assert pace.late_after(0) is not None


def test_one_that_says_nothing_is_late_long_before_one_that_goes_on() -> None:
    pace = Pace()
    for _ in range(20):
        pace.note(0.02, 0.66, 8 * MIB)
    silent, half, whole = (pace.late_after(arrived) for arrived in (0, 4 * MIB, 8 * MIB))
    assert silent is not None
    assert half is not None
    assert whole is not None
    assert abs(silent - (FACTOR * 0.02 + GRACE)) < 1e-9
    assert silent < half < whole
    assert abs(whole - (FACTOR * 0.66 + GRACE)) < 1e-6


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=KNOWN, max_size=200), st.integers(0, 8 * MIB))
def test_what_goes_like_nine_of_ten_others_is_not_late(seen: list[tuple[float, float]], arrived: int) -> None:
    pace = Pace()
    for first_byte, rest in seen:
        pace.note(first_byte, first_byte + rest, 8 * MIB)
    late = pace.late_after(arrived)
    assert late is not None
    behind = [first_byte + rest * arrived / (8 * MIB) > late for first_byte, rest in seen[-64:]]
    # Late by both: slow to begin, or slow to go on.
    assert sum(behind) <= len(behind) * 0.2 + 2


def test_the_pace_follows_what_was_lately() -> None:
    pace = Pace()
    for _ in range(100):
        pace.note(1.0, 10.0, 8 * MIB)
    for _ in range(100):
        pace.note(0.01, 0.1, 8 * MIB)
    assert pace.late_after(0) == FACTOR * 0.01 + GRACE


def test_short_requests_say_nothing_of_long_ones() -> None:
    pace = Pace()
    for _ in range(KNOWN):
        pace.note(0.01, 0.1, 8 * MIB)
    late = pace.late_after(8 * MIB)
    for _ in range(100):
        pace.note(0.01, 0.1, 100)
    assert pace.late_after(8 * MIB) == late


def test_late_comes_sooner_where_a_second_request_takes_nothing_from_others() -> None:
    pace = Pace()
    for _ in range(KNOWN):
        pace.note(0.01, 0.1, 8 * MIB)
    sooner, later = pace.late_after(0, idle=True), pace.late_after(0)
    assert sooner is not None
    assert later is not None
    assert sooner < later
