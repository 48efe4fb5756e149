"""Hadoop's jars from Maven Central, brought once and kept in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["class_path"]

HERE = Path(__file__).parent
POM = HERE / "pom.xml"
SHELL = HERE / "HdfsShell.java"


def class_path() -> str:
    """The class path of Hadoop's servers and of ``HdfsShell``. Needs mvn and javac the first time."""
    digest = hashlib.sha256(POM.read_bytes() + SHELL.read_bytes()).hexdigest()[:16]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fusestripe-dev"
    base.mkdir(parents=True, exist_ok=True)
    kept = base / f"hadoop-{digest}"
    with open(base / "hadoop.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.is_dir():
            _bring(base, kept)
    return f"{kept}/classes:{kept}/jars/*"


def _bring(base: Path, kept: Path) -> None:
    for older in base.glob("hadoop-*"):
        shutil.rmtree(older)
    with tempfile.TemporaryDirectory(dir=base) as directory:
        fresh = Path(directory) / "hadoop"
        copy = ["dependency:copy-dependencies", f"-DoutputDirectory={fresh}/jars"]
        _run(["mvn", "-q", "-B", "-f", str(POM), *copy])
        _run(["javac", "-nowarn", "-cp", f"{fresh}/jars/*", "-d", f"{fresh}/classes", str(SHELL)])
        fresh.rename(kept)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
