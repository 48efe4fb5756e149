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
from rich.progress import Progress, ProgressColumn, Task, TaskID
from rich.table import Column
from rich.text import Text

from fusestripe.api import bring, pin_of, plans, ranks_of
from fusestripe.commands.bars import byte_columns
from fusestripe.commands.completing import paths_or_urls
from fusestripe.commands.interrupts import interruptible
from fusestripe.commands.options import (
    config_option,
    json_option,
    o_option,
    print_json,
    read_flags,
    setting_options,
)
from fusestripe.commands.planned import choice_line, failure, show_plans
from fusestripe.commands.status import format_duration, shorten
from fusestripe.prefetcher import Report
from fusestripe.selection import Choice, Wanted
from fusestripe.units import format_size, printable

__all__ = ["Bars", "FetchSpeed", "JsonLines", "Lines", "Speed", "Tally", "prefetch"]

SPEED_SECONDS = 10.0
"""The speed is that of so long a time before now."""


class Display(Protocol):
    """Shows choices and reports as they come; ``note`` at the end sums up."""

    def choose(self, choice: Choice) -> None:
        """Show what was chosen."""
        ...

    def tell(self, report: Report) -> None:
        """Show one."""
        ...

    def note(self, text: str) -> None:
        """Say how it all went."""
        ...


