"""The tools people use, on a real mount: what only reads works, what writes is refused as read-only."""

from __future__ import annotations

import errno
import filecmp
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.mounted import Mounted
from tests.support.mounted_store import KIB, MountedStore, content

FILES = {
    "empty": b"",
    "one": b"1",
    "dir/small": content(1000, 1),
    "dir/exact": content(128 * KIB, 2),
    "dir/below/large": content(700 * KIB + 1, 3),
    "dir/name with blank": b"blank\n",
}


@pytest.fixture
def mount(store: MountedStore) -> Iterator[Mounted]:
    for key, data in FILES.items():
        store.put(key, data)
    with store.mount() as mount:
        yield mount


def run(*command: str | Path) -> str:
    """The output of a command that must succeed in silence."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def contents(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


WRITES: dict[str, Callable[[Path], object]] = {
    "open for writing": lambda top: (top / "one").open("wb"),
    "open for update": lambda top: (top / "one").open("r+b"),
    "append": lambda top: (top / "one").open("ab"),
    "create": lambda top: (top / "new").open("xb"),
    "truncate": lambda top: os.truncate(top / "one", 0),
    "delete": lambda top: os.unlink(top / "one"),
    "rename": lambda top: os.rename(top / "one", top / "two"),
    "rename over": lambda top: os.rename(top / "one", top / "empty"),
    "mkdir": lambda top: os.mkdir(top / "new"),
    "rmdir": lambda top: os.rmdir(top / "dir"),
    "chmod": lambda top: os.chmod(top / "one", 0o600),
    "chown": lambda top: os.chown(top / "one", 1, 1),
    "touch": lambda top: os.utime(top / "one"),
    "symlink": lambda top: os.symlink("one", top / "link"),
    "link": lambda top: os.link(top / "one", top / "link"),
    "mkfifo": lambda top: os.mkfifo(top / "fifo"),
    "setxattr": lambda top: os.setxattr(top / "one", "user.name", b"value"),
}


def test_writing_is_refused_as_read_only(mount: Mounted) -> None:
    for what, write in WRITES.items():
        with pytest.raises(OSError) as caught:  # noqa: PT011
            write(mount.path)
        assert caught.value.errno == errno.EROFS, what
    assert contents(mount.path) == FILES


def test_cat_and_md5sum(mount: Mounted) -> None:
    assert run("cat", mount.path / "empty") == ""
    for key, data in FILES.items():
        assert run("md5sum", mount.path / key).split()[0] == hashlib.md5(data).hexdigest()


def test_head_tail_and_dd(mount: Mounted) -> None:
    large = FILES["dir/below/large"]
    path = mount.path / "dir/below/large"
    for command, data in (
        (f"head -c 100 {path}", large[:100]),
        (f"tail -c 100 {path}", large[-100:]),
        (f"dd if={path} bs=1000 skip=500 count=3 status=none", large[500_000:503_000]),
    ):
        assert subprocess.run(command.split(), capture_output=True, check=True).stdout == data


def test_stat_find_and_du(mount: Mounted, store: MountedStore) -> None:
    head = store.server.client.head_object(Bucket=store.bucket, Key="one")
    mtime = int(head["LastModified"].timestamp())
    assert run("stat", "-c", "%s %Y %U", mount.path / "one").split()[:2] == ["1", str(mtime)]
    found = run("find", mount.path, "-type", "f", "-printf", "%P\t%s\n").splitlines()
    assert {line.split("\t")[0]: int(line.split("\t")[1]) for line in found} == {
        key: len(data) for key, data in FILES.items()
    }
    assert run("find", mount.path, "-type", "f", "-size", "+600k").splitlines() == [
        str(mount.path / "dir/below/large")
    ]
    assert run("find", mount.path, "-newermt", f"@{mtime + 3600}", "-type", "f") == ""
    assert int(run("du", "-sb", mount.path / "dir/below/large").split()[0]) == len(FILES["dir/below/large"])
    assert int(run("du", "-s", "-B512", mount.path / "dir/below/large").split()[0]) == 1401


def test_df_shows_room(mount: Mounted) -> None:
    found = os.statvfs(mount.path)
    assert found.f_bsize == found.f_frsize == 4096
    assert found.f_bavail > 0
    assert found.f_namemax == 255
    assert found.f_flag & os.ST_RDONLY
    filesystem, kind, *_, target = run("df", "-T", mount.path).splitlines()[1].split()
    assert kind == "fuse.fusestripe"
    assert filesystem.startswith("s3://")
    assert target == str(mount.path)


def test_copies_are_the_same(mount: Mounted, tmp_path: Path) -> None:
    run("cp", "-r", mount.path, tmp_path / "cp")
    assert contents(tmp_path / "cp") == FILES
    run("cp", "-a", mount.path, tmp_path / "archive")
    assert contents(tmp_path / "archive") == FILES
    assert os.stat(tmp_path / "archive/one").st_mtime_ns == os.stat(mount.path / "one").st_mtime_ns
    shutil.copytree(mount.path, tmp_path / "python")
    assert filecmp.cmpfiles(mount.path, tmp_path / "python", list(FILES), shallow=False) == (
        list(FILES),
        [],
        [],
    )


def test_tar(mount: Mounted, tmp_path: Path) -> None:
    run("tar", "-C", mount.path, "-cf", tmp_path / "all.tar", ".")
    (tmp_path / "out").mkdir()
    run("tar", "-C", tmp_path / "out", "-xf", tmp_path / "all.tar")
    assert contents(tmp_path / "out") == FILES
    run("tar", "-C", mount.path, "-df", tmp_path / "all.tar")


def test_rsync_copies_once(mount: Mounted, tmp_path: Path) -> None:
    command = ("rsync", "-a", "--itemize-changes", f"{mount.path}/", f"{tmp_path}/copy/")
    assert len([line for line in run(*command).splitlines() if line.startswith(">f")]) == len(FILES)
    assert contents(tmp_path / "copy") == FILES
    assert run(*command) == ""
    assert run(*command, "--checksum") == ""


def test_rsync_of_another_mount_of_the_same_copies_nothing(store: MountedStore, tmp_path: Path) -> None:
    for key, data in FILES.items():
        store.put(key, data)
    for number in range(2):
        with store.mount() as mount:
            changed = run("rsync", "-a", "--itemize-changes", f"{mount.path}/", f"{tmp_path}/copy/")
            files = [line for line in changed.splitlines() if line.startswith(">f")]
            assert len(files) == (0 if number else len(FILES))
