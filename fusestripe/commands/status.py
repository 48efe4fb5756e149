"""`fusestripe status`: what the daemons say, as tables or as JSON."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fusestripe.commands.options import json_option, print_json
from fusestripe.errors import FusestripeError, MountError
from fusestripe.kernel import mounting
from fusestripe.stripes.traffic import TrafficStatistics
from fusestripe.telemetry.control import request, socket_of
from fusestripe.telemetry.status import Status
from fusestripe.units import format_size

__all__ = ["fetch", "render", "status"]

WATCH_SECONDS = 1.0


@click.command(epilog="Example: fusestripe status /mnt/ckpt --watch")
@click.argument("mountpoint", required=False)
@json_option
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
def status(mountpoint: str | None, as_json: bool, watch: bool) -> None:
    """Show what the mount at MOUNTPOINT does, or all mounts of this user (for root: of all).

    The JSON is an object for one MOUNTPOINT and a list without; sizes in bytes, times in seconds.
    """
    if as_json:
        print_json(fetch(mountpoint) if mountpoint is not None else list(_fetch_all()))
    elif watch:
        _watch(mountpoint)
    else:
        Console().print(_render_chosen(mountpoint))


class Silent(msgspec.Struct, frozen=True):
    """A mount whose daemon gives no status."""

    mountpoint: str
    error: str


def fetch(mountpoint: str) -> Status:
    """The status of the mount that ``mountpoint`` is in. Raises MountError."""
    found = mounting.mount_above(mountpoint)
    if found is None:
        path = os.path.abspath(mountpoint)
        raise MountError(f"{path} is not mounted", mend="fusestripe status shows what is")
    for answer in request(socket_of(found[0]), "status"):
        try:
            return msgspec.convert(answer, Status)
        except msgspec.ValidationError:  # after an upgrade, or before one
            raise MountError(
                f"the daemon of {found[0].mountpoint} is of another version of fusestripe",
                mend="unmount and mount again to see its status",
            ) from None
    raise MountError("the daemon gave no status", mend="see its log")


def _fetch_all() -> Iterator[Status | Silent]:
    for mount in mounting.our_mounts():
        try:
            yield fetch(mount.mountpoint)
        except FusestripeError as error:
            yield Silent(mount.mountpoint, str(error))


def _watch(mountpoint: str | None) -> None:
    console = Console()
    with Live(_render_chosen(mountpoint), console=console, screen=console.is_terminal) as live:
        try:
            while True:
                time.sleep(WATCH_SECONDS)
                live.update(_render_chosen(mountpoint), refresh=True)
        except KeyboardInterrupt:
            return


def _render_chosen(mountpoint: str | None) -> RenderableType:
    if mountpoint is not None:
        return render(fetch(mountpoint))
    shown = [render(found) if isinstance(found, Status) else _render_silent(found) for found in _fetch_all()]
    return Group(*shown) if shown else Text("no fusestripe mounts")


def _render_silent(silent: Silent) -> RenderableType:
    return Text(f"{silent.mountpoint}: {silent.error}", style="red")


def render(status: Status) -> RenderableType:
    """``status`` for people: a table of facts, and one of the open files."""
    parts: list[RenderableType] = [_facts(status)]
    if status.files:
        parts.append(_files(status))
    return Group(*parts)


def _facts(status: Status) -> Table:
    cache, memory, reads, origin, served = (
        status.cache,
        status.memory,
        status.reads,
        status.origin,
        status.served,
    )
    table = Table(title=Text(status.mountpoint), title_justify="left", title_style="bold", show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")

    def row(name: str, text: str) -> None:
        table.add_row(name, Text(text))  # Text: a path with brackets is no markup

    for route in status.routes:
        row("route", f"{route.path} shows {route.url}")
        row("", _traffic(route.traffic))
    row("daemon", f"pid {status.pid}, version {status.version}, up {format_duration(status.uptime)}")
    failed = _count(reads.errors, "error")
    row("reads", f"{_count(reads.count, 'read')}, {format_size(reads.bytes)}, {failed}")
    row("came from", f"cache {format_size(served.cache)}, origin {format_size(served.origin)}")
    row("read back", f"{format_size(served.checked)} of the cache, to see that it is right")
    row(
        "origin",
        f"{_count(origin.requests, 'request')}, {format_size(origin.bytes)}, {origin.retries} tried again, "
        f"{origin.errors} failed, {origin.in_flight} in flight, {format_size(origin.hedged)} asked for twice",
    )
    row(
        "cache",
        f"{cache.directory}: {format_size(cache.used)} of {format_size(cache.limit)}, "
        f"{_count(cache.objects, 'object')}, {cache.health}",
    )
    row("", f"{cache.evictions} evicted, {_count(cache.corrupt_stripes, 'corrupt stripe')}")
    used, peak, budget = (format_size(size) for size in (memory.used, memory.peak, memory.limit))
    row("memory", f"{used} in use, {peak} at most, of {budget}")
    row(
        "kernel",
        f"{_count(status.open_files, 'open file')}, {status.passed_through:,} of them read by the kernel "
        f"itself and not counted above; {_count(status.inodes, 'inode')}",
    )
    for feature in status.features:
        row("feature", f"{feature.name}: {'on' if feature.on else f'off, {feature.why}'}")
    return table


def _traffic(traffic: TrafficStatistics) -> str:
    """How many stripes may be in flight, and what came of it."""
    of = "found while reading" if traffic.tuned else "of each file"
    return (
        f"{_count(traffic.allowed, 'stripe')} in flight at most, {of}; {format_size(traffic.fetched)} fetched"
    )


def _files(status: Status) -> Table:
    table = Table(title="open files", title_justify="left", title_style="bold")
    table.add_column("path", overflow="fold")
    for name in ("size", "in cache", "from cache", "from origin"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("read by", no_wrap=True)
    for file in status.files:
        share = f"{100 * file.present // file.size} %" if file.size else "100 %"
        sizes = (format_size(file.from_cache), format_size(file.from_origin))
        reader = "kernel" if file.passthrough else "daemon"
        table.add_row(Text(file.path), format_size(file.size), share, *sizes, reader)
    return table


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def format_duration(seconds: float) -> str:
    """The two largest units of it: "3 d 4 h", "12 s"."""
    left = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, left = divmod(left, length)
        if amount or (unit == "s" and not parts):
            parts.append(f"{amount} {unit}")
    return " ".join(parts[:2])
