"""Finding how many in flight an origin rewards, on origins that are formulas."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusestripe.stripes.climb import REST, Climb

MOST = 64
ORIGINS: dict[str, Callable[[int], float]] = {
    "each connection slow": lambda count: 12.5 * count,
    "slow connections and a link of 400": lambda count: min(12.5 * count, 400),
    "200 in all": lambda count: min(150.0 * count, 200),
    "200 in all, of four": lambda count: min(50.0 * count, 200),
    "too many hurt": lambda count: min(25.0 * count, 800) / (1 + max(0, count - 24) / 40),
    "three servers, taken by chance": lambda count: 120 * count / (count + 2),
}


def best(origin: Callable[[int], float]) -> float:
    return max(origin(count) for count in range(1, MOST + 1))


def climb(origin: Callable[[int], float], steps: int, *, noise: float = 0, seed: int = 1) -> list[int]:
    chance = random.Random(seed)
    walk = Climb(16, MOST)
    counts = []
    for _ in range(steps):
        counts.append(walk.count)
        walk.gave(origin(walk.count) * chance.uniform(1 - noise, 1 + noise))
    return counts


@pytest.mark.parametrize("name", ORIGINS)
def test_five_measurements_find_what_pays(name: str) -> None:
    origin = ORIGINS[name]
    assert origin(climb(origin, 5)[-1]) >= 0.9 * best(origin)


@pytest.mark.parametrize("name", ORIGINS)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_it_stays_there_under_noise(name: str, seed: int) -> None:
    origin = ORIGINS[name]
    counts = climb(origin, 600, noise=0.05, seed=seed)[20:]
    assert sum(map(origin, counts)) / len(counts) >= 0.85 * best(origin)


def test_what_brings_nothing_is_taken_back() -> None:
    counts = climb(ORIGINS["200 in all"], 400)
    assert counts[1:3] == [32, 32]
    assert counts[3] == 16
    assert max(counts[4:]) <= 24
    assert counts[-1] < 16


def test_an_origin_that_becomes_faster_gets_more() -> None:
    counts = climb(ORIGINS["200 in all, of four"], 100)
    walk = Climb(counts[-1], MOST)
    for _ in range(400):
        walk.gave(12.5 * walk.count)
    assert walk.count == MOST


def test_one_that_asks_for_less_gets_less_at_once_and_more_again_later() -> None:
    walk = Climb(16, MOST)
    for _ in range(3):
        walk.gave(12.5 * walk.count)
    before = walk.count
    for _ in range(30):
        walk.throttled()
        assert walk.count < before or walk.count == 1
        before = walk.count
    assert walk.count == 1
    counts = []
    for _ in range(60):
        counts.append(walk.count)
        walk.gave(12.5 * walk.count)
    assert counts[:REST] == [1] * REST
    assert counts[REST + 10] == MOST


@given(st.integers(1, 200), st.integers(1, 200), st.lists(st.floats(0, 1e10) | st.none(), max_size=300))
def test_the_number_stays_within_its_limits(start: int, most: int, rates: list[float | None]) -> None:
    walk = Climb(start, most)
    for rate in rates:
        if rate is None:
            walk.throttled()
        else:
            walk.gave(rate)
        assert 1 <= walk.count <= most
