"""What Hadoop's JVM client needs of a machine, told before pyarrow fails on it."""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from fusestripe.errors import ConfigError
from fusestripe.packages import install_command

__all__ = ["prepare_jvm"]

_JVM_PLACES = ("lib/server", "jre/lib/amd64/server", "lib/amd64/server", "jre/lib/aarch64/server")
_JVM_PARENTS = ("/usr/lib/jvm", "/usr/java", "/usr/lib64/jvm")


def prepare_jvm(environ: MutableMapping[str, str]) -> None:
    """Raise ConfigError with the mend where libhdfs, the JVM or the class path cannot be found.

    ``environ`` gets what keeps the JVM from taking SIGTERM, which ends the daemon in order (java(1), -Xrs).
    """
    if _libhdfs(environ) is None:
        raise ConfigError(
            "hdfs+libhdfs:// needs libhdfs.so, which comes with Hadoop",
            mend="set HADOOP_HOME or ARROW_LIBHDFS_DIR, or take hdfs://, which needs no JVM",
        )
    if not any(_jvms(environ)):
        raise ConfigError(
            "hdfs+libhdfs:// needs a JVM", mend=f"as root: {install_command('java')}; or set JAVA_HOME"
        )
    if not environ.get("CLASSPATH"):
        raise ConfigError(
            "hdfs+libhdfs:// needs Hadoop's jars in CLASSPATH",
            mend='export CLASSPATH="$(hadoop classpath --glob)"',
        )
    options = environ.get("LIBHDFS_OPTS", "")
    if "-Xrs" not in options.split():
        environ["LIBHDFS_OPTS"] = f"{options} -Xrs".strip()


def _libhdfs(environ: MutableMapping[str, str]) -> str | None:
    """Where pyarrow would find it (arrow/filesystem/hdfs: ARROW_LIBHDFS_DIR, HADOOP_HOME, the linker)."""
    places = [environ.get("ARROW_LIBHDFS_DIR")]
    if home := environ.get("HADOOP_HOME"):
        places.append(os.path.join(home, "lib", "native"))
    for place in places:
        if place and os.path.isfile(os.path.join(place, "libhdfs.so")):
            return place
    return ctypes.util.find_library("hdfs")


def _jvms(environ: MutableMapping[str, str]) -> Iterator[Path]:
    homes = [Path(environ["JAVA_HOME"])] if environ.get("JAVA_HOME") else []
    for parent in _JVM_PARENTS:
        if os.path.isdir(parent):
            homes.extend(Path(parent).iterdir())
    for home in homes:
        for place in _JVM_PLACES:
            found = home / place / "libjvm.so"
            if found.is_file():
                yield found
