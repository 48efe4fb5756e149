"""Where there are mounts a shell completes them, and asks no daemon for that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mounted import mounted


def completed(line: str) -> list[str]:
    """What Bash is told for ``line``."""
    asked = {"_FUSESTRIPE_COMPLETE": "bash_complete", "COMP_LINE": line, "COMP_WORDBREAKS": ":="}
    command = [sys.executable, "-m", "fusestripe"]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **asked}, timeout=20
    ).stdout.split()


@pytest.mark.parametrize("command", ["unmount", "status"])
def test_what_is_mounted_is_completed(tmp_path: Path, command: str) -> None:
    (tmp_path / "source").mkdir()
    line = f"fusestripe {command} {tmp_path}/"
    assert completed(line) == []
    with mounted((tmp_path / "source").as_uri(), tmp_path / "mnt", cache_dir=tmp_path / "cache") as mount:
        os.kill(mount.pid, signal.SIGSTOP)
        try:
            assert completed(line) == [f"plain,{tmp_path}/mnt"]
        finally:
            os.kill(mount.pid, signal.SIGCONT)
