"""What is simulated for the README, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from fusestripe.stripes.plan import stripe_count
from tests.cluster.simulation.job import KEY, Mode, Outcome, Setup, simulate
from tests.cluster.simulation.owners import most_owned

__all__ = ["FILE", "SETTINGS", "Row", "plot", "row", "table_of_rows", "table_of_settings"]

FILE = 400_000_000_000
"""Bytes of the file that all want."""
STRIPES: dict[Mode, int] = {"read": 256, "prefetch": 512}
"""So many of it are simulated; the rest comes at the rate of their second half."""
LARGE = 500
"""Of jobs of more nodes, which take minutes, fewer are."""
STRIPES_OF_LARGE: dict[Mode, int] = {"read": 128, "prefetch": 384}
EVERYBODY = 1 << 30
"""A fanout with which nobody is sent on."""

SETTINGS: dict[str, dict[str, object]] = {
    "as it is": {},
    **{f"fanout {fanout}": {"fanout": fanout} for fanout in (1, 3, 4, 8)},
    **{f"busy from {busy} on": {"busy": busy} for busy in (8, 12, 16, 32)},
    "nobody is ever busy": {"busy": EVERYBODY},
    "fanout 4, nobody is ever busy": {"fanout": 4, "busy": EVERYBODY},
    "fanout 8, nobody is ever busy": {"fanout": 8, "busy": EVERYBODY},
    "32 in flight": {"in_flight": 32, "window": 48},
    "96 ahead of a reader, own order": {"window": 96, "arranged": True},
    "the same, nobody is ever busy": {"window": 96, "arranged": True, "busy": EVERYBODY},
    "one begins after 4 s": {"late": 4.0},
    "one has a tenth of the link": {"slow": 0.1},
}
"""What may be otherwise, as parts of a Setup."""


class Row(msgspec.Struct, frozen=True):
    """A job of ``nodes``; seconds that the whole file takes them.

    ``alone``: without peers. ``owned``: by the node with most stripes, over the mean.
    """

    nodes: int
    ideal: float
    alone: float
    owned: float
    read: Outcome
    prefetch: Outcome
    by_owners: float | None


def row(nodes: int) -> Row:
    """What becomes of a job of ``nodes``."""
    setup = Setup(nodes)
    members = [f"node{number}:4817" for number in range(nodes)]
    by_owners = None
    if nodes <= LARGE:
        by_owners = outcome("prefetch", nodes, fanout=EVERYBODY, busy=EVERYBODY).whole(FILE)
    return Row(
        nodes,
        ideal=FILE / min(setup.link, setup.origin),
        alone=FILE / min(setup.link, setup.origin / nodes, setup.in_flight * setup.connection),
        owned=most_owned(members, KEY, stripe_count(FILE, setup.stripe_size)),
        read=outcome("read", nodes),
        prefetch=outcome("prefetch", nodes),
        by_owners=by_owners,
    )


def outcome(mode: Mode, nodes: int, **parts: object) -> Outcome:
    """Of a job as it is, but for ``parts`` of its Setup."""
    stripes = (STRIPES if nodes <= LARGE else STRIPES_OF_LARGE)[mode]
    return simulate(msgspec.convert({"nodes": nodes, "mode": mode, "stripes": stripes, **parts}, Setup))


def table_of_rows(rows: Sequence[Row]) -> Table:
    """Seconds for the file, and how it went, by the number of nodes."""
    table = Table(
        "nodes",
        "ideal",
        "prefetch",
        "read",
        "owners send all",
        "no peers",
        "origin",
        "depth, most",
        "asked",
        "most sent",
        "owner max/mean",
        box=None,
    )
    for one in rows:
        both = (one.prefetch, one.read)
        table.add_row(
            str(one.nodes),
            f"{one.ideal:,.0f} s",
            *(f"{each.whole(FILE):,.0f} s ({each.whole(FILE) / one.ideal:.2f})" for each in both),
            "" if one.by_owners is None else f"{one.by_owners:,.0f} s",
            f"{one.alone:,.0f} s",
            *(" / ".join(pair) for pair in zip(*map(_how, both), strict=True)),
            f"{one.owned:.2f}",
        )
    return table


def table_of_settings(nodes: int, names: Sequence[str]) -> Table:
    """Rates of the slowest node, and how it went, where something is otherwise."""
    table = Table(
        f"{nodes} nodes", "MB/s", "median s", "origin", "depth, most", "asked", "most sent", box=None
    )
    for name in names:
        both = [outcome(mode, nodes, **SETTINGS[name]) for mode in STRIPES][::-1]
        figures = [(f"{one.rate / 1e6:,.0f}", f"{one.median:.2f}", *_how(one)) for one in both]
        table.add_row(name, *(" / ".join(pair) for pair in zip(*figures, strict=True)))
    return table


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw time against nodes, as SVG."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot
    from matplotlib.ticker import ScalarFormatter

    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "fusestripe", "font.size": 10})
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    lines: dict[str, tuple[str, list[float | None]]] = {
        "without peers": ("s--", [one.alone for one in rows]),
        "owners send to all": ("^--", [one.by_owners for one in rows]),
        "sequential read": ("o-", [one.read.whole(FILE) for one in rows]),
        "prefetch": ("o-", [one.prefetch.whole(FILE) for one in rows]),
        "a node's link": (":", [one.ideal for one in rows]),
    }
    for name, (style, seconds) in lines.items():
        known = [(one.nodes, value) for one, value in zip(rows, seconds, strict=True) if value is not None]
        axes.plot(*zip(*known, strict=True), style, label=name, markersize=4)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="nodes that want the same file at once",
        ylabel="seconds until the last one has it",
        title="400 GB from an origin of 10 GB/s to nodes of 1.25 GB/s (simulated)",
    )
    axes.set_xticks([one.nodes for one in rows])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ScalarFormatter())
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def _how(one: Outcome) -> tuple[str, str, str, str]:
    return (
        f"{one.from_origin:.2f}",
        f"{one.depth:.1f}, {one.deepest}",
        f"{one.asked:.1f}",
        f"{one.most_sent:.2f}",
    )
