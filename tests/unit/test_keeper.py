"""What a keeper makes of its daemons, with daemons that are a few lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_KEEPER = "import fusestripe.keeper as keeper; keeper.PATIENCE = 1.0; raise SystemExit(keeper.main())"
# Begins, has a descriptor kept, and is ready. The first one says nothing any more; the next one ends.
_DAEMON = """
import os, pathlib, signal, socket, sys
lives = pathlib.Path(sys.argv[1])
keeper = socket.socket(fileno=int(os.environ["FUSESTRIPE_KEEPER_FD"]))
keeper.send(b"STANDBY=1")
names, kept, *_ = socket.recv_fds(keeper, 4096, 8)
with lives.open("a") as file:
    print(names.decode(), len(kept), file=file)
if not kept:
    socket.send_fds(keeper, [b"FDSTORE=1\\nFDNAME=device"], [os.open(os.devnull, os.O_RDONLY)])
    keeper.send(b"READY=1")
    signal.pause()
"""


def test_a_daemon_that_says_nothing_any_more_is_followed_by_another(tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    order = {"command": [sys.executable, "-c", _DAEMON, str(lives)], "ready_fd": -1}
    done = subprocess.run(
        [sys.executable, "-c", _KEEPER],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    hung, killed = done.stderr.splitlines()
    assert "the daemon has said nothing for 1 s: killed" in hung
    assert "was killed by SIGKILL; another takes the mount over" in killed
    assert lives.read_text().split("\n") == ["TAKE= 0", "TAKE=device 1", ""]
