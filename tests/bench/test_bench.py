"""The benchmark itself: it judges rightly, runs on real parts, and cleans up whatever happens."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusestripe.kernel.mounting import mounts
from tests.bench.__main__ import CASES
from tests.bench.case import take_turns
from tests.bench.result import Figure, Result, Side, faster, slowness
from tests.support.mounted import until

RATES = st.floats(min_value=1, max_value=1e12)


class Named(msgspec.Struct):
    name: str


class Case(msgspec.Struct):
    case: str
    sides: list[Named]
    figures: list[Figure]


class Document(msgspec.Struct):
    reached: bool
    results: list[Case]


def command(directory: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "tests.bench", "--dir", str(directory), "--short", "--rounds=1", *options]


@given(st.lists(st.tuples(RATES, RATES), min_size=1, max_size=7))
def test_a_ratio_is_one_of_its_rounds_or_between_two(rounds: list[tuple[float, float]]) -> None:
    ours = Side("ours", tuple(one for one, _ in rounds))
    theirs = Side("theirs", tuple(other for _, other in rounds))
    ratios = [one / other for one, other in rounds]
    assert min(ratios) <= faster(ours, theirs, None).value <= max(ratios)


@pytest.mark.parametrize(
    ("value", "wanted", "at_least", "reached"),
    [
        (2, 1.5, True, True),
        (1, 1.5, True, False),
        (2, 1.5, False, False),
        (1, 1.5, False, True),
        (0, None, True, True),
    ],
)
def test_a_figure_is_held_against_what_is_wanted(
    value: float, wanted: float | None, at_least: bool, reached: bool
) -> None:
    figure = Figure("ours", value, wanted, at_least=at_least)
    assert figure.reached is reached
    assert Result("case", "title", (), (Figure("good", 1, 1), figure)).reached is reached


def test_a_wait_is_compared_by_its_difference() -> None:
    figure = slowness("mount", Side("m", (0.05, 0.03, 0.9), "s"), Side("b", (0.02, 0.02, 0.02), "s"), 0.02)
    assert figure.value == pytest.approx(0.03)
    assert not figure.reached


def test_sides_take_turns_and_the_first_place() -> None:
    order: list[str] = []

    def measure(name: str) -> float:
        order.append(name)
        return float(len(order))

    sides = take_turns({name: partial(measure, name) for name in "abc"}, 3, lambda text: None)
    assert "".join(order) == "abcbcacab"
    assert sides["b"].rounds == (2, 4, 9)


def test_every_case_runs_on_real_parts(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        command(work, "--check", "--json", str(report)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = msgspec.json.decode(report.read_bytes(), type=Document)
    assert document.reached
    assert [result.case for result in document.results] == [case.name for case in CASES]
    for result in document.results:
        assert result.figures
        assert all(figure.wanted is not None and figure.value > -1 for figure in result.figures)
        assert all(side.name in done.stdout for side in result.sides)
    cold = next(result for result in document.results if result.case == "cold")
    assert {side.name for side in cold.sides} == {"mount", "bare client", "rclone", "s3fs"}
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_ended_run_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    def mounted_below() -> bool:
        return any(mount.mountpoint.startswith(str(tmp_path.resolve())) for mount in mounts())

    # Where the tests run in the background of a shell, SIGINT is ignored, and children inherit that.
    heeding = ["env", "--default-signal=INT"]
    bench = subprocess.Popen(heeding + command(tmp_path, "--only=cold"), stdout=subprocess.DEVNULL)
    until(mounted_below, timeout=60)
    process = psutil.Process(bench.pid)
    children = process.children(recursive=True)
    bench.send_signal(number)
    assert bench.wait(60) == 1  # click's Abort
    assert list(tmp_path.iterdir()) == []
    assert not mounted_below()
    assert [child for child in psutil.wait_procs(children, timeout=20)[1] if child.is_running()] == []


def test_a_missing_peer_is_named_with_the_mend(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--only=cold"), env={"PATH": ""}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip() == "Error: not installed: s3fs (apt-get install s3fs); or say --without-peers"
