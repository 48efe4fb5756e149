"""Google Cloud Storage as an origin, on fake-gcs-server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from fusestripe.origins.base import Origin, OriginOptions
from fusestripe.origins.registry import open_origin
from tests.origins.conformance import TEN_THOUSAND, KeyConformance, Store
from tests.support.google_server import GoogleServer

PREFIX = "some/prefix with blank"


class Objects:
    """See conformance.Store: the objects of a bucket below PREFIX."""

    def __init__(self, server: GoogleServer, bucket: str) -> None:
        self._server, self._bucket = server, bucket

    def put(self, path: str, data: bytes) -> None:
        self._server.put(self._bucket, f"{PREFIX}/{path}", data)

    def put_many(self, items: Mapping[str, bytes]) -> None:
        self._server.put_many(self._bucket, {f"{PREFIX}/{path}": data for path, data in items.items()})

    def make_directory(self, path: str) -> None:
        self._server.put(self._bucket, f"{PREFIX}/{path}/", b"")

    def delete(self, path: str) -> None:
        self._server.delete(self._bucket, f"{PREFIX}/{path}")


class TestConformance(KeyConformance):
    @pytest.fixture
    def store(self, google_server: GoogleServer, google_bucket: str) -> Store:
        return Objects(google_server, google_bucket)

    @pytest.fixture
    def origin(self, store: Store, google_server: GoogleServer, google_bucket: str) -> Origin:
        options = OriginOptions(endpoint=google_server.endpoint, anonymous=True)
        return open_origin(f"gs://{google_bucket}/{PREFIX}", options)

    def test_ten_thousand_files_come_in_pages(self, tmp_path: Path) -> None:  # type: ignore[override]
        for path, data in TEN_THOUSAND.items():
            file = tmp_path / "data" / "bucket" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        with GoogleServer(tmp_path / "server", preload=tmp_path / "data") as server:
            options = OriginOptions(endpoint=server.endpoint, anonymous=True)
            self.pages_of_ten_thousand(open_origin("gs://bucket", options))
