"""`python -m tests.cluster.simulation`: how jobs of many nodes go, by the product's own rules."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import click
from rich.console import Console

from tests.cluster.simulation.report import SETTINGS, plot, row, table_of_rows, table_of_settings


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--nodes",
    "numbers",
    multiple=True,
    type=click.IntRange(2),
    default=(10, 20, 50, 100, 200, 500, 1000, 2000),
    show_default=True,
    help="A job of so many; may be given again.",
)
@click.option(
    "--settings",
    "settings_of",
    type=click.IntRange(2),
    metavar="NODES",
    help="Instead: what other settings would do to a job of so many.",
)
@click.option("--processes", default=2, type=click.IntRange(1), show_default=True, help="At once.")
@click.option("--plot", "svg", type=click.Path(dir_okay=False, path_type=Path), help="Draw it into this SVG.")
def main(numbers: tuple[int, ...], settings_of: int | None, processes: int, svg: Path | None) -> None:
    """Simulate nodes that all want one file of 400 GB at the same moment.

    \b
    Example: python -m tests.cluster.simulation --plot examples/peers.svg
    """
    console = Console(highlight=False)
    with Console(stderr=True).status("simulating") as status:
        if settings_of is not None:
            console.print(table_of_settings(settings_of, tuple(SETTINGS)))
            return
        rows = []
        # The largest first: they take as long as all others together.
        with ProcessPoolExecutor(processes) as pool:
            for done in as_completed([pool.submit(row, nodes) for nodes in sorted(numbers, reverse=True)]):
                rows.append(done.result())
                status.update(f"{len(rows)} of {len(numbers)} are done")
    rows.sort(key=lambda one: one.nodes)
    console.print(table_of_rows(rows))
    if svg is not None:
        plot(rows, svg)


if __name__ == "__main__":
    main(prog_name="python -m tests.cluster.simulation")
