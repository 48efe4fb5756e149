"""Fixtures of the tests of the cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fusestripe.cache.store import CacheStore
from tests.support.caches import open_store


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def store(directory: Path) -> Iterator[CacheStore]:
    store = open_store(directory)
    yield store
    store.close()
