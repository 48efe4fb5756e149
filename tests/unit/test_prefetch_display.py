"""How a prefetch shows people where it is: bars on a terminal, lines elsewhere, a word at the end."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from fusestripe.commands.prefetch import Bars, FetchSpeed, Lines, Speed, Tally
from fusestripe.prefetcher import Report
from fusestripe.units import MIB

STORY = [
    Report("a", "started", 100),
    Report("b", "started", 50),
    Report("a", "running", 100, 40, cached=30, fetched=15),
    Report("b", "failed", 50, 10, "no such thing", "look again", fetched=10),
    Report("a", "done", 100, 100, cached=30, fetched=70),
]


def test_lines_of_a_prefetch(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    for report in STORY:
        lines.tell(report)
    out, err = capsys.readouterr()
    assert (out, err) == ("a: 100 B\n", "b: no such thing: look again\n")


def test_what_is_missing_has_not_failed(capsys: pytest.CaptureFixture[str]) -> None:
    tally, lines = Tally(), Lines()
    story = [
        Report("a", "done", 100, 100, cached=100),
        Report("b", "missing", 50, 10, "40 B of 50 B are missing", cached=10, missing=40),
    ]
    for report in story:
        tally.add(report)
        lines.tell(report)
    assert tally.summary() == "2 files, 150 B in 0.1 s: 110 B there, 40 B missing in 1 file"
    assert capsys.readouterr() == ("a: 100 B\nb: 10 B of 50 B there, 40 B missing\n", "")
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Progress(console=console) as progress:
        bars = Bars(progress)
        for report in (Report("b", "started", 50), *story[1:]):
            bars.tell(report)
        assert [(task.completed, task.total) for task in progress.tasks] == [(10, 50)]


def test_the_last_line_tells_what_was_fetched() -> None:
    tally = Tally()
    for report in STORY:
        tally.add(report)
    assert tally.summary() == "1 file, 100 B in 0.1 s: 70 B fetched, 30 B there already; 1 failed"


def test_bars_of_a_prefetch() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Progress(console=console) as progress:
        bars = Bars(progress)
        seen = []
        for report in STORY:
            bars.tell(report)
            total = progress.tasks[0]
            seen.append((total.completed, total.total, len(progress.tasks) - 1))
    # Bytes count as they arrive, whether they are checked already or not.
    assert seen == [(0, 100, 1), (0, 150, 2), (45, 150, 2), (55, 150, 1), (110, 150, 0)]
    assert isinstance(console.file, io.StringIO)
    assert "b: no such thing: look again" in console.file.getvalue()


def test_the_speed_is_that_of_what_was_fetched() -> None:
    """A gigabyte that was there already says nothing of the origin."""
    with Progress(console=Console(file=io.StringIO())) as progress:
        bars = Bars(progress)
        bars.tell(Report("a", "started", 1000 * MIB))
        bars.tell(Report("a", "running", 1000 * MIB, 900 * MIB, cached=900 * MIB))
        assert [FetchSpeed().render(task).plain for task in progress.tasks] == ["0 B/s", "0 B/s"]
        bars.tell(Report("a", "running", 1000 * MIB, 900 * MIB, cached=900 * MIB, fetched=50 * MIB))
        assert all(task.fields["speed"]() > 0 for task in progress.tasks)
        assert [task.completed for task in progress.tasks] == [950 * MIB, 950 * MIB]


def test_a_speed_is_of_the_last_seconds_and_sinks_while_nothing_comes() -> None:
    now = 0.0
    speed = Speed(lambda: now)
    for second in range(1, 31):
        now = float(second)
        speed.grew(100 * second)
    assert speed() == 100
    now = 35.0
    assert speed() == 50
    now = 60.0
    assert speed() == 0
