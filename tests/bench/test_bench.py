"""The benchmark itself: it judges rightly, runs on real parts, and cleans up whatever happens."""

from __future__ import annotations

import os
import re
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

from fusestripe.kernel.mounting import Mount, mounts
from fusestripe.units import MIB
from tests.bench.__main__ import CASES
from tests.bench.bare import Task, start_fetch
from tests.bench.case import Options, take_turns
from tests.bench.flow import Window, watch
from tests.bench.lab import BUCKET
from tests.bench.result import Figure, Result, Side, best_of, faster, slowness, times
from tests.bench.stalls import stalls
from tests.support.mounted import until
from tests.support.proxy import Proxy
from tests.support.seaweed import SeaweedServer

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


def mounts_below(directory: Path) -> list[Mount]:
    return [mount for mount in mounts() if mount.mountpoint.startswith(str(directory.resolve()))]


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


def test_the_best_of_others_is_that_of_each_round() -> None:
    sides = [Side("rclone", (1, 4)), Side("s3fs", (2, 3))]
    assert best_of("the better", sides).rounds == (2, 4)


def test_what_should_be_little_is_judged_by_how_many_times_as_much_it_is() -> None:
    clean, stalling = Side("clean", (10, 20), "s"), Side("stalling", (12, 28), "s")
    assert times(stalling, clean, 1.3, "seconds").value == pytest.approx(1.3)
    assert not times(stalling, clean, 1.2, "seconds").reached


def test_of_fifty_answers_one_stalls_at_one_place_or_the_other() -> None:
    faults = stalls("key", 256 * MIB, MIB)
    assert [fault.nth for fault in faults[:4]] == [50, 100, 150, 200]
    assert [fault.action for fault in faults[:3]] == ["stall:10", f"stall:10:{MIB // 2}", "stall:10"]
    assert all(re.search(fault.match, "GET /bench/key bytes=0-99") for fault in faults)


def test_a_file_too_small_for_its_window_is_an_error(tmp_path: Path) -> None:
    with SeaweedServer(tmp_path) as server, Proxy(server.endpoint) as proxy:
        server.create_bucket(BUCKET)
        server.put(BUCKET, "key", bytes(4 * MIB))
        reader = start_fetch(Task(proxy.endpoint, "key", 4 * MIB, MIB, 2))
        with pytest.raises(RuntimeError, match="takes a larger file"):
            watch(proxy, reader, Window(3, 9))


def test_sides_take_turns_and_the_first_place() -> None:
    order: list[str] = []

    def measure(name: str) -> float:
        order.append(name)
        return float(len(order))

    sides = take_turns(
        {name: partial(measure, name) for name in "abc"}, Options(rounds=3, short=True), lambda text: None
    )
    assert "".join(order) == "abcbcacab"
    assert sides["b"].rounds == (2, 4, 9)


@pytest.mark.timeout(600)  # two minutes and a half, where nothing else runs
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
    assert {side.name for side in cold.sides} > {"mount", "bare client", "rclone", "s3fs"}
    assert list(work.iterdir()) == []


def test_a_soak_finds_no_wrong_byte_and_nothing_that_grows(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--soak=30", "--check"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "inodes, last third / second" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_ended_run_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    # Where the tests run in the background of a shell, SIGINT is ignored, and children inherit that.
    heeding = ["env", "--default-signal=INT"]
    bench = subprocess.Popen(heeding + command(tmp_path, "--only=cold"), stdout=subprocess.DEVNULL)
    until(lambda: bool(mounts_below(tmp_path)), timeout=60)
    process = psutil.Process(bench.pid)
    children = process.children(recursive=True)
    bench.send_signal(number)
    assert bench.wait(60) == 1  # click's Abort
    assert list(tmp_path.iterdir()) == []
    assert mounts_below(tmp_path) == []
    assert [child for child in psutil.wait_procs(children, timeout=20)[1] if child.is_running()] == []


def test_an_ended_run_of_nodes_leaves_no_host(tmp_path: Path) -> None:
    def ours() -> list[str]:
        links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
        return [
            name for name in (links + "\n".join(os.listdir("/run/netns"))).split() if name.startswith(mark)
        ]

    bench = subprocess.Popen(command(tmp_path, "--nodes=3", "--without-sharing"), stdout=subprocess.DEVNULL)
    mark = f"fsb{bench.pid % 100_000}"
    until(lambda: sum("/node-" in mount.mountpoint for mount in mounts_below(tmp_path)) == 3, timeout=60)
    assert len(ours()) == 1 + 4 + 4
    bench.send_signal(signal.SIGTERM)
    assert bench.wait(60) == 1
    assert [*ours(), *mounts_below(tmp_path), *tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only=cold"], "s3fs (apt-get install s3fs); or say --without-peers"),
        (["--only=cold", "--only=random"], "fio (apt-get install fio)"),
        (["--only=random", "--without-peers"], "fio (apt-get install fio)"),
    ],
)
def test_a_missing_program_is_named_with_the_mend(tmp_path: Path, options: list[str], said: str) -> None:
    done = subprocess.run(
        command(tmp_path, *options), env={"PATH": ""}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip() == f"Error: not installed: {said}"
