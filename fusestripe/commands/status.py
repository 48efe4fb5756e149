"""`fusestripe status`: what the daemons say, as tables or as JSON."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence

import click
import msgspec
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fusestripe.commands.completing import mountpoints
from fusestripe.commands.options import json_option, print_json
from fusestripe.config import point_of
from fusestripe.errors import FusestripeError, MountError
from fusestripe.kernel import mounting
from fusestripe.openfiles import FileStatistics
from fusestripe.peers.members import PeerStatistics
from fusestripe.stripes.traffic import TrafficStatistics
from fusestripe.telemetry.client import request
from fusestripe.telemetry.rundir import log_of, socket_of
from fusestripe.telemetry.status import Feature, Status
from fusestripe.units import format_size, printable

__all__ = ["ANY_WIDTH", "View", "fetch", "shorten", "status"]

WATCH_SECONDS = 1.0
ANY_WIDTH = 1000
"""Columns of a page that nobody sees: a line each, whatever reads it."""
BESIDE_PATH = 54
"""Columns that a table of open files needs beside their paths."""
BESIDE_PEERS = 12
"""The same for what came from peers, where something did."""
PEERS_SHOWN = 4
"""Peers that are not asked, named with the reason."""
SILENT_SECONDS = 2.0
"""An origin that has sent nothing for so long is said to be silent."""
FILES_AT_LEAST = 3
"""Open files that are shown on however small a screen."""


@click.command(epilog="Example: fusestripe status /mnt/ckpt --watch")
@click.argument("mountpoint", required=False, shell_complete=mountpoints)
@json_option
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
def status(mountpoint: str | None, as_json: bool, watch: bool) -> None:
    """Show what the mount at MOUNTPOINT does, or all mounts of this user (for root: of all).

    The JSON is an object for one MOUNTPOINT and a list without; sizes in bytes, times in seconds. Exits
    with 1 where a daemon gives no status, or its tree does not answer.
    """
    console = Console()
    if not console.is_terminal:
        console.width = ANY_WIDTH
    if watch:
        _watch(mountpoint, console, as_json=as_json)
        return
    found = _fetch_chosen(mountpoint)
    _print(found, mountpoint, console, as_json=as_json)
    if any(isinstance(one, Silent) for one in found):
        sys.exit(1)


class Silent(msgspec.Struct, frozen=True):
    """A mount whose daemon or tree does not answer. ``log`` is the file it logged to, where there is one."""

    mountpoint: str
    error: str
    log: str


Answer = Status | Silent


def fetch(mountpoint: str) -> Status:
    """The status of the mount that ``mountpoint`` is in, whose tree answers. Raises MountError."""
    found = mounting.mount_above(mountpoint)
    if found is None:
        path = os.path.abspath(mountpoint)
        raise MountError(f"{path} is not mounted", mend="fusestripe status shows what is")
    mount, _ = found
    path = socket_of(mount)
    for answer in request(path, "status"):
        try:
            status = msgspec.convert(answer, Status)
        except msgspec.ValidationError:  # after an upgrade, or before one
            raise MountError(
                f"the daemon of {mount.mountpoint} is of another version of fusestripe",
                mend=f"fusestripe upgrade {mount.mountpoint}",
            ) from None
        if not mounting.answers(mount.mountpoint):  # its threads are not those that gave the status
            raise MountError(f"the tree at {mount.mountpoint} does not answer", mend=f"see {log_of(path)}")
        return status
    raise MountError("the daemon gave no status", mend=f"see {log_of(path)}")


def _fetch_chosen(mountpoint: str | None) -> list[Answer]:
    """Of one mount, or of all. Raises MountError for the one."""
    if mountpoint is not None:
        return [fetch(point_of(mountpoint))]
    return [_fetch_or_not(mount) for mount in mounting.our_mounts()]


def _fetch_or_not(mount: mounting.Mount) -> Answer:
    log = ""
    try:
        log = log_of(socket_of(mount))
        return fetch(mount.mountpoint)
    except FusestripeError as error:
        return Silent(mount.mountpoint, str(error), log if os.path.exists(log) else "")


def _watch(mountpoint: str | None, console: Console, *, as_json: bool) -> None:
    """Show it again and again: on a terminal in place, elsewhere one below the other."""
    try:
        if as_json or not console.is_terminal:
            while True:
                _print(_fetch_chosen(mountpoint), mountpoint, console, as_json=as_json)
                time.sleep(WATCH_SECONDS)
        with Live(_view(_fetch_chosen(mountpoint), live=True), console=console, screen=True) as live:
            while True:
                time.sleep(WATCH_SECONDS)
                live.update(_view(_fetch_chosen(mountpoint), live=True), refresh=True)
    except KeyboardInterrupt:
        return


def _print(found: Sequence[Answer], mountpoint: str | None, console: Console, *, as_json: bool) -> None:
    if as_json:
        print_json(list(found) if mountpoint is None else found[0])
        return
    with console.capture() as capture:
        console.print(_view(found))
    # By click, which writes it at once.
    click.echo("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()), color=True)


def _view(found: Sequence[Answer], *, live: bool = False) -> RenderableType:
    if not found:
        return Text("no fusestripe mounts")
    share = len(found) if live else 0
    return Group(*(View(one, share) if isinstance(one, Status) else _silent(one) for one in found))


def _silent(silent: Silent) -> RenderableType:
    return Text(f"{silent.mountpoint}: {silent.error}", style="red")


class View:
    """``status`` for people: facts, and the open files.

    ``share``: the screen is divided between so many, and the open files come first, as many as there is room
    for; 0: there is room for all.
    """

    def __init__(self, status: Status, share: int = 0) -> None:
        self._status = status
        self._share = share

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """See rich."""
        status = self._status
        files, facts = status.files, _facts(status)
        if self._share:
            used = len(console.render_lines(facts, options)) + 3  # title, head, and what is left out
            files = files[-max(FILES_AT_LEAST, options.size.height // self._share - used) :]
        yield Text(status.mountpoint, style="bold")
        shown: list[RenderableType] = [_files(files, options.max_width)] if files else []
        if files and len(files) < status.open_files:
            shown.append(Text(f"and {_count(status.open_files - len(files), 'open file')} more"))
        yield from [*shown, facts] if self._share else [facts, *shown]


def _facts(status: Status) -> Table:
    cache, memory, reads, origin, served = (
        status.cache,
        status.memory,
        status.reads,
        status.origin,
        status.served,
    )
    peers = f", peers {format_size(served.peers)}" if status.peers is not None else ""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")

    def row(name: str, text: str) -> None:
        table.add_row(name, Text(text))  # Text: a path with brackets is no markup

    for route in status.routes:
        row("route", f"{route.path} shows {route.url}")
        row("", _traffic(route.traffic))
        if route.traffic.silent >= SILENT_SECONDS:
            row("", _silence(route.traffic))
    row("daemon", f"pid {status.pid}, version {status.version}, up {format_duration(status.uptime)}")
    row("log", status.log or "on stderr: the terminal or the journal of what started it")
    by_daemon = f"{reads.count:,} by the daemon, {format_size(reads.bytes)}, {_count(reads.errors, 'error')}"
    row("reads", f"{by_daemon}; {_uncounted(status.passed_through)}")
    row(
        "came from",
        f"cache {format_size(served.cache)}, origin {format_size(served.origin)}{peers}; "
        f"read back to check {format_size(served.checked)}",
    )
    row(
        "origin",
        f"{_count(origin.requests, 'request')}, {format_size(origin.bytes)}, {origin.retries} tried again, "
        f"{origin.errors} failed, {origin.in_flight} in flight, {format_size(origin.hedged)} asked for twice",
    )
    if status.peers is not None:
        for name, text in _peers(status.peers):
            row(name, text)
    row(
        "cache",
        f"{cache.directory}: {format_size(cache.used)} of {format_size(cache.limit)}, "
        f"{_count(cache.objects, 'object')}, {cache.health}" + (f": {cache.why}" if cache.why else ""),
    )
    row(
        "",
        f"{cache.evictions} evicted, {_count(cache.corrupt_stripes, 'corrupt stripe')}, "
        f"{_count(cache.begun_anew, 'object')} begun anew",
    )
    used, peak, budget = (format_size(size) for size in (memory.used, memory.peak, memory.limit))
    row("memory", f"{used} in use, {peak} at most, of {budget}")
    row(
        "kernel",
        f"{_count(status.open_files, 'open file')}, {status.passed_through:,} of them read by the kernel; "
        f"{_count(status.inodes, 'inode')}",
    )
    for name, text in _features(status.features):
        row(name, text)
    return table


def _uncounted(files: int) -> str:
    """What is no read of the daemon's: of ``files`` that are open now, and of others before."""
    if not files:
        return "what the kernel reads itself is not counted"
    return f"{_count(files, 'file')} {'is' if files == 1 else 'are'} read by the kernel itself, not counted"


