"""The stores that the same faults happen to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.far_sides import FarSide, azure_side, google_side, s3_side, web_side
from tests.support.proxy import Proxy

_directories = itertools.count()


@pytest.fixture(params=["s3", "gs", "az", "http"])
def far_side(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FarSide:
    """A new empty place in each kind of store, and its credentials in the environment."""
    wanted = request.getfixturevalue
    if request.param == "s3":
        side = s3_side(wanted("s3_server"), wanted("s3_bucket"))
    elif request.param == "gs":
        side = google_side(wanted("google_server"), wanted("google_bucket"))
    elif request.param == "az":
        side = azure_side(wanted("azure_server"), wanted("azure_container"))
    else:
        side = web_side(wanted("web_server"), f"faults-{next(_directories)}")
    for name, value in side.environment.items():
        monkeypatch.setenv(name, value)
    return side


@pytest.fixture
def proxy(far_side: FarSide) -> Iterator[Proxy]:
    """A proxy before the store's server."""
    with Proxy(far_side.server) as made:
        yield made
