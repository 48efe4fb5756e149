"""`python -m tests.bench`: run the cases, show the table, judge."""

from __future__ import annotations

import signal
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from rich.console import Console
from rich.status import Status

from fusestripe.errors import ConfigError
from fusestripe.units import parse_size
from tests.bench.case import Case, Options
from tests.bench.hdfs import HDFS
from tests.bench.lab import Lab
from tests.bench.latency import FIRST_BYTE
from tests.bench.listing import LISTING
from tests.bench.loopback import COLD, MEMORY
from tests.bench.nodes import NODES
from tests.bench.opening import OPEN
from tests.bench.passthrough import PASSTHROUGH
from tests.bench.programs import require
from tests.bench.random_reads import RANDOM
from tests.bench.readers import INTERLEAVED, SIXTEEN
from tests.bench.report import as_json, show
from tests.bench.result import Result
from tests.bench.shaped import SHAPED
from tests.bench.soak import SOAK
from tests.bench.stalls import STALLS
from tests.bench.tuned import TUNED
from tests.bench.warm import SERVED, WARM

CASES: tuple[Case, ...] = (
    SHAPED,
    TUNED,
    STALLS,
    INTERLEAVED,
    SIXTEEN,
    COLD,
    WARM,
    SERVED,
    PASSTHROUGH,
    RANDOM,
    FIRST_BYTE,
    OPEN,
    LISTING,
    MEMORY,
    HDFS,
    NODES,
)


class Size(click.ParamType[int]):
    """A size in bytes, written as for fusestripe itself."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes of "64MiB"."""
        try:
            return parse_size(str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice([case.name for case in CASES]),
    help="This case; may be given again.",
)
@click.option("--size", type=Size(), help="Bytes of the file, instead of each case's own choice.")
@click.option(
    "--rounds", default=3, type=click.IntRange(1), show_default=True, help="How often each side is measured."
)
@click.option("--short", is_flag=True, help="Small files and wide margins, to see that all works.")
@click.option("--check", is_flag=True, help="Exit with 1 where a figure is not what it should be.")
@click.option(
    "--json",
    "json_path",
    metavar="FILE",
    help="Write JSON there; - is stdout.",
)
@click.option(
    "--dir",
    "base",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where all files go for the time of the run; the default is the temporary directory.",
)
@click.option("--without-peers", is_flag=True, help="Leave out the mounts of others.")
@click.option(
    "--nodes",
    type=click.IntRange(3, 200),
    metavar="N",
    help="Only the case of that name unless --only says otherwise, with so many nodes.",
)
@click.option("--without-sharing", is_flag=True, help="Of the nodes only what they do each for itself.")
@click.option(
    "--soak",
    type=click.FloatRange(min=10),
    metavar="SECONDS",
    help="Instead of the cases: read in all ways for so long, and see that nothing grows.",
)
def main(
    names: tuple[str, ...],
    size: int | None,
    rounds: int,
    short: bool,
    check: bool,
    json_path: str | None,
    base: Path | None,
    without_peers: bool,
    nodes: int | None,
    without_sharing: bool,
    soak: float | None,
) -> None:
    """Measure what a mount is worth: against bare clients and other mounts, in turn, on this machine."""
    if nodes is not None and not names:
        names = (NODES.name,)
    cases = [case for case in CASES if not names or case.name in names] if soak is None else [SOAK]
    require([name for case in cases for name in case.needs])
    if not without_peers:
        require([name for case in cases for name in case.peers], "or say --without-peers")
    options = Options(
        rounds=rounds,
        short=short,
        peers=not without_peers,
        size=size,
        soak=soak or 0.0,
        nodes=nodes,
        sharing=not without_sharing,
    )
    signal.signal(signal.SIGTERM, _leave)
    # Where JSON goes to stdout, the tables make way.
    console = Console(stderr=json_path == "-")
    results = run(cases, options, base, console)
    if json_path is not None:
        _write(json_path, as_json(results, short=short))
    if check and not all(result.reached for result in results):
        sys.exit(1)


def run(cases: list[Case], options: Options, base: Path | None, console: Console) -> list[Result]:
    """Every case in turn, each shown when it is done."""
    results = []
    with (
        tempfile.TemporaryDirectory(prefix="fusestripe-bench-", dir=base) as directory,
        console.status("starting") as status,
        Lab.open(Path(directory)) as lab,
    ):
        for case in cases:
            result = case.run(lab, options, partial(_tell, status, case))
            show(result, console)
            results.append(result)
        status.update("cleaning up")
    return results


def _tell(status: Status, case: Case, text: str) -> None:
    status.update(f"{case.name}: {text}")


def _write(path: str, document: bytes) -> None:
    if path == "-":
        sys.stdout.buffer.write(document)
    else:
        Path(path).write_bytes(document)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    # As for Ctrl-C: the with blocks take everything away.
    raise KeyboardInterrupt


if __name__ == "__main__":
    main(prog_name="python -m tests.bench")
