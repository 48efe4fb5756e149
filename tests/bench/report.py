"""Results as tables for people and as JSON for programs."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fusestripe.units import format_size
from tests.bench.result import Figure, Result, Unit

__all__ = ["as_json", "show"]

NAME_WIDTH = 36
COLUMN_WIDTH = 12
LONG_SECONDS = 10.0
"""From here on nobody wants to know about milliseconds."""


def show(result: Result, console: Console) -> None:
    """What was measured, and under it how good that is."""
    console.print(f"[bold cyan]{result.case}[/]: {result.title}", highlight=False)
    measured = _table("", "median", "lowest", "highest")
    for side in result.sides:
        ends = (shown(value, side.unit) for value in (side.median, min(side.rounds), max(side.rounds)))
        measured.add_row(side.name, *ends)
    judged = _table("", "compared", "wanted", "reached")
    for figure in result.figures:
        value = Text(shown(figure.value, figure.unit), style="bold")
        judged.add_row(figure.name, value, _wanted(figure), _verdict(figure))
    console.print(measured, judged, sep="\n")
    for note in result.notes:
        console.print(f"  {note}", style="dim", highlight=False)
    console.print()


def _table(name: str, *columns: str) -> Table:
    table = Table(name, box=None, padding=(0, 1))
    table.columns[0].min_width = NAME_WIDTH
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True, min_width=COLUMN_WIDTH)
    return table


def shown(value: float, unit: Unit) -> str:
    """``value`` for people."""
    if unit == "B/s":
        return f"{value / 1e6:,.1f} MB/s"
    if unit == "1/s":
        return f"{value:,.0f} /s"
    if unit == "%":
        return f"{value:.2f} %"
    if unit == "s":
        return f"{value:.1f} s" if value >= LONG_SECONDS else f"{value * 1000:.1f} ms"
    if unit == "B":
        return format_size(value)
    return f"{value:.2f}"


def _wanted(figure: Figure) -> str:
    if figure.wanted is None:
        return ""
    return f"{'≥' if figure.at_least else '≤'} {shown(figure.wanted, figure.unit)}"


def _verdict(figure: Figure) -> Text:
    if figure.wanted is None:
        return Text()
    return Text("yes", style="green") if figure.reached else Text("no", style="bold red")


def as_json(results: Sequence[Result], *, short: bool) -> bytes:
    """All results with the medians and verdicts that follow from them, and what they were measured on."""
    document = {
        "machine": {
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
        },
        "short": short,
        "reached": all(result.reached for result in results),
        "results": [
            msgspec.to_builtins(result)
            | {
                "sides": [msgspec.to_builtins(side) | {"median": side.median} for side in result.sides],
                "figures": [
                    msgspec.to_builtins(figure) | {"reached": figure.reached} for figure in result.figures
                ],
            }
            for result in results
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
