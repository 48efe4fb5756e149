"""Hadoop's libhdfs, built from its C sources, which the crate hdfs-sys carries as Apache released them.

Hadoop's own binary of it is only in its distribution, which no package registry has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.hadoop.jars import Jars, find_java

__all__ = ["libhdfs_environment"]

CRATE = "0.3.1"
RELEASE = "hdfs_3_3"
_MANIFEST = """
[package]
name = "sources"
version = "0.0.0"
edition = "2021"
[lib]
path = "lib.rs"
[dependencies]
hdfs-sys = "={version}"
"""


def libhdfs_environment(found: Jars, conf: Path) -> dict[str, str]:
    """What a site exports for the JVM client, with the library built where it is not kept yet.

    Needs cargo, to fetch the sources, and cc.
    """
    home = Path(find_java()).resolve().parents[1]
    library = found.directory / "libhdfs.so"
    if not library.exists():
        _build(home, library)
    return {
        "HADOOP_CONF_DIR": str(conf),
        "ARROW_LIBHDFS_DIR": str(found.directory),
        "JAVA_HOME": str(home),
        "CLASSPATH": f"{conf}:{found.class_path}",
        "LIBHDFS_OPTS": "-Xmx256m -XX:+UseSerialGC",
    }


def _build(home: Path, library: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "Cargo.toml").write_text(_MANIFEST.format(version=CRATE))
        (Path(scratch) / "lib.rs").touch()
        _run(["cargo", "vendor", "-q", "vendored"], scratch)
        sources = Path(scratch) / "vendored" / "hdfs-sys" / "libhdfs"
        release = sources / RELEASE
        include = [home / "include", home / "include" / "linux", sources, release, release / "include"]
        include += [release / "os", release / "os" / "posix"]
        files = [str(path) for path in release.rglob("*.c") if "windows" not in path.parts]
        server = home / "lib" / "server"
        fresh = f"{scratch}/libhdfs.so"
        _run(
            [
                *("cc", "-shared", "-fPIC", "-O2", "-w", "-D_GNU_SOURCE", "-o", fresh),
                *(f"-I{path}" for path in include),
                *files,
                *(f"-L{server}", "-ljvm", f"-Wl,-rpath,{server}", "-ldl", "-lpthread"),
            ],
            scratch,
        )
        shutil.copy(fresh, f"{library}.{os.getpid()}")
        Path(f"{library}.{os.getpid()}").replace(library)


def _run(command: list[str], directory: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=directory)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
