"""`fusestripe prefetch`: bring files into the cache, and show how it goes."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from fusestripe.api import bring
from fusestripe.commands.interrupts import interruptible
from fusestripe.commands.options import (
    config_option,
    json_option,
    o_option,
    print_json,
    read_flags,
    setting_options,
)
from fusestripe.commands.status import format_duration
from fusestripe.prefetcher import Report
from fusestripe.units import format_size

__all__ = ["Bars", "FetchSpeed", "JsonLines", "Lines", "Speed", "Tally", "prefetch"]

SPEED_SECONDS = 10.0
"""The speed is that of so long a time before now."""


class Display(Protocol):
    """Shows reports as they come; ``note`` at the end sums up."""

    def tell(self, report: Report) -> None:
        """Show one."""
        ...

    def note(self, text: str) -> None:
        """Say how it all went."""
        ...


@click.command(epilog="Example: fusestripe prefetch /mnt/ckpt/step-100")
@click.argument("sources", metavar="PATH|URL...", nargs=-1, required=True)
@config_option
@setting_options("cache_dir", "cache_size", "stripe_size", "stripe_count", "memory")
@o_option
@click.option("--check", is_flag=True, help="Fetch nothing; check that every byte is in the cache.")
@click.option("--pin", is_flag=True, help="Never evict them, until `fusestripe cache unpin`.")
@json_option
def prefetch(
    sources: tuple[str, ...],
    config: str | None,
    options: tuple[str, ...],
    check: bool,
    pin: bool,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Bring whole files and trees into the cache.

    A PATH is under a mount, whose daemon does it with its own settings; a URL needs no mount. Returns when
    every byte is on the disk and checked; exits with 1 if a file failed. The JSON is a line for each file.
    """
    tally = Tally()
    with _display(as_json) as display:

        def tell(report: Report) -> None:
            tally.add(report)
            display.tell(report)

        said = read_flags(options, flags)
        interruptible(lambda: bring(sources, said, tell, config=config, check=check, pin=pin))
        display.note(tally.summary())
    if tally.failed:
        sys.exit(1)


class Tally:
    """What has been told so far."""

    def __init__(self) -> None:
        self.done = self.failed = self.bytes = self.fetched = 0
        self._started = time.monotonic()

    def add(self, report: Report) -> None:
        """Count it, if it is the last of its file."""
        self.failed += report.state == "failed"
        if report.state == "done":
            self.done += 1
            self.bytes += report.size
            self.fetched += report.fetched

    def summary(self) -> str:
        """One line: files, bytes, time, where they came from, failures."""
        seconds = time.monotonic() - self._started
        files = f"{self.done:,} file{'' if self.done == 1 else 's'}, {format_size(self.bytes)}"
        took = format_duration(seconds) if seconds >= 1 else "1 s"
        there = format_size(self.bytes - self.fetched)
        failed = f"; {self.failed:,} failed" if self.failed else ""
        return f"{files} in {took}: {format_size(self.fetched)} fetched, {there} there already{failed}"


class JsonLines:
    """A line of JSON for each file, when it is done or has failed."""

    def tell(self, report: Report) -> None:
        """Print it if it is the last of its file."""
        if report.state in ("done", "failed"):
            print_json(report)

    def note(self, text: str) -> None:
        """Nothing: a script can count."""


class Lines:
    """A line for each file; those that failed on stderr."""

    def tell(self, report: Report) -> None:
        """Print it if it is the last of its file."""
        if report.state == "done":
            click.echo(f"{report.path}: {format_size(report.size)}")
        elif report.state == "failed":
            click.echo(failure(report), err=True)

    def note(self, text: str) -> None:
        """Print it."""
        click.echo(text)


class Speed:
    """Bytes a second of something that grows, by what it was at most ``SPEED_SECONDS`` ago."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque([(clock(), 0)])

    def grew(self, size: int) -> None:
        """It is ``size`` bytes now."""
        self._seen.append((self._clock(), size))

    def __call__(self) -> float:
        """Bytes a second until now; it sinks while nothing comes."""
        now = self._clock()
        while len(self._seen) > 1 and self._seen[0][0] < now - SPEED_SECONDS:
            self._seen.popleft()
        since, had = self._seen[0]
        return (self._seen[-1][1] - had) / max(now - since, 1e-3)


class FetchSpeed(ProgressColumn):
    """How fast bytes come from the origin: those that were in the cache already are no speed."""

    def render(self, task: Task) -> Text:
        """See ProgressColumn."""
        return Text(f"{format_size(task.fields['speed']())}/s", style="progress.data.speed")


class _Moved:
    """Bytes of one file or of all: those that are here, and those of them that had to be fetched."""

    def __init__(self) -> None:
        self.here = self.fetched = 0
        self.speed = Speed()

    def moved(self, here: int, fetched: int) -> None:
        self.here += here
        self.fetched += fetched
        self.speed.grew(self.fetched)


class Bars:
    """A bar for all and one for each file under way, on a terminal; lines above them for what failed."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._total = _Moved()
        self._all = progress.add_task("total", total=0, speed=self._total.speed)
        self._tasks: dict[str, TaskID] = {}
        self._files: dict[str, _Moved] = {}
        self._known = 0

    def tell(self, report: Report) -> None:
        """Move the bars."""
        path = report.path
        file = self._files.setdefault(path, _Moved())
        if report.state == "started":
            self._known += report.size
            self._tasks[path] = self._progress.add_task(shorten(path), total=report.size, speed=file.speed)
        here, fetched = report.cached + report.fetched - file.here, report.fetched - file.fetched
        file.moved(here, fetched)
        self._total.moved(here, fetched)
        if path in self._tasks:
            self._progress.update(self._tasks[path], completed=file.here)
        if report.state in ("done", "failed"):
            del self._files[path]
            if path in self._tasks:
                self._progress.remove_task(self._tasks.pop(path))
        if report.state == "failed":
            self._progress.console.print(Text(failure(report), style="red"))
        self._progress.update(self._all, total=self._known, completed=self._total.here)

    def note(self, text: str) -> None:
        """Print it above the last state of the bar."""
        self._progress.console.print(Text(text))


@contextmanager
def _display(as_json: bool) -> Iterator[Display]:
    console = Console()
    if as_json:
        yield JsonLines()
    elif not console.is_terminal:
        yield Lines()
    else:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            FetchSpeed(),
        )
        with Progress(*columns, console=console) as progress:
            yield Bars(progress)


def failure(report: Report) -> str:
    """Why a file failed, with the mend, on one line."""
    return ": ".join(filter(None, (report.path, report.error, report.mend)))


def shorten(path: str, width: int = 36) -> str:
    """The end of ``path``, where names differ."""
    return path if len(path) <= width else "..." + path[3 - width :]
