"""The start and the end of jobs on one node, as a Prolog and an Epilog of any batch system call them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fusestripe.kernel import mounting
from fusestripe.launch import stop
from fusestripe.telemetry.client import daemon_pid
from fusestripe.telemetry.rundir import socket_path
from tests.support.mounted import mounted, until


class Node:
    """Its jobs mount a directory of one file at ``mountpoint``, unless they say where."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mountpoint = directory / "mnt"
        self.mountpoint.mkdir()
        self.source = directory / "source"
        self.source.mkdir()
        (self.source / "file").write_text("content")

    def run_of(self, job: int) -> Path:
        """The job's own runtime directory."""
        run = self.directory / f"state/{job}/run"
        run.mkdir(parents=True, exist_ok=True)
        return run

    def call(self, what: str, job: int, *more: str) -> subprocess.CompletedProcess[str]:
        """`job start` or `job end` of that job."""
        command = [sys.executable, "-m", "fusestripe", "job", what, "--id", str(job)]
        return subprocess.run(
            [*command, "--mountpoint", str(self.mountpoint), *more],
            env=os.environ | {"FUSESTRIPE_RUNTIME_DIR": str(self.run_of(job))},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def start(self, job: int, *, named: bool = False) -> subprocess.CompletedProcess[str]:
        """``named``: the job says itself where it mounts."""
        comment = f"fusestripe:source=file://{self.source},cache_dir={self.directory}/cache-{job}"
        return self.call("start", job, "--comment", comment + f",mountpoint={self.mountpoint}" * named)

    def ended(self, job: int) -> None:
        """End it, which says nothing."""
        done = self.call("end", job)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    @property
    def is_served(self) -> bool:
        """Whether something is mounted there, and answers."""
        return os.path.ismount(self.mountpoint) and (self.mountpoint / "file").read_text() == "content"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    for job in (1, 2):
        node.call("end", job)
    if mounting.find_mount(str(node.mountpoint)) is not None:
        stop(str(node.mountpoint), lazy=True)


@pytest.mark.parametrize("named", [False, True], ids=["at the node's place", "at its own place"])
def test_a_job_has_its_mount_while_it_runs(node: Node, named: bool) -> None:
    assert node.start(1, named=named).returncode == 0
    assert node.is_served
    assert node.start(1, named=named).stderr == "", "a second start finds it"
    node.ended(1)
    assert not os.path.ismount(node.mountpoint)
    node.ended(1)


@pytest.mark.parametrize("named", [False, True], ids=["at the node's place", "at its own place"])
def test_the_end_of_one_that_was_refused_leaves_the_other_its_mount(node: Node, named: bool) -> None:
    assert node.start(1, named=named).returncode == 0
    refused = node.start(2, named=named)
    assert refused.returncode == 1
    assert "mounted" in refused.stderr
    node.ended(2)
    assert node.is_served
    node.ended(1)
    assert not os.path.ismount(node.mountpoint)


def test_a_mount_that_is_no_jobs_stays(node: Node) -> None:
    with mounted(f"file://{node.source}", node.mountpoint, cache_dir=node.directory / "cache"):
        node.ended(1)
        assert node.is_served


def test_what_was_noted_at_the_start_is_lost(node: Node) -> None:
    assert node.start(1).returncode == 0
    (node.run_of(1) / "job.json").unlink()
    node.ended(1)
    assert not os.path.ismount(node.mountpoint)


def test_what_was_noted_is_lost_and_all_its_processes_are_dead(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node.start(1).returncode == 0
    (node.run_of(1) / "job.json").unlink()
    monkeypatch.setenv("FUSESTRIPE_RUNTIME_DIR", str(node.run_of(1)))
    daemon = daemon_pid(socket_path(str(node.mountpoint)))
    assert daemon is not None
    keeper = psutil.Process(daemon).ppid()
    for pid in (keeper, daemon):
        os.kill(pid, signal.SIGKILL)
    until(lambda: mounting.is_dead(str(node.mountpoint)))
    node.ended(1)
    assert not os.path.ismount(node.mountpoint)
