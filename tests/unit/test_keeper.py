"""What a keeper makes of its daemons, with daemons that are a few lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_PATIENCE = 1.0
_KEEPER = (
    f"import fusestripe.keeper as keeper; keeper.PATIENCE = {_PATIENCE}; raise SystemExit(keeper.main())"
)
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
while True:
    keeper.send(b"WATCHDOG=1")
    time.sleep(0.1)
"""


@contextmanager
def kept(does: str, lives: Path) -> Iterator[subprocess.Popen[str]]:
    """A keeper of a daemon that ``does`` this once it is ready."""
    order = {"command": [sys.executable, "-c", _DAEMON + does, str(lives)], "ready_fd": -1}
    with subprocess.Popen(
        [sys.executable, "-c", _KEEPER], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as keeper:
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


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_daemon_that_says_nothing_any_more_is_followed_by_another(tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    with kept(_SILENT, lives) as keeper:
        _, said = keeper.communicate(timeout=30)
    assert keeper.returncode == 0, said
    hung, killed = said.splitlines()
    assert "the daemon has said nothing for 1 s: killed" in hung
    assert "was killed by SIGKILL; another takes the mount over" in killed
    assert [line.rsplit(" ", 1)[0] for line in lines_of(lives)] == ["TAKE= 0", "TAKE=device 1"]


def test_one_that_was_stopped_together_with_its_keeper_is_left_alone(tmp_path: Path) -> None:
    """As a container's pause and a machine's sleep do; the keeper may well be the first to go on."""
    lives = tmp_path / "lives"
    with kept(_LIVELY, lives) as keeper:
        until(lambda: lines_of(lives))
        daemon = int(lines_of(lives)[0].split()[-1])
        for pid in (daemon, keeper.pid):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(2.5 * _PATIENCE)
        os.kill(keeper.pid, signal.SIGCONT)
        time.sleep(_PATIENCE / 4)
        os.kill(daemon, signal.SIGCONT)
        time.sleep(_PATIENCE)
        os.kill(daemon, signal.SIGTERM)
        _, said = keeper.communicate(timeout=30)
    assert (keeper.returncode, said) == (0, "")
    assert len(lines_of(lives)) == 1
