"""Hadoop's jars from Maven Central, brought once and kept in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec

__all__ = ["NAMENODE", "Jars", "find_java", "jars"]

HERE = Path(__file__).parent
POM = HERE / "pom.xml"
SHELL = HERE / "HdfsShell.java"
NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"


class Jars(msgspec.Struct, frozen=True):
    """``directory`` holds the jars of Hadoop and ``HdfsShell``, and an archive of their classes.

    The archive (java(1), class data sharing) halves the time that a process takes to start.
    """

    directory: Path

    @property
    def class_path(self) -> str:
        """All jars; a configuration comes behind them, since the archive was made for them in front."""
        return ":".join(sorted(map(str, self.directory.glob("*.jar"))))

    @property
    def archive(self) -> Path:
        """The archive of classes."""
        return self.directory / "classes.jsa"


def find_java() -> str:
    """Path of java."""
    java = shutil.which("java")
    if java is None:
        raise FileNotFoundError("java is not installed: apt-get install default-jdk-headless maven")
    return java


def jars() -> Jars:
    """The jars, brought where they are not kept yet: needs mvn, javac and jar then."""
    version = subprocess.run([find_java(), "-version"], capture_output=True, check=True).stderr
    digest = hashlib.sha256(POM.read_bytes() + SHELL.read_bytes() + version).hexdigest()[:16]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fusestripe-dev"
    base.mkdir(parents=True, exist_ok=True)
    kept = base / f"hadoop-{digest}"
    with open(base / "hadoop.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (kept / "complete").exists():
            for older in base.glob("hadoop-*"):
                shutil.rmtree(older)
            _bring(kept)
            (kept / "complete").touch()
    return Jars(kept)


def _bring(kept: Path) -> None:
    """Made in its place: an archive of classes is valid for the paths it was made with."""
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={kept}"]
    _run(["mvn", "-q", "-B", "-f", str(POM), *copy])
    with tempfile.TemporaryDirectory() as scratch:
        _run(["javac", "-nowarn", "-cp", f"{kept}/*", "-d", f"{scratch}/classes", str(SHELL)])
        _run(["jar", "cf", f"{kept}/shell.jar", "-C", f"{scratch}/classes", "."])
        found = Jars(kept)
        dump = [f"-XX:ArchiveClassesAtExit={found.archive}", "-XX:+UseSerialGC", "-cp", found.class_path]
        settings = ["-D", "fs.defaultFS=hdfs://127.0.0.1:1", "-D", f"hadoop.tmp.dir={scratch}"]
        _run([find_java(), *dump, NAMENODE, *settings, "-format", "-force", "-nonInteractive"])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