@click.command(epilog="Example: fusestripe prefetch --latest --rank-local --pin-for 12h /mnt/ckpt/run-7")
@click.argument("sources", metavar="PATH|URL...", nargs=-1, required=True, shell_complete=paths_or_urls)
@config_option
@setting_options("cache_dir", "cache_size", "stripe_size", "stripe_count", "memory")
@o_option
@click.option("--plan", is_flag=True, help="Fetch nothing: say what would be fetched, and whether it fits.")
@click.option(
    "--check", is_flag=True, help="Fetch nothing: read back what is in the cache, and tell what is missing."
)
@click.option("--latest", is_flag=True, help="Of the checkpoints in each, take the newest that is whole.")
@click.option("--rank-local", is_flag=True, help="Only what this node's ranks read, where names tell.")
@click.option("--ranks", metavar="RANKS", help='The same for these: 0-7, or "0-7/64" of 64 in all.')
@click.option("--pin", is_flag=True, help="Never evict them, until `fusestripe cache unpin`.")
@click.option("--pin-for", metavar="TIME", help="Not before so long: 12h. The longest of several pins holds.")
@json_option
def prefetch(
    sources: tuple[str, ...],
    config: str | None,
    options: tuple[str, ...],
    plan: bool,
    check: bool,
    latest: bool,
    rank_local: bool,
    ranks: str | None,
    pin: bool,
    pin_for: str | None,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Bring whole files and trees into the cache.

    A PATH is under a mount, whose daemon does it with its own settings; a URL needs no mount. Returns when
    every byte is on the disk and checked; exits with 1 if a file failed or, with --check, misses a byte, or,
    with --plan, it does not fit. The JSON is a line for each file and each choice that --latest or ranks
    made; with --plan one for each mount, and one for all URLs.

    \b
    --latest knows torch.distributed.checkpoint (.metadata), DeepSpeed (latest),
    Megatron (latest_checkpointed_iteration.txt), safetensors and
    pytorch_model.bin with their indexes, and the Trainer's checkpoint-N. Newer is
    what has the higher numbers in its name. One that is still being written, or
    lacks a file, is skipped. The small files that tell are read.

    \b
    --rank-local has the ranks from torchrun's environment (RANK and LOCAL_RANK or
    GROUP_RANK, LOCAL_WORLD_SIZE, WORLD_SIZE) or Slurm's (SLURM_NODEID with
    SLURM_TASKS_PER_NODE or SLURM_NTASKS_PER_NODE; one task on a node with several
    SLURM_GPUS_ON_NODE launches a process for each; in a Prolog, one for each of
    SLURM_JOB_GPUS on the nodes of SLURM_JOB_NODELIST). It takes for granted
      that as many ranks read as wrote, and each reads what it wrote;
      DeepSpeed: rank = dp * mp ranks + mp, and no elastic_checkpoint;
      Megatron: tp innermost, pp outermost, in the directory's mp_rank_TP_PP.
    What it leaves out can still be read, and is fetched then. Where names do not
    tell (safetensors, pipelines of DeepSpeed, experts of Megatron, another number
    of ranks) everything is brought, and the line about the choice says so.
    """
    if plan and check:
        raise click.UsageError("--plan and --check do not go together")
    said = read_flags(options, flags)
    wanted = Wanted(
        check=check,
        pin=pin_of(pin, pin_for),
        latest=latest,
        ranks=ranks_of(ranks or ("local" if rank_local else None)),
    )
    if plan:
        found = interruptible(lambda: plans(sources, said, config=config, wanted=wanted))
        show_plans(found, as_json=as_json)
        if any(not one.fits or one.failures for one in found):
            sys.exit(1)
        return
    tally = Tally()
    with _display(as_json) as display:

        def tell(told: Report | Choice) -> None:
            if isinstance(told, Choice):
                display.choose(told)
            else:
                tally.add(told)
                display.tell(told)

        interruptible(lambda: bring(sources, said, tell, config=config, wanted=wanted))
        display.note(tally.summary())
    if tally.failed or tally.missing:
        sys.exit(1)


class Tally:
    """What has been told so far."""

    def __init__(self) -> None:
        self.done = self.failed = self.bytes = self.fetched = self.from_peers = 0
        self.incomplete = self.missing = 0
        self._started = time.monotonic()

    def add(self, report: Report) -> None:
        """Count it, if it is the last of its file."""
        self.failed += report.state == "failed"
        if report.state in ("done", "missing"):
            self.done += 1
            self.bytes += report.size
            self.fetched += report.fetched
            self.from_peers += report.from_peers
        if report.state == "missing":
            self.incomplete += 1
            self.missing += report.missing

    def summary(self) -> str:
        """One line: files, bytes, time, where they came from, failures."""
        seconds = time.monotonic() - self._started
        files = f"{self.done:,} file{'' if self.done == 1 else 's'}, {format_size(self.bytes)}"
        there = format_size(self.bytes - self.fetched - self.missing)
        failed = f"; {self.failed:,} failed" if self.failed else ""
        took = format_duration(max(seconds, 0.1))
        if self.missing:
            where = f"{self.incomplete:,} file{'' if self.incomplete == 1 else 's'}"
            return f"{files} in {took}: {there} there, {format_size(self.missing)} missing in {where}{failed}"
        peers = f" ({format_size(self.from_peers)} from other nodes)" if self.from_peers else ""
        fetched = format_size(self.fetched)
        return f"{files} in {took}: {fetched} fetched{peers}, {there} there already{failed}"


class JsonLines:
    """A line of JSON for each choice, and for each file when it is done or has failed."""

    def choose(self, choice: Choice) -> None:
        """Print it."""
        print_json(choice)

    def tell(self, report: Report) -> None:
        """Print it if it is the last of its file."""
        if report.state in ("done", "missing", "failed"):
            print_json(report)

    def note(self, text: str) -> None:
        """Nothing: a script can count."""


class Lines:
    """A line for each choice and each file; those that failed on stderr."""

    def choose(self, choice: Choice) -> None:
        """Print it."""
        click.echo(choice_line(choice))

    def tell(self, report: Report) -> None:
        """Print it if it is the last of its file."""
        if report.state == "done":
            click.echo(f"{printable(report.path)}: {format_size(report.size)}")
        elif report.state == "missing":
            click.echo(lack(report))
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

    def choose(self, choice: Choice) -> None:
        """Print it above the bars."""
        self._progress.console.print(Text(choice_line(choice)), soft_wrap=True)

    def tell(self, report: Report) -> None:
        """Move the bars."""
        path = printable(report.path)
        file = self._files.setdefault(path, _Moved())
        if report.state == "started":
            self._known += report.size
            self._tasks[path] = self._progress.add_task(
                shorten(path, max(12, self._progress.console.width // 3)), total=report.size, speed=file.speed
            )
        here, fetched = report.cached + report.fetched - file.here, report.fetched - file.fetched
        file.moved(here, fetched)
        self._total.moved(here, fetched)
        if path in self._tasks:
            self._progress.update(self._tasks[path], completed=file.here)
        if report.state in ("done", "missing", "failed"):
            del self._files[path]
            if path in self._tasks:
                self._progress.remove_task(self._tasks.pop(path))
        if report.state == "missing":
            self._progress.console.print(Text(lack(report), style="yellow"))
        if report.state == "failed":
            self._progress.console.print(Text(failure(report), style="red"))
        self._progress.update(self._all, total=self._known, completed=self._total.here)

    def note(self, text: str) -> None:
        """Print it above the bars, which go."""
        self._progress.console.print(Text(text))


@contextmanager
def _display(as_json: bool) -> Iterator[Display]:
    console = Console()
    if as_json:
        yield JsonLines()
    elif not console.is_terminal:
        yield Lines()
    else:
        speed = FetchSpeed(table_column=Column(no_wrap=True))
        with Progress(*byte_columns(), speed, console=console, transient=True) as progress:
            yield Bars(progress)


def lack(report: Report) -> str:
    """How much of a file is there and how much is not."""
    there, size, missing = map(format_size, (report.done, report.size, report.missing))
    return f"{printable(report.path)}: {there} of {size} there, {missing} missing"
