"""The credentials of a test: its own, and nothing of the machine's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.azure_server import AzureServer
from tests.support.proxy import Proxy
from tests.support.seaweed import SeaweedServer
from tests.support.web_server import WebServer


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No AWS settings at all: no variables, no ~/.aws, no instance role, no HTTP proxy."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


@pytest.fixture
def aws(no_aws: pytest.MonkeyPatch, s3_server: SeaweedServer) -> pytest.MonkeyPatch:
    """The environment in which s3:// is the test server."""
    for name, value in s3_server.environment.items():
        no_aws.setenv(name, value)
    return no_aws


@pytest.fixture
def no_azure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No Azure settings at all: no variables, no login of `az`, no HTTP proxy."""
    for name in list(os.environ):
        if name.startswith("AZURE_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return monkeypatch


@pytest.fixture
def azure(no_azure: pytest.MonkeyPatch, azure_server: AzureServer) -> pytest.MonkeyPatch:
    """The environment with the test server's account and key."""
    for name, value in azure_server.environment.items():
        no_azure.setenv(name, value)
    return no_azure


@pytest.fixture
def no_netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No credentials for web servers: no ~/.netrc, no token, no HTTP proxy."""
    for name in list(os.environ):
        if name in ("NETRC", "FUSESTRIPE_HTTP_TOKEN") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return monkeypatch


@pytest.fixture
def web_proxy(web_server: WebServer) -> Iterator[Proxy]:
    """A proxy before nginx."""
    with Proxy(web_server.endpoint) as proxy:
        yield proxy
