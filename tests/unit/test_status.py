"""The status of a mount as people see it."""

from __future__ import annotations

import io
import json
import os

import msgspec
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from fusestripe.cache.health import CacheStatistics
from fusestripe.cli import cli
from fusestripe.commands import status as status_command
from fusestripe.commands.status import format_duration, render
from fusestripe.kernel import mounting
from fusestripe.openfiles import FileStatistics
from fusestripe.reader import ReadStatistics
from fusestripe.stripes.fetch import FetchStatistics
from fusestripe.stripes.memory import PoolStatistics
from fusestripe.stripes.traffic import TrafficStatistics
from fusestripe.telemetry.status import Feature, RouteStatus, ServedStatus, Status
from fusestripe.units import MIB


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, args, prog_name="fusestripe")


STATUS = Status(
    pid=1,
    version="0",
    mountpoint="/mnt/[bold]",
    uptime=90061,
    routes=(
        RouteStatus("/", "s3://b", TrafficStatistics(24, tuned=True, fetched=3 * MIB, hedged=MIB)),
        RouteStatus("/hub", "https://h", TrafficStatistics(1, tuned=False, fetched=0, hedged=0)),
    ),
    cache=CacheStatistics(
        directory="/nvme",
        used=5 * MIB,
        limit=10 * MIB,
        objects=1,
        held=1,
        descriptors=2,
        health="normal",
        loads=0,
        loaded_bytes=0,
        direct_reads=0,
        direct_read_bytes=0,
        checks=0,
        checked_bytes=0,
        saves=1,
        saved_bytes=5 * MIB,
        no_room=0,
        evictions=0,
        evicted_bytes=0,
        corrupt_stripes=1,
        read_errors=0,
        write_errors=0,
    ),
    memory=PoolStatistics(10, 5, 7),
    reads=ReadStatistics(1, 2048, 0),
    origin=FetchStatistics(3, 4096, 1, 0, MIB, 2),
    served=ServedStatus(cache=1, origin=2, checked=3 * MIB),
    open_files=2,
    passed_through=1,
    inodes=2,
    features=(Feature("passthrough", on=False, why="takes root"),),
    files=(
        FileStatistics("/a/[red]x", 200, 100, 3, 4, passthrough=False),
        FileStatistics("/b", 300, 300, 0, 0, passthrough=True),
    ),
)


def shown(width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render(STATUS))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_status_for_people() -> None:
    text = shown(100)
    for words in (
        "/ shows s3://b",
        "up 1 d 1 h",
        "1 read, 2 KiB, 0 errors",
        "5 MiB of 10 MiB, 1 object, normal",
        "1 corrupt stripe",
        "cache 1 B, origin 2 B",
        "24 stripes in flight at most, found while reading; 3 MiB fetched",
        "1 stripe in flight at most, of each file; 0 B fetched",
        "2 in flight, 1 MiB asked for twice",
        "3 MiB of the cache, to see",
        "passthrough: off, takes root",
        "/a/[red]x",
        "50 %",
        "/mnt/[bold]",
    ):
        assert words in text


@pytest.mark.parametrize("width", [80, 140])
def test_who_reads_an_open_file_is_shown(width: int) -> None:
    text = shown(width)
    assert "2 open files, 1 of them read by the kernel itself" in text
    readers = {
        line.split("│")[1].strip(): line.split("│")[-2].strip() for line in text.splitlines() if "%" in line
    }
    assert readers == {"/a/[red]x": "daemon", "/b": "kernel"}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.9, "59 s"), (60, "1 min"), (3661, "1 h 1 min"), (90061, "1 d 1 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_daemon_of_another_version_costs_only_its_own_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an upgrade the mounts that are there go on, and answer in their own way."""
    old, new = (mounting.Mount(f"/mnt/{name}", mounting.FSTYPE, "s", "0:1", ()) for name in ("old", "new"))
    answers = {"old": {"pid": 1, "cache": {"dir": "/nvme"}}, "new": msgspec.to_builtins(STATUS)}
    monkeypatch.setattr(mounting, "our_mounts", lambda: [old, new])
    monkeypatch.setattr(mounting, "mounts", lambda: [old, new])
    monkeypatch.setattr(status_command, "socket_of", lambda mount: mount.mountpoint)
    monkeypatch.setattr(status_command, "request", lambda path, _: iter([answers[os.path.basename(path)]]))
    shown = run("status", "--json")
    assert shown.exit_code == 0
    first, second = json.loads(shown.stdout)
    assert first["mountpoint"] == "/mnt/old"
    assert "is of another version of fusestripe: unmount and mount again" in first["error"]
    assert second["pid"] == STATUS.pid
    alone = run("status", "/mnt/old")
    assert (alone.exit_code, alone.stderr.count("\n")) == (1, 1)
