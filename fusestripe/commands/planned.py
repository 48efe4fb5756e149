"""How a plan and a choice of `fusestripe prefetch` look."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fusestripe.cache.eviction import Forecast
from fusestripe.commands.options import print_json
from fusestripe.commands.status import ANY_WIDTH
from fusestripe.planning import Plan
from fusestripe.prefetcher import Report
from fusestripe.selection import Choice
from fusestripe.units import format_size, printable

__all__ = ["choice_line", "failure", "show_plans"]

FILES_SHOWN = 20
"""Files of a plan that people see, those with the most to fetch."""
SKIPPED_SHOWN = 3


def show_plans(plans: Sequence[Plan], *, as_json: bool) -> None:
    """Print them: a line of JSON each, or a page."""
    for plan in plans:
        if as_json:
            print_json(plan)
        else:
            _show(plan)


def choice_line(choice: Choice) -> str:
    """Which checkpoint was taken, what of it, and why newer ones were not: one line."""
    layout = f" ({choice.layout})" if choice.layout else ""
    parts = [f"{printable(choice.taken)}{layout}", *([choice.note] if choice.note else [])]
    for one in choice.skipped[:SKIPPED_SHOWN]:
        parts.append(f"skipped {printable(one.path.rpartition('/')[2])}: {printable(one.reason)}")
    if len(choice.skipped) > SKIPPED_SHOWN:
        parts.append(f"and {len(choice.skipped) - SKIPPED_SHOWN:,} more")
    return "; ".join(parts)


def failure(report: Report) -> str:
    """Why a file failed, with the mend, on one line."""
    return ": ".join(filter(None, (printable(report.failure), report.mend)))


def _show(plan: Plan) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = ANY_WIDTH
    for choice in plan.choices:
        click.echo(choice_line(choice))
    if plan.files:
        console.print(_files(plan))
    if plan.shares:
        console.print(_shares(plan))
    if plan.files or not plan.failures:
        _show_sums(plan)
    for report in plan.failures:
        click.echo(failure(report), err=True)


def _show_sums(plan: Plan) -> None:
    click.echo(
        f"{plan.files:,} file{'' if plan.files == 1 else 's'}, {format_size(plan.bytes)}: "
        f"{format_size(plan.bytes - plan.cached)} to fetch, {format_size(plan.cached)} there already"
    )
    click.echo(f"{plan.directory}: {_room(plan.room) if plan.room and plan.fits else _refusal(plan)}")


def _files(plan: Plan) -> Table:
    """Those with the most to fetch."""
    table = Table(box=None, pad_edge=False)
    table.add_column("file", overflow="fold")
    for name in ("size", "in cache", "to fetch"):
        table.add_column(name, justify="right", no_wrap=True)
    first = sorted(plan.each, key=lambda one: (one.cached - one.size, one.path))
    for one in first[:FILES_SHOWN]:
        sizes = map(format_size, (one.size, one.cached, one.size - one.cached))
        table.add_row(Text(printable(one.path)), *sizes)
    if len(first) > FILES_SHOWN:
        rest = first[FILES_SHOWN:]
        size, cached = sum(one.size for one in rest), sum(one.cached for one in rest)
        table.add_row(f"{len(rest):,} more", *map(format_size, (size, cached, size - cached)))
    return table


def _shares(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("from", overflow="fold")
    for name in ("files", "to fetch"):
        table.add_column(name, justify="right", no_wrap=True)
    for share in plan.shares:
        table.add_row(Text(printable(share.source)), f"{share.files:,}", format_size(share.bytes))
    return table


def _room(room: Forecast) -> str:
    used = f"{format_size(room.used)} of {format_size(room.limit)} used"
    if not room.evicted:
        return f"it fits; {used}"
    objects = f"{room.evicted:,} object{'' if room.evicted == 1 else 's'}"
    return f"it fits when {objects} of {format_size(room.evicted_bytes)} are evicted; {used}"


def _refusal(plan: Plan) -> str:
    return f"it does not fit: {plan.why}: {plan.mend}"
