"""HDFS through a real mount."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.origins.conformance import ODD_NAMES, TEN_THOUSAND
from tests.support.hadoop.cluster import MIB
from tests.support.hadoop.jars import jars
from tests.support.hadoop.libhdfs import libhdfs_environment
from tests.support.hadoop.store import HdfsDirectory
from tests.support.mounted import Mounted, mounted, until
from tests.support.mounted_store import content
from tests.support.other_user import read_as_other

SIZE = 48 * MIB + 12_345
CONTENT = content(SIZE, 1)
NAME = "run/model #1 100%.pt"


@contextmanager
def hdfs_mounted(store: HdfsDirectory, tmp_path: Path, **settings: object) -> Iterator[Mounted]:
    environment = {**store.cluster.environment, "HADOOP_USER_NAME": "root"}
    with mounted(
        store.url,
        tmp_path / "mnt",
        cache_dir=tmp_path / "cache",
        environment=environment,
        **settings,  # type: ignore[arg-type]
    ) as mount:
        yield mount


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("stripe", ["256KiB", "8MiB"], ids=["in blocks", "over blocks"])
def test_the_bytes_of_a_large_file_cold_and_warm(
    hdfs_directory: HdfsDirectory, tmp_path: Path, stripe: str
) -> None:
    hdfs_directory.put(NAME, CONTENT)
    with hdfs_mounted(hdfs_directory, tmp_path, stripe_size=stripe) as mount:
        path = mount.path / NAME
        assert md5(path) == hashlib.md5(CONTENT).hexdigest()
        assert mount.status()["origin"]["errors"] == 0
    with hdfs_mounted(hdfs_directory, tmp_path, stripe_size=stripe) as mount:
        assert md5(path) == hashlib.md5(CONTENT).hexdigest()
        assert mount.status()["origin"]["requests"] == 0


def test_replaced_while_open(hdfs_directory: HdfsDirectory, tmp_path: Path) -> None:
    hdfs_directory.put("file", CONTENT)
    new = content(SIZE, 2)
    with hdfs_mounted(hdfs_directory, tmp_path, stripe_size="256KiB", complaints=True) as mount:
        path = mount.path / "file"
        descriptor = os.open(path, os.O_RDONLY)
        try:
            assert os.pread(descriptor, 4096, MIB) == CONTENT[MIB : MIB + 4096]
            hdfs_directory.put("file", new)
            with pytest.raises(OSError, match=re.escape(os.strerror(errno.ESTALE))) as caught:
                os.pread(descriptor, 4096, 40 * MIB)
            assert caught.value.errno == errno.ESTALE
        finally:
            os.close(descriptor)
        assert path.read_bytes() == new
        assert all("/file" in line for line in mount.complaints())


def test_an_append_while_open(hdfs_directory: HdfsDirectory, tmp_path: Path) -> None:
    """The handle has the file as it was or fails; the next open has all of it."""
    hdfs_directory.put("file", CONTENT)
    path = hdfs_directory.path("file")
    with hdfs_mounted(hdfs_directory, tmp_path, stripe_size="256KiB", complaints=True) as mount:
        with open(mount.path / "file", "rb", buffering=0) as file:
            assert os.pread(file.fileno(), 4096, 0) == CONTENT[:4096]
            hdfs_directory.shell("begin-append", path)
            hdfs_directory.shell("write", path, "", b"more")
            hdfs_directory.shell("end", path)
            with pytest.raises(OSError, match=re.escape(os.strerror(errno.ESTALE))):
                os.pread(file.fileno(), 4096, 40 * MIB)
        assert (mount.path / "file").read_bytes() == CONTENT + b"more"


def test_deleted_while_open(hdfs_directory: HdfsDirectory, tmp_path: Path) -> None:
    hdfs_directory.put("file", CONTENT)
    with hdfs_mounted(hdfs_directory, tmp_path, stripe_size="256KiB", complaints=True) as mount:
        with open(mount.path / "file", "rb", buffering=0) as file:
            assert os.pread(file.fileno(), 4096, 0) == CONTENT[:4096]
            hdfs_directory.delete("file")
            with pytest.raises(OSError, match=re.escape(os.strerror(errno.ESTALE))):
                os.pread(file.fileno(), 4096, 40 * MIB)
        assert not (mount.path / "file").exists()


def test_owners_and_modes_are_shown_and_kept(hdfs_directory: HdfsDirectory, tmp_path: Path) -> None:
    """With allow_other the kernel asks who reads: here the user daemon, uid 1."""
    for name, owner, mode in (
        ("mine", "daemon:bin", "400"),
        ("theirs", "bin:bin", "640"),
        ("all", "bin", "444"),
    ):
        hdfs_directory.put(name, name.encode())
        hdfs_directory.shell("dfs", "-chown", owner, hdfs_directory.path(name))
        hdfs_directory.shell("dfs", "-chmod", mode, hdfs_directory.path(name))
    hdfs_directory.shell("dfs", "-chmod", "755", hdfs_directory.root)
    os.chmod(tmp_path, 0o755)
    with hdfs_mounted(hdfs_directory, tmp_path, allow_other=True) as mount:
        found = os.stat(mount.path / "mine")
        assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (1, 2, 0o400)
        assert read_as_other(mount.path / "mine") == b"mine"
        assert read_as_other(mount.path / "theirs") == errno.EACCES
        assert read_as_other(mount.path / "all") == b"all"


def test_a_snapshot_is_there_by_its_path(hdfs_directory: HdfsDirectory, tmp_path: Path) -> None:
    """HDFS does not list ".snapshot", and the mount does not either."""
    hdfs_directory.put("run/file", CONTENT)
    hdfs_directory.shell("dfsadmin", "-allowSnapshot", hdfs_directory.path("run"))
    hdfs_directory.shell("dfs", "-createSnapshot", hdfs_directory.path("run"), "before")
    hdfs_directory.put("run/file", b"another")
    try:
        with hdfs_mounted(hdfs_directory, tmp_path) as mount:
            assert os.listdir(mount.path / "run") == ["file"]
            assert os.listdir(mount.path / "run/.snapshot") == ["before"]
            assert md5(mount.path / "run/.snapshot/before/file") == hashlib.md5(CONTENT).hexdigest()
            assert (mount.path / "run/file").read_bytes() == b"another"
    finally:
        hdfs_directory.shell("dfs", "-deleteSnapshot", hdfs_directory.path("run"), "before")


def sizes(directory: Path) -> dict[str, int]:
    """What its listing tells."""
    return {found.name: found.stat().st_size for found in os.scandir(directory)}


def test_ten_thousand_files(hdfs_ten_thousand: HdfsDirectory, tmp_path: Path) -> None:
    """All at their first listing."""
    with hdfs_mounted(hdfs_ten_thousand, tmp_path) as mount:
        wanted = {path.removeprefix("many/"): len(data) for path, data in TEN_THOUSAND.items()}
        assert sizes(mount.path / "many") == wanted


def test_odd_names(hdfs_directory: HdfsDirectory, tmp_path: Path) -> None:
    """Each is listed, and is what reads its file."""
    # HDFS has no name with a colon (DFSUtilClient.isValidName).
    odd = {name: name.encode() for name in ODD_NAMES if ":" not in name}
    hdfs_directory.put_many({f"odd/{name}": data for name, data in odd.items()})
    with hdfs_mounted(hdfs_directory, tmp_path) as mount:
        assert sizes(mount.path / "odd") == {name: len(data) for name, data in odd.items()}
        for name, data in odd.items():
            assert (mount.path / "odd" / name).read_bytes() == data


def test_viewfs(hdfs_directory: HdfsDirectory, tmp_path: Path) -> None:
    """A tree that a mount table of the configuration puts together."""
    for name in ("one", "two"):
        hdfs_directory.put(f"{name}/file", name.encode())
    links = {f"fs.viewfs.mounttable.table.link./{n}": f"{hdfs_directory.url}/{n}" for n in ("one", "two")}
    conf = hdfs_directory.cluster.client_configuration("viewfs-mount", core=links)
    config = tmp_path / "config.toml"
    config.write_text(
        "\n".join(f'[[route]]\npath = "/{n}"\nsource = "viewfs://table/{n}"' for n in ("one", "two"))
    )
    environment = {"HADOOP_CONF_DIR": str(conf), "HADOOP_USER_NAME": "root"}
    with mounted(config, tmp_path / "mnt", cache_dir=tmp_path / "cache", environment=environment) as mount:
        for name in ("one", "two"):
            assert os.listdir(mount.path / name) == ["file"]
            assert (mount.path / name / "file").read_bytes() == name.encode()
            assert not (mount.path / name / "other").exists()


@pytest.fixture
def jvm(hdfs_directory: HdfsDirectory) -> Mapping[str, str]:
    """What a site exports for Hadoop's own client."""
    return libhdfs_environment(jars(), hdfs_directory.cluster.conf)


