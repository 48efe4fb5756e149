"""Fixtures of the tests on real mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.mounted_store import MountedStore
from tests.support.proxy import Proxy
from tests.support.seaweed import SeaweedServer


@pytest.fixture
def store(s3_server: SeaweedServer, s3_bucket: str, s3_proxy: Proxy, tmp_path: Path) -> MountedStore:
    """A new bucket that can be mounted, with every request counted."""
    return MountedStore(s3_server, s3_bucket, s3_proxy, tmp_path)