def _features(features: Sequence[Feature]) -> Iterator[tuple[str, str]]:
    """One row where all are on, else one for each that is not."""
    off = [feature for feature in features if not feature.on]
    if features and not off:
        yield "features", f"all on: {', '.join(feature.name for feature in features)}"
    for feature in off:
        yield "feature", f"{feature.name}: off, {feature.why}"


def _traffic(traffic: TrafficStatistics) -> str:
    """How many stripes may be in flight, and what came of it."""
    of = "found while reading" if traffic.tuned else "of each file"
    return (
        f"{_count(traffic.allowed, 'stripe')} in flight at most, {of}; {format_size(traffic.fetched)} fetched"
    )


def _silence(traffic: TrafficStatistics) -> str:
    because = f": {traffic.why}; it is asked again" if traffic.why else ""
    return f"nothing has come for {format_duration(traffic.silent)}{because}"


def _files(files: Sequence[FileStatistics], width: int) -> Table:
    """A line each, with the end of the path, in ``width`` columns."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("open file", no_wrap=True)
    with_peers = any(file.from_peers for file in files)
    for name in ("size", "in cache", "from cache", "from origin", *(["from peers"] if with_peers else [])):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("read by", no_wrap=True)
    for file in files:
        share = f"{100 * file.present // file.size} %" if file.size else "100 %"
        sizes = list(map(format_size, (file.from_cache, file.from_origin, file.from_peers)))
        reader = "kernel" if file.passthrough else "daemon"
        beside = BESIDE_PATH + (BESIDE_PEERS if with_peers else 0)
        path = Text(shorten(printable(file.path), max(16, width - beside)))
        table.add_row(path, format_size(file.size), share, *(sizes if with_peers else sizes[:2]), reader)
    return table


def _peers(peers: PeerStatistics) -> Iterator[tuple[str, str]]:
    """How many of them are asked, and a line for each that is not."""
    live = sum(member.live for member in peers.members)
    here = f"this node is {peers.me}" if peers.me else "this node is none of the members"
    sent = f"{format_size(peers.sent)} sent" + (f": {peers.why}" if peers.why else "")
    yield "peers", f"{here}; {live} of {_count(len(peers.members), 'other')} answer; {sent}"
    silent = [member for member in peers.members if not member.live]
    for member in silent[:PEERS_SHOWN]:
        yield "peer", f"{member.name} is not asked: {member.why}"
    if len(silent) > PEERS_SHOWN:
        yield "peer", f"and {len(silent) - PEERS_SHOWN} more"


def shorten(path: str, width: int = 36) -> str:
    """The end of ``path``, where names differ."""
    return path if len(path) <= width else "..." + path[3 - width :]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def format_duration(seconds: float) -> str:
    """The two largest units of it: "3 d 4 h", "12 s"; of less than ten seconds the tenths: "0.2 s"."""
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    left = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, left = divmod(left, length)
        if amount or (unit == "s" and not parts):
            parts.append(f"{amount} {unit}")
    return " ".join(parts[:2])
