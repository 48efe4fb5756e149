"""The status of a mount as people see it."""

from __future__ import annotations

import errno
import io
import json
import os
import threading
import time

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from rich.console import Console

from fusestripe.cache.health import CacheStatistics, DiskHealth
from fusestripe.cli import cli
from fusestripe.commands import status as status_command
from fusestripe.commands.status import View, format_duration
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
    log="/run/fusestripe/1.log",
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
        why="",
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
        begun_anew=0,
        read_errors=0,
        write_errors=0,
    ),
    memory=PoolStatistics(10, 5, 7),
    reads=ReadStatistics(1, 2048, 0),
    origin=FetchStatistics(3, 4096, 1, 0, MIB, 2),
    served=ServedStatus(cache=1, origin=2, peers=0, checked=3 * MIB),
    open_files=2,
    passed_through=1,
    inodes=2,
    features=(Feature("passthrough", on=False, why="takes root"),),
    peers=None,
    files=(
        FileStatistics("/a/[red]x", "s3://b/a/[red]x", 200, 100, 3, 4, 0, passthrough=False),
        FileStatistics("/b", "s3://b/b", 300, 300, 0, 0, 0, passthrough=True),
    ),
)


def shown(width: int, status: Status = STATUS, *, height: int = 24, share: int = 0) -> str:
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(View(status, share))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_status_for_people() -> None:
    text = shown(100)
    for words in (
        "/ shows s3://b",
        "up 1 d 1 h",
        "/run/fusestripe/1.log",
        "1 by the daemon, 2 KiB, 0 errors; 1 file is read by the kernel itself, not counted",
        "5 MiB of 10 MiB, 1 object, normal",
        "1 corrupt stripe",
        "cache 1 B, origin 2 B",
        "24 stripes in flight at most, found while reading; 3 MiB fetched",
        "1 stripe in flight at most, of each file; 0 B fetched",
        "2 in flight, 1 MiB asked for twice",
        "read back to check 3 MiB",
        "passthrough: off, takes root",
        "/a/[red]x",
        "50 %",
        "/mnt/[bold]",
    ):
        assert words in text


def test_a_watched_status_fits_on_a_small_screen_with_the_open_files_first() -> None:
    far = "/run/checkpoints-of-last-week/global_step_9000/"
    files = tuple(
        FileStatistics(f"{far}rank{number}.pt", "s3://b/x", 9, 9, 0, 0, 0, passthrough=True)
        for number in range(50)
    )
    features = tuple(Feature(name, on=True) for name in ("read-ahead", "channel", "passthrough"))
    (route, _) = STATUS.routes
    status = replace(STATUS, files=files, open_files=1000, features=features, routes=(route,))
    lines = shown(80, status, share=1).splitlines()
    assert len(lines) <= 24
    at = [number for number, line in enumerate(lines) if " kernel" in line and "%" in line]
    assert len(at) >= 3
    assert at[0] < next(number for number, line in enumerate(lines) if line.startswith("route"))
    assert lines[at[-1]].startswith("...")
    assert "_9000/rank49.pt " in lines[at[-1]]
    assert f"and {1000 - len(at)} open files more" in " ".join(lines)
    assert lines[-1].startswith("features")
    assert "all on: read-ahead, channel, passthrough" in lines[-1]


def test_why_the_cache_is_down_and_the_mend_are_shown() -> None:
    health = DiskHealth(rests=(1.0,))
    health.failed("noting the use of x", OSError(errno.ENOENT, "No such file or directory"))
    cache = replace(STATUS.cache, health=health.state, why=health.why)
    text = shown(300, replace(STATUS, cache=cache))
    assert "1 object, down: noting the use of x: no such file or directory; where another disk lies" in text
    assert "unmount and mount again" in text


@pytest.mark.parametrize("width", [80, 140])
def test_who_reads_an_open_file_is_shown(width: int) -> None:
    text = shown(width)
    assert "2 open files, 1 of them read by the kernel" in text
    readers = {line.split()[0]: line.split()[-1] for line in text.splitlines() if "%" in line}
    assert readers == {"/a/[red]x": "daemon", "/b": "kernel"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.23, "0.2 s"),
        (9.0, "9 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3661, "1 h 1 min"),
        (90061, "1 d 1 h"),
    ],
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
    monkeypatch.setattr(mounting, "answers", lambda _: True)
    shown = run("status", "--json")
    assert shown.exit_code == 1  # for a script that watches
    first, second = json.loads(shown.stdout)
    assert first["mountpoint"] == "/mnt/old"
    assert "is of another version of fusestripe: fusestripe upgrade /mnt/old" in first["error"]
    assert second["pid"] == STATUS.pid
    alone = run("status", "/mnt/old")
    assert (alone.exit_code, alone.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize("arguments", [(), ("--json",), ("/mnt/one",), ("/mnt/one", "--json")])
def test_a_tree_that_does_not_answer_has_no_status(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """For a probe: its daemon may say that all is well before the tree answers, or when it no longer does."""
    mount = mounting.Mount("/mnt/one", mounting.FSTYPE, "s", "0:1", ())
    waits = threading.Event()
    monkeypatch.setattr(mounting, "our_mounts", lambda: [mount])
    monkeypatch.setattr(mounting, "mounts", lambda: [mount])
    monkeypatch.setattr(mounting, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(os, "statvfs", lambda _: waits.wait())
    monkeypatch.setattr(status_command, "socket_of", lambda mount: mount.mountpoint)
    monkeypatch.setattr(status_command, "request", lambda *_: iter([msgspec.to_builtins(STATUS)]))
    shown = run("status", *arguments)
    waits.set()
    assert shown.exit_code == 1
    assert "the tree at /mnt/one does not answer: see /mnt/one.log" in shown.output


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_what_is_watched_by_a_program_comes_again_and_again(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """A plain block, or a line of JSON, each time."""
    times = iter(range(2))

    def sleep(_seconds: float) -> None:
        if next(times, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(status_command, "fetch", lambda _: STATUS)
    shown = run("status", "/mnt/new", "--watch", *arguments)
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout
    if arguments:
        assert [json.loads(line)["pid"] for line in shown.stdout.splitlines()] == [1, 1, 1]
    else:
        assert shown.stdout.count("daemon  ") == 3
