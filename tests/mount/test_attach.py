"""Where a process with the right to mount mounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fusestripe.errors import MountError
from fusestripe.kernel import mounting
from fusestripe.kernel.attach import MountOptions, attach


@pytest.mark.parametrize("name", ["ckpt", "ckpt/deep"])
def test_a_link_put_on_the_way_leads_nowhere(name: str, tmp_path: Path) -> None:
    """Who may write in the volume swaps a directory after the path was resolved."""
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "volume" / name
    path.parent.mkdir(parents=True)
    elsewhere.joinpath("deep").mkdir(parents=True)
    if name == "ckpt":
        path.symlink_to(elsewhere)
    else:
        path.parent.rmdir()
        path.parent.symlink_to(elsewhere)
    try:
        with pytest.raises(MountError, match=f"{path} cannot be mounted: (not a directory|too many levels)"):
            attach(str(path), MountOptions("small"))
        assert [mount for mount in mounting.mounts() if mount.mountpoint.startswith(str(tmp_path))] == []
    finally:
        for below in (elsewhere / "deep", elsewhere):
            if mounting.find_mount(str(below)) is not None:
                mounting.detach(str(below), lazy=True)


def test_without_one_it_is_mounted_there(tmp_path: Path) -> None:
    device = attach(str(tmp_path), MountOptions("small"))
    try:
        found = mounting.find_mount(str(tmp_path))
        assert found is not None
        assert (found.source, found.fstype) == ("small", mounting.FSTYPE)
    finally:
        mounting.detach(str(tmp_path), lazy=True)
        os.close(device)
