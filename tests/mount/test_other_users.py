"""Others on the same machine: what they can see of a mount, of its cache, and of its secrets."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusestripe import prefetch
from tests.support.mounted import Mounted, mounted, until
from tests.support.mounted_store import MountedStore, content
from tests.support.other_user import OTHER_UID, as_other, read_as_other
from tests.support.seaweed import SECRET_KEY

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")


def source_of(tmp_path: Path) -> Path:
    """Files for all, for root, and for the other user."""
    source = tmp_path / "source"
    source.mkdir()
    for name, mode, uid in (("all", 0o644, 0), ("root", 0o600, 0), ("other", 0o400, OTHER_UID)):
        (source / name).write_bytes(name.encode())
        os.chown(source / name, uid, uid)
        os.chmod(source / name, mode)
    os.chmod(tmp_path, 0o755)
    return source


def names(directory: str) -> Callable[[], bytes]:
    """Lists it."""
    return lambda: "/".join(os.listdir(directory)).encode()


def make_whole(mount: Mounted, source: Path) -> None:
    """Every file is in the cache and checked: the next open is the kernel's own, where that is on."""
    prefetch(mount.path)
    until(lambda: mount.status()["open_files"] == 0)
    for name in os.listdir(source):
        assert (mount.path / name).read_bytes() == name.encode()


def test_a_mount_is_closed_to_others(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    with mounted(source.as_uri(), tmp_path / "mnt", cache_dir=tmp_path / "cache") as mount:
        make_whole(mount, source)
        assert as_other(tmp_path, names("mnt")) == errno.EACCES
        assert as_other(tmp_path, lambda: os.read(os.open("mnt/all", os.O_RDONLY), 10)) == errno.EACCES


@pytest.mark.parametrize("settings", [{}, {"passthrough": "no"}, {"channel": "no"}], ids=str)
def test_with_allow_other_modes_are_kept_however_a_file_is_read(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    source = source_of(tmp_path)
    with mounted(
        source.as_uri(), tmp_path / "mnt", cache_dir=tmp_path / "cache", allow_other=True, **settings
    ) as mount:
        for _ in range(2):
            assert read_as_other(mount.path / "all") == b"all"
            assert read_as_other(mount.path / "root") == errno.EACCES
            assert read_as_other(mount.path / "other") == b"other"
            make_whole(mount, source)


def test_the_cache_is_closed_to_others(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    before = os.umask(0)
    try:
        with mounted(
            source.as_uri(), tmp_path / "mnt", cache_dir=tmp_path / "cache", allow_other=True
        ) as mount:
            make_whole(mount, source)
            found = [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]
            assert any(path.suffix == ".data" for path in found)
            for path in found:
                wanted = 0o700 if path.is_dir() else 0o600
                assert stat.S_IMODE(path.stat().st_mode) == wanted, path
            assert as_other(tmp_path, names("cache")) == errno.EACCES
            # Nor can what is open for the kernel be reached by way of the daemon's descriptors.
            assert as_other(Path("/proc") / str(mount.pid), names("fd")) in (
                errno.EACCES,
                errno.EPERM,
            )
    finally:
        os.umask(before)


def test_secrets_are_in_no_log_no_status_and_no_list_of_processes(store: MountedStore) -> None:
    """Not where everything is logged, and a request fails."""
    store.put("file", content(1000))
    with store.mount(log_level="debug", timeout=1, complaints=True) as mount:
        assert (mount.path / "file").read_bytes() == content(1000)
        store.delete("file")
        with pytest.raises(FileNotFoundError):
            (mount.path / "missing").read_bytes()
        shown = subprocess.run(
            ["ps", "-ww", "-o", "args=", "-p", str(mount.pid)], capture_output=True, text=True, check=True
        )
        said = mount.log() + str(mount.status()) + shown.stdout
        mounts = Path("/proc/self/mountinfo").read_text()
        for secret in (SECRET_KEY, "Signature=", "Credential="):
            assert secret not in said
            assert secret not in mounts