def test_through_the_jvm(hdfs_directory: HdfsDirectory, jvm: Mapping[str, str], tmp_path: Path) -> None:
    """`client = "libhdfs"` on the route: the same bytes, cold and warm; a signal ends the daemon in order."""
    hdfs_directory.put(NAME, CONTENT)
    config = tmp_path / "config.toml"
    config.write_text(f'[[route]]\npath = "/"\nsource = "{hdfs_directory.url}"\nclient = "libhdfs"\n')
    for asked in (True, False):
        with mounted(
            config,
            tmp_path / "mnt",
            cache_dir=tmp_path / "cache",
            environment=jvm,
            complaints=True,
            stripe_size="1MiB",
        ) as mount:
            assert md5(mount.path / NAME) == hashlib.md5(CONTENT).hexdigest()
            assert bool(mount.status()["origin"]["requests"]) == asked
            os.kill(mount.pid, signal.SIGTERM)
            until(lambda: not os.path.ismount(tmp_path / "mnt"))
            # What Hadoop itself logs goes there too.
            assert [line for line in mount.complaints() if "org.apache.hadoop." not in line] == []


@pytest.mark.parametrize(
    ("variable", "value", "said", "mend"),
    [
        ("ARROW_LIBHDFS_DIR", "/nowhere", "libhdfs.so", "HADOOP_HOME"),
        ("CLASSPATH", "", "CLASSPATH", "hadoop classpath --glob"),
    ],
)
def test_what_the_jvm_client_lacks_is_said_by_mount_and_doctor(
    hdfs_directory: HdfsDirectory,
    jvm: Mapping[str, str],
    tmp_path: Path,
    variable: str,
    value: str,
    said: str,
    mend: str,
) -> None:
    source = hdfs_directory.url.replace("hdfs://", "hdfs+libhdfs://")
    config = tmp_path / "config.toml"
    config.write_text(f'[[route]]\npath = "/ckpt"\nsource = "{source}"\n')
    environment = {**os.environ, **jvm, "HADOOP_HOME": "", variable: value}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fusestripe.cli", *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)

    (tmp_path / "mnt").mkdir()
    refused = run("mount", str(config), str(tmp_path / "mnt"), "--cache-dir", str(tmp_path / "cache"))
    (line,) = refused.stderr.splitlines()
    assert refused.returncode != 0
    assert said in line
    assert mend in line
    assert not os.path.ismount(tmp_path / "mnt")
    looked = run("doctor", "--config", str(config), "--cache-dir", str(tmp_path / "cache"), "--json")
    (found,) = (each for each in json.loads(looked.stdout) if each["what"] == "route /ckpt")
    assert (looked.returncode, found["level"]) == (1, "fail")
    assert said in found["text"]
    assert mend in found["mend"]


@pytest.mark.torch
def test_torch_loads_the_same_bits(hdfs_directory: HdfsDirectory, tmp_path: Path) -> None:
    import torch

    state = {"weights": torch.randn(1024, 1024), "step": torch.tensor([7])}
    local = tmp_path / "model.pt"
    torch.save(state, local)
    hdfs_directory.put("model.pt", local.read_bytes())
    for _ in ("cold", "warm"):
        with hdfs_mounted(hdfs_directory, tmp_path, stripe_size="256KiB") as mount:
            for mmap in (False, True):
                loaded = torch.load(mount.path / "model.pt", weights_only=True, mmap=mmap)
                assert loaded.keys() == state.keys()
                for name, tensor in state.items():
                    assert loaded[name].view(torch.uint8).equal(tensor.view(torch.uint8)), name
                del loaded
