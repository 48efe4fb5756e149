"""The main job on one machine: a checkpoint in S3 whose connections are slow, loaded through a mount.

`examples/demo.sh` installs what this needs. From the repository, with the extra `demo` installed:
`python -m examples.demo`.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
import obstore
from rich.console import Console
from rich.table import Table

from fusestripe.units import MIB, format_size, parse_size
from tests.support.proxy import Proxy
from tests.support.seaweed import SeaweedServer

BUCKET, RUN = "checkpoints", "run-7"
RATE = 12.5e6  # bytes/s a connection: 100 Mb/s
DELAY = 0.02  # seconds to the first byte
STREAM_PART = 64 * MIB  # the one stream reads this much: its speed is known by then

console = Console(highlight=False, record=True)


def make_checkpoint(directory: Path, size: int, kind: str) -> Path:
    """A state of about ``size`` bytes, saved as ``kind`` saves it."""
    generator = np.random.default_rng(7)
    count, width = 16, 1024
    shape = (max(1, size // (count * width * 4)), width)
    state = {
        f"layers.{number}.weight": generator.standard_normal(shape, dtype=np.float32)
        for number in range(count)
    }
    if kind == "torch":
        import torch

        torch.save({name: torch.from_numpy(array) for name, array in state.items()}, directory / "model.pt")
        return directory / "model.pt"
    from safetensors.numpy import save_file

    save_file(state, directory / "model.safetensors")
    return directory / "model.safetensors"


def load_checkpoint(path: Path) -> Mapping[str, Any]:
    """What a training job does first."""
    if path.suffix == ".pt":
        import torch

        loaded: Mapping[str, Any] = torch.load(path, weights_only=True)
        return loaded
    from safetensors.numpy import load_file

    return load_file(path)


def fingerprint(state: Mapping[str, Any]) -> dict[str, int]:
    """One number a tensor, from all of its bits."""
    return {name: hash(np.asarray(tensor).tobytes()) for name, tensor in state.items()}


def one_stream(endpoint: str, server: SeaweedServer, key: str, size: int) -> float:
    """Bytes/s of a plain GET."""
    part = min(size, STREAM_PART)
    start = time.perf_counter()
    stream = obstore.get(server.store(BUCKET, endpoint), key, options={"range": (0, part)}).stream()
    got = sum(len(chunk) for chunk in stream)
    return got / (time.perf_counter() - start)


def fusestripe(*arguments: str, environment: Mapping[str, str]) -> None:
    """Run the command line, and show it."""
    console.print(f"[dim]$[/] [bold]fusestripe {' '.join(arguments)}[/]", soft_wrap=True)
    command = [sys.executable, "-m", "fusestripe.cli", *arguments]
    subprocess.run(command, check=True, env={**os.environ, **environment})


@contextmanager
def mounted(mountpoint: Path, cache: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """The bucket as a directory for the length of the block."""
    mountpoint.mkdir(exist_ok=True)
    try:
        fusestripe(
            "mount", f"s3://{BUCKET}", str(mountpoint), "--cache-dir", str(cache), environment=environment
        )
        yield
    finally:
        if os.path.ismount(mountpoint):
            fusestripe("unmount", str(mountpoint), environment=environment)


def timed_load(path: Path, expected: dict[str, int]) -> float:
    """Seconds until the checkpoint is in memory; every bit of it is as it was saved."""
    console.print(f"[dim]>>>[/] [bold]load({str(path)!r})[/]", soft_wrap=True)
    start = time.perf_counter()
    state = load_checkpoint(path)
    seconds = time.perf_counter() - start
    if fingerprint(state) != expected:
        sys.exit("what was loaded is not what was saved")
    return seconds


@click.command()
@click.option("--size", default="512MiB", show_default=True, help="Size of the checkpoint.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["torch", "safetensors"]),
    default=lambda: "torch" if importlib.util.find_spec("torch") else "safetensors",
    help="How it is saved; torch where that is installed.",
)
@click.option("--svg", type=click.Path(dir_okay=False), help="Also draw the screen into this file.")
def main(size: str, kind: str, svg: str | None) -> None:
    """Load a checkpoint from a real S3 server through a mount, cold and warm, against one stream."""
    with tempfile.TemporaryDirectory(prefix="fusestripe-demo-") as name:
        directory = Path(name)
        console.print("[cyan]1.[/] a real S3 server with a checkpoint in it; each connection gives 12.5 MB/s")
        local = make_checkpoint(directory, parse_size(size), kind)
        with (
            SeaweedServer(directory / "server") as server,
            Proxy(server.endpoint, rate=RATE, delay=DELAY) as proxy,
        ):
            server.create_bucket(BUCKET)
            server.put_file(BUCKET, f"{RUN}/{local.name}", local)
            show(*measure(directory, local, server, proxy))
    if svg is not None:
        console.save_svg(svg, title="examples/demo.sh")


def measure(
    directory: Path, local: Path, server: SeaweedServer, proxy: Proxy
) -> tuple[int, float, float, float]:
    """Bytes of the checkpoint, bytes/s of one stream, seconds cold and seconds warm."""
    size = local.stat().st_size
    key = f"{RUN}/{local.name}"
    expected = fingerprint(load_checkpoint(local))
    console.print("[cyan]2.[/] one stream, for comparison")
    rate = one_stream(proxy.endpoint, server, key, size)
    mountpoint, cache = directory / "mnt", directory / "cache"

    def through_the_mount() -> float:
        with mounted(mountpoint, cache, proxy.environment):
            return timed_load(mountpoint / key, expected)

    console.print("[cyan]3.[/] mounted, and loaded for the first time: from S3, in stripes")
    cold = through_the_mount()
    console.print("[cyan]4.[/] mounted again, and loaded again: from the cache")
    warm = through_the_mount()
    return size, rate, cold, warm


def show(size: int, rate: float, cold: float, warm: float) -> None:
    """The three ways side by side."""
    table = Table(title=f"a checkpoint of {format_size(size)}", title_style="bold", title_justify="left")
    table.add_column("way")
    for column in ("seconds", "MB/s", "times one stream"):
        table.add_column(column, justify="right")
    ways = (("one stream", size / rate), ("mount, cold", cold), ("mount, warm", warm))
    for way, seconds in ways:
        speed = size / seconds
        table.add_row(way, f"{seconds:.1f}", f"{speed / 1e6:,.0f}", f"{speed / rate:.1f}")
    console.print()
    console.print(table)
    part = format_size(min(size, STREAM_PART))
    console.print(f"One stream: by its first {part}. Both loads were right in every bit.")


if __name__ == "__main__":
    main(prog_name="python -m examples.demo")
