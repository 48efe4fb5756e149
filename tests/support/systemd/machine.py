"""A real systemd with a journal, in namespaces of its own: units are started, killed and stopped there."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.support.mounted import until

__all__ = ["ROOT", "UNIT", "Machine", "booted"]

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "mount/systemd/fusestripe@.service"
_BOOT = Path(__file__).with_name("boot.sh")


class Machine:
    """``pid`` is the first process's. Its files are this machine's, but for those that boot.sh covers."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run ``command`` there, to its end."""
        done = subprocess.run(
            ["nsenter", "-t", str(self.pid), "-m", "-p", "-n", "-u", "-i", "-C", "--", *command],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd="/",
        )
        if check:
            assert done.returncode == 0, f"{shlex.join(command)}: {done.stdout}{done.stderr}"
        return done

    def properties(self, unit: str) -> dict[str, str]:
        """What `systemctl show` says of ``unit``."""
        lines = self.run("systemctl", "show", unit).stdout.splitlines()
        return dict(line.split("=", 1) for line in lines)

    def journal(self, *terms: str) -> list[dict[str, Any]]:
        """The entries that ``terms`` match, all their fields."""
        self.run("journalctl", "--sync")
        lines = self.run("journalctl", "--output=json", "--all", *terms).stdout.splitlines()
        return [json.loads(line) for line in lines]

    def processes(self, word: str) -> list[psutil.Process]:
        """Those with ``word`` on their command line, as the mountpoint is on a daemon's."""
        return [
            process
            for process in psutil.Process(self.pid).children(recursive=True)
            if word in _command_line(process)
        ]


@contextmanager
def booted(directory: Path) -> Iterator[Machine]:
    """A machine that is up. ``directory`` holds what lies over its /etc (etc/) and /sbin (sbin/), more units
    (units/).

    Its fusestripe is that of this repository. Takes root.
    """
    (directory / "etc/fusestripe").mkdir(parents=True, exist_ok=True)
    (directory / "units").mkdir(exist_ok=True)
    (directory / "units" / UNIT.name).write_bytes(UNIT.read_bytes())
    (directory / "local/bin").mkdir(parents=True)
    for name, module in (("fusestripe", "fusestripe"), ("mount.fusestripe", "fusestripe.mount_helper")):
        command = directory / "local/bin" / name
        words = shlex.join(["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", module])
        command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        command.chmod(0o755)
    log = directory / "boot.log"
    with log.open("wb") as output:
        boot = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", str(_BOOT), str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        until(lambda: boot.poll() is not None or _first(boot.pid) is not None)
        first = _first(boot.pid)
        assert first is not None, log.read_text()
        machine = Machine(first)

        def is_up() -> bool:
            assert boot.poll() is None, log.read_text()
            return machine.run("systemctl", "is-active", "ready.target", check=False).stdout == "active\n"

        until(is_up, timeout=60)
        yield machine
    finally:
        first = _first(boot.pid)
        if first is not None:
            os.kill(first, signal.SIGKILL)  # takes all that runs and is mounted there along
        boot.wait(30)


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def _first(boot: int) -> int | None:
    """The systemd that ``boot`` has become the parent of."""
    try:
        children = psutil.Process(boot).children(recursive=True)
        return next((child.pid for child in children if child.name() == "systemd"), None)
    except psutil.NoSuchProcess:
        return None
