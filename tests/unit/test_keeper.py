"""What a keeper makes of its daemons, with daemons that are a few lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.mounted import until

_KEEPER = """
import sys, fusestripe.keeper as keeper
keeper.PATIENCE = float(sys.argv[1])
sys.exit(keeper.main())
"""
# Begins, has a descriptor kept, and is ready; what it does then follows. The next one ends.
_DAEMON = """
import os, pathlib, signal, socket, sys, time
lives = pathlib.Path(sys.argv[1])
keeper = socket.socket(fileno=int(os.environ["FUSESTRIPE_KEEPER_FD"]))
keeper.send(b"STANDBY=1")
names, kept, *_ = socket.recv_fds(keeper, 4096, 8)
with lives.open("a") as file:
    print(names.decode(), len(kept), os.getpid(), file=file)
if kept:
    sys.exit()
socket.send_fds(keeper, [b"FDSTORE=1\\nFDNAME=device"], [os.open(os.devnull, os.O_RDONLY)])
keeper.send(b"READY=1")
"""
_SILENT = "signal.pause()"
_LIVELY = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
with lives.open("a") as file:
    print("watched", file=file)
while True:
    keeper.send(b"WATCHDOG=1")
    time.sleep(0.1)
"""


@contextmanager
def kept(does: str, lives: Path, patience: float) -> Iterator[subprocess.Popen[str]]:
    """A keeper of a daemon that ``does`` this once it is ready."""
    keep = [sys.executable, "-c", _KEEPER, str(patience)]
    order = {"command": [sys.executable, "-c", _DAEMON + does, str(lives)], "ready_fd": -1}
    with subprocess.Popen(keep, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as keeper:
        try:
            assert keeper.stdin is not None
            keeper.stdin.write(json.dumps(order))
            keeper.stdin.close()
            keeper.stdin = None  # communicate() would flush it
            yield keeper
        finally:
            keeper.kill()


def lines_of(lives: Path) -> list[str]:
    return lives.read_text().splitlines() if lives.exists() else []


def state_of(pid: int) -> str:
    """S: it waits. T: it is stopped (proc_pid_stat(5))."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_daemon_that_says_nothing_any_more_is_followed_by_another(tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    with kept(_SILENT, lives, patience=1) as keeper:
        _, said = keeper.communicate(timeout=30)
    assert keeper.returncode == 0, said
    hung, killed = said.splitlines()
    assert "the daemon has said nothing for 1 s: killed" in hung
    assert "was killed by SIGKILL; another takes the mount over" in killed
    assert [line.rsplit(" ", 1)[0] for line in lines_of(lives)] == ["TAKE= 0", "TAKE=device 1"]


def test_one_that_was_stopped_together_with_its_keeper_is_left_alone(tmp_path: Path) -> None:
    """As a container's pause and a machine's sleep do; the keeper may well be the first to go on."""
    lives, patience = tmp_path / "lives", 4.0
    with kept(_LIVELY, lives, patience) as keeper:
        until(lambda: len(lines_of(lives)) == 2)
        daemon = int(lines_of(lives)[0].split()[-1])
        os.kill(daemon, signal.SIGSTOP)
        until(lambda: (state_of(daemon), state_of(keeper.pid)) == ("T", "S"))  # all that it said was heard
        os.kill(keeper.pid, signal.SIGSTOP)
        time.sleep(1.5 * patience)
        os.kill(keeper.pid, signal.SIGCONT)
        time.sleep(patience / 3)  # longer than between two looks of the keeper's
        os.kill(daemon, signal.SIGCONT)
        os.kill(daemon, signal.SIGTERM)
        _, said = keeper.communicate(timeout=30)
    assert (keeper.returncode, said) == (0, "")
    assert len(lines_of(lives)) == 2
