"""Fixtures of the tests of several nodes, and of a real Slurm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machine import ADA, BOB, HOMES
from tests.support.seaweed import ACCESS_KEY, REGION, SECRET_KEY, SeaweedServer
from tests.support.slurm import SlurmCluster


@pytest.fixture(scope="session")
def running_slurm(
    s3_server: SeaweedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlurmCluster]:
    """One Slurm for the whole run. ada has credentials of the S3 server in her home, bob has wrong ones."""
    with SlurmCluster(tmp_path_factory.mktemp("slurm") / "srv") as cluster:
        for user, secret in ((ADA, SECRET_KEY), (BOB, "wrong")):
            write_profile(cluster.directory / HOMES[user] / ".aws", user, secret, s3_server.endpoint)
        yield cluster


def write_profile(directory: Path, user: int, secret: str, endpoint: str) -> None:
    """As the AWS tools have it, for ``user`` alone."""
    directory.mkdir(mode=0o700)
    (directory / "config").write_text(f"[default]\nregion = {REGION}\nendpoint_url = {endpoint}\n")
    keys = f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {secret}\n"
    (directory / "credentials").write_text(keys)
    for path in (directory, *directory.iterdir()):
        os.chown(path, user, user)
        path.chmod(0o700 if path.is_dir() else 0o600)


@pytest.fixture
def slurm(running_slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """The same as it was before the first test, and looked through afterwards: every job leaves nothing."""
    yield running_slurm
    running_slurm.restore()
    assert running_slurm.leavings() == []
