"""HDFS through a real mount."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.hadoop.cluster import MIB
from tests.support.hadoop.store import HdfsDirectory
from tests.support.mounted import Mounted, mounted
from tests.support.mounted_store import content

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
        assert as_daemon(mount.path / "mine") == b"mine"
        assert as_daemon(mount.path / "theirs") == errno.EACCES
        assert as_daemon(mount.path / "all") == b"all"


def as_daemon(path: Path) -> bytes | int:
    """What uid 1 reads, or the errno; from its directory on, since pytest keeps the way there closed."""
    directory = os.open(path.parent, os.O_PATH)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 255
        try:
            os.setgroups([])
            os.setgid(1)
            os.setuid(1)
            os.write(writer, os.read(os.open(path.name, os.O_RDONLY, dir_fd=directory), 100))
            status = 0
        except OSError as error:
            status = error.errno or 255
        finally:
            os._exit(status)
    os.close(writer)
    os.close(directory)
    with open(reader, "rb") as pipe:
        data = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return data if status == 0 else status


@pytest.mark.torch
def test_torch_loads_the_same_bits(hdfs_directory: HdfsDirectory, tmp_path: Path) -> None:
    import torch

    state = {"weights": torch.randn(1024, 1024), "step": torch.tensor(7)}
    local = tmp_path / "model.pt"
    torch.save(state, local)
    hdfs_directory.put("model.pt", local.read_bytes())
    with hdfs_mounted(hdfs_directory, tmp_path, stripe_size="256KiB") as mount:
        loaded = torch.load(mount.path / "model.pt")
        assert loaded.keys() == state.keys()
        assert all(torch.equal(loaded[name], state[name]) for name in state)
