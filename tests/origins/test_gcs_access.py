"""Google's credentials from where Google's tools look, and what is said where they fail."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from fusestripe.errors import BadAnswer, ConfigError, CredentialsRefused, NotFound, OriginUnavailable
from fusestripe.origins.base import Origin, OriginOptions
from fusestripe.origins.gcs import parse_listing
from fusestripe.origins.registry import open_origin
from tests.origins.conformance import fetch, listing, pinned
from tests.support.google_server import GoogleServer
from tests.support.proxy import Fault, Proxy
from tests.support.token_gate import TokenGate


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No Google settings at all: no variables, no login of gcloud, no metadata server, no HTTP proxy."""
    for name in list(os.environ):
        if name.startswith(("GOOGLE_", "GCE_", "STORAGE_EMULATOR")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "home"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    return monkeypatch


@pytest.fixture
def gate(google_server: GoogleServer, tmp_path: Path) -> Iterator[TokenGate]:
    with TokenGate(tmp_path / "gate", google_server.endpoint) as gate:
        yield gate


@pytest.fixture
def bucket(google_server: GoogleServer, google_bucket: str) -> str:
    """A bucket with one object in it."""
    google_server.put(google_bucket, "file", b"hello")
    return google_bucket


def works(origin: Origin) -> bool:
    origin.check()
    return fetch(origin, pinned(origin, "file")) == b"hello"


def service_account(path: Path, token_uri: str) -> str:
    """A key file as Google gives it out, for a token endpoint of the test's."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account",
        "project_id": "test",
        "private_key_id": "1",
        "private_key": key.decode(),
        "client_email": "test@example.com",
        "client_id": "1",
        "token_uri": token_uri,
    }
    path.write_text(json.dumps(account))
    return str(path)


class TestSources:
    def test_a_service_account(
        self, google: pytest.MonkeyPatch, gate: TokenGate, bucket: str, tmp_path: Path
    ) -> None:
        file = service_account(tmp_path / "key.json", f"{gate.endpoint}/google-token")
        google.setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
        assert works(open_origin(f"gs://{bucket}", OriginOptions(endpoint=gate.endpoint)))

    def test_the_metadata_server(self, google: pytest.MonkeyPatch, gate: TokenGate, bucket: str) -> None:
        google.delenv("NO_GCE_CHECK")
        here = f"127.0.0.1:{gate.port}"
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
            google.setenv(name, here)
        # It looks at most of this when it is imported, which another test may have brought about.
        module = "google.auth.compute_engine._metadata"
        google.setattr(f"{module}._NO_GCE_CHECK", False)
        google.setattr(f"{module}._GCE_METADATA_HOST", here)
        assert works(open_origin(f"gs://{bucket}", OriginOptions(endpoint=gate.endpoint)))

    def test_anonymous(self, google: pytest.MonkeyPatch, google_server: GoogleServer, bucket: str) -> None:
        options = OriginOptions(endpoint=google_server.endpoint, anonymous=True)
        assert works(open_origin(f"gs://{bucket}", options))

    def test_an_emulator_of_the_environment(
        self, google: pytest.MonkeyPatch, google_server: GoogleServer, bucket: str
    ) -> None:
        google.setenv("STORAGE_EMULATOR_HOST", google_server.endpoint.removeprefix("http://"))
        assert works(open_origin(f"gs://{bucket}"))


class TestRefusals:
    def test_none(self, google: pytest.MonkeyPatch) -> None:
        with pytest.raises(CredentialsRefused, match="GOOGLE_APPLICATION_CREDENTIALS"):
            open_origin("gs://bucket")

    @pytest.mark.parametrize("content", [None, "what is this", "{}"])
    def test_a_file_that_holds_none(
        self, google: pytest.MonkeyPatch, tmp_path: Path, content: str | None
    ) -> None:
        file = tmp_path / "key.json"
        if content is not None:
            file.write_text(content)
        google.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        with pytest.raises(ConfigError, match="GOOGLE_APPLICATION_CREDENTIALS") as caught:
            open_origin("gs://bucket")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("way", "kind"), [("refused-token", CredentialsRefused), ("broken-token", OriginUnavailable)]
    )
    def test_a_token_that_is_not_given(
        self,
        google: pytest.MonkeyPatch,
        gate: TokenGate,
        bucket: str,
        tmp_path: Path,
        way: str,
        kind: type[Exception],
    ) -> None:
        file = service_account(tmp_path / "key.json", f"{gate.endpoint}/{way}")
        google.setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
        with pytest.raises(kind) as caught:
            open_origin(f"gs://{bucket}", OriginOptions(endpoint=gate.endpoint)).check()
        assert "\n" not in str(caught.value)

    def test_without_credentials_where_they_are_asked_for(
        self, google: pytest.MonkeyPatch, gate: TokenGate, bucket: str
    ) -> None:
        origin = open_origin(f"gs://{bucket}", OriginOptions(endpoint=gate.endpoint, anonymous=True))
        with pytest.raises(CredentialsRefused, match="credentials are asked for") as caught:
            origin.check()
        assert caught.value.mend

    def test_no_such_bucket(self, google_server: GoogleServer) -> None:
        options = OriginOptions(endpoint=google_server.endpoint, anonymous=True)
        with pytest.raises(NotFound, match="no bucket 'nope-nope'"):
            open_origin("gs://nope-nope", options).check()

    @pytest.mark.parametrize(
        ("url", "word"),
        [
            ("gs://", "no bucket"),
            ("gs://key:secret@bucket", "no credentials"),
            ("gs://bucket/a//b", "can be no path"),
        ],
    )
    def test_urls(self, url: str, word: str) -> None:
        with pytest.raises(ConfigError, match=word) as caught:
            open_origin(url, OriginOptions(anonymous=True))
        assert "secret" not in str(caught.value)

    def test_a_rate_limit_that_google_says_with_403(self, google_server: GoogleServer, bucket: str) -> None:
        body = '{"error": {"code": 403, "errors": [{"reason": "rateLimitExceeded"}]}}'
        with Proxy(google_server.endpoint) as proxy:
            options = OriginOptions(endpoint=proxy.endpoint, anonymous=True)
            proxy.set_faults([Fault("status:403", body=body)])
            with pytest.raises(OriginUnavailable) as caught:
                open_origin(f"gs://{bucket}", options).check()
        assert caught.value.throttled


class TestObjects:
    def test_keys_that_cannot_be_paths_are_hidden(
        self, google_server: GoogleServer, google_bucket: str
    ) -> None:
        for key in ("fine", "a//b", "../../etc/passwd", "dir/..", "dir/x", "m/", "L" * 256, "/lead"):
            google_server.put(google_bucket, key, b"x")
        options = OriginOptions(endpoint=google_server.endpoint, anonymous=True)
        origin = open_origin(f"gs://{google_bucket}", options)
        assert set(listing(origin, "")) == {"fine", "a", "dir", "m"}
        walked = {path for page in origin.walk("") for path, _ in page}
        assert walked == {"fine", "a", "dir/x", "m"}

    def test_the_same_bytes_again_are_another_version(
        self, google_server: GoogleServer, google_bucket: str
    ) -> None:
        """An ETag of fake-gcs-server is the MD5; generations tell even these apart."""
        google_server.put(google_bucket, "file", b"hello")
        options = OriginOptions(endpoint=google_server.endpoint, anonymous=True)
        origin = open_origin(f"gs://{google_bucket}", options)
        first = pinned(origin, "file")
        google_server.put(google_bucket, "file", b"hello")
        assert pinned(origin, "file").key != first.key

    def test_what_is_stored_as_gzip_is_not_unpacked(
        self, google_server: GoogleServer, google_bucket: str
    ) -> None:
        stored = gzip.compress(b"hello" * 1000)
        google_server.put(google_bucket, "file", stored, encoding="gzip")
        options = OriginOptions(endpoint=google_server.endpoint, anonymous=True)
        origin = open_origin(f"gs://{google_bucket}", options)
        version = pinned(origin, "file")
        assert version.size == len(stored)
        assert fetch(origin, version, 3, 10) == stored[3:13]

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"<html></html>",
            b"[]",
            b'{"items": [{"name": "a"}]}',
            b'{"items": [{"name": "a", "size": "-1", "generation": "1", "updated": "2026-11-29T15:31:01Z"}]}',
            b'{"items": [{"name": "a", "size": "1", "generation": "x", "updated": "2026-11-29T15:31:01Z"}]}',
            b'{"items": [{"name": "a", "size": "1", "generation": "1", "updated": "yesterday"}]}',
        ],
    )
    def test_what_is_no_listing_is_a_bad_answer(self, body: bytes) -> None:
        with pytest.raises(BadAnswer) as caught:
            parse_listing(body)
        assert caught.value.mend
