"""`fusestripe hand-over` and `mount --device` as a person calls them; in containers: test_kubernetes.py."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fusestripe.errors import MountError
from fusestripe.handover import take
from fusestripe.kernel import mounting
from fusestripe.kernel.attach import MountOptions
from tests.support.mounted import until

FUSESTRIPE = (sys.executable, "-m", "fusestripe")


def said(*arguments: str, prefix: tuple[str, ...] = ()) -> tuple[int, str]:
    """The exit status of `fusestripe ARGUMENTS`, and its only line."""
    done = subprocess.run(
        [*prefix, *FUSESTRIPE, *arguments], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.stdout, done.stderr.count("\n")) == ("", 1), done.stderr
    return done.returncode, done.stderr


@pytest.fixture
def mountpoint(tmp_path: Path) -> Path:
    path = tmp_path / "mnt"
    path.mkdir()
    return path


def test_it_takes_the_right_to_mount(tmp_path: Path, mountpoint: Path) -> None:
    without = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", "--")
    code, line = said("hand-over", str(mountpoint), str(tmp_path / "socket"), "--user", "1", prefix=without)
    assert code == 1
    assert line.startswith("fusestripe: this process may not mount: CAP_SYS_ADMIN is missing: run it as root")
    assert os.listdir(tmp_path) == ["mnt"]


def test_who_takes_it_stays(tmp_path: Path, mountpoint: Path) -> None:
    path = str(tmp_path / "socket")
    code, line = said("mount", tmp_path.as_uri(), str(mountpoint), "--device", path)
    assert (code, "--device takes --foreground" in line) == (2, True)
    code, line = said("mount", tmp_path.as_uri(), str(mountpoint), "--device", path, "-f")
    assert code == 1
    assert f"nobody hands a mount over at {path}: no such file or directory: start" in line
    assert mounting.find_mount(str(mountpoint)) is None


def test_it_mounts_for_its_taker_and_unmounts_at_its_end(tmp_path: Path, mountpoint: Path) -> None:
    """Here nobody answers the tree: it is made and taken away without."""
    path, user = str(tmp_path / "socket"), os.getuid()
    command = [*FUSESTRIPE, "hand-over", str(mountpoint), path, "--user", str(user), "--group", "7"]
    with subprocess.Popen(command) as giver:
        try:
            until(lambda: os.path.exists(path))
            assert mounting.find_mount(str(mountpoint)) is None  # not before somebody wants it
            taken = take(path, MountOptions("s3://bucket", allow_other=True))
            mount = mounting.find_mount(str(mountpoint))
            assert mount is not None
            assert (mount.source, mount.fstype, mount.owner) == ("s3://bucket", mounting.FSTYPE, user)
            assert {"group_id=7", "allow_other", "default_permissions"} <= set(mount.options)
            assert [os.readlink(f"/proc/self/fd/{number}") for number in taken.descriptors.values()] == [
                "/dev/fuse"
            ]
        finally:
            giver.send_signal(signal.SIGTERM)
            assert giver.wait(20) == 0
    taken.await_end()
    taken.close()
    taken.connection.close()
    assert mounting.find_mount(str(mountpoint)) is None
    assert os.listdir(tmp_path) == ["mnt"]


@pytest.mark.parametrize("killed", [1, 2], ids=["front", "front-and-keeper"])
def test_whoever_serves_holds_the_mount(tmp_path: Path, mountpoint: Path, killed: int) -> None:
    """Who took it is killed, the daemon goes on: two of them on one device would mix answers."""
    path, source, log = str(tmp_path / "socket"), tmp_path / "source", tmp_path / "log"
    source.mkdir()
    (source / "file").write_bytes(b"weights")
    command = [*FUSESTRIPE, "hand-over", str(mountpoint), path, "--user", str(os.getuid())]
    with subprocess.Popen(command) as giver:
        try:
            until(lambda: os.path.exists(path))
            command = [*FUSESTRIPE, "mount", source.as_uri(), str(mountpoint), "--device", path, "-f"]
            command += ["--cache-dir", str(tmp_path / "cache")]
            with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr) as front:
                until(lambda: b"which another process has mounted" in log.read_bytes())
                until(lambda: len(psutil.Process(front.pid).children(recursive=True)) == 2)
                serving = psutil.Process(front.pid).children(recursive=True)
                for process in [psutil.Process(front.pid), *serving][:killed]:
                    process.kill()
            with pytest.raises(MountError, match="another process serves this mount: end it first"):
                take(path, MountOptions(source.as_uri()))
            assert (mountpoint / "file").read_bytes() == b"weights"
        finally:
            giver.send_signal(signal.SIGTERM)
            assert giver.wait(20) == 0
    assert len(serving) == 2
    _, left = psutil.wait_procs(serving, timeout=20)
    assert left == []
    assert mounting.find_mount(str(mountpoint)) is None


def test_the_journal_gets_its_levels(tmp_path: Path, mountpoint: Path) -> None:
    path, log = str(tmp_path / "socket"), tmp_path / "log"
    command = [*FUSESTRIPE, "hand-over", str(mountpoint), path, "--user", str(os.getuid())]
    with log.open("wb") as stderr:
        found = os.fstat(stderr.fileno())
        journal = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        with subprocess.Popen(command, stderr=stderr, env=os.environ | journal) as giver:
            try:
                until(lambda: os.path.exists(path))
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
                    asking.connect(path)
                    asking.send(b"nothing")
                    assert b"no question" in asking.recv(1000)
            finally:
                giver.send_signal(signal.SIGTERM)
                assert giver.wait(20) == 0
    assert log.read_text().startswith("<4>fusestripe.handover: nothing was asked for: ")
