"""Where AWS machines get their credentials from: a container's endpoint and an instance's metadata service.

https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["CredentialServer", "credential_server"]


class CredentialServer(ThreadingHTTPServer):
    """Hands out ``access_key`` and ``secret_key`` for ``lifetime`` seconds. All may be set anew."""

    daemon_threads = True

    def __init__(self, access_key: str, secret_key: str, lifetime: float = 3600) -> None:
        self.access_key, self.secret_key, self.lifetime = access_key, secret_key, lifetime
        self.handed_out = 0
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def document(self) -> dict[str, str]:
        self.handed_out += 1
        expires = datetime.now(timezone.utc) + timedelta(seconds=self.lifetime)
        return {
            "Code": "Success",
            "AccessKeyId": self.access_key,
            "SecretAccessKey": self.secret_key,
            "Token": "",
            "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }


class _Handler(BaseHTTPRequestHandler):
    server: CredentialServer

    def do_PUT(self) -> None:
        """The session token of IMDSv2."""
        self._answer("session")

    def do_GET(self) -> None:
        if self.path.endswith("/security-credentials/"):
            self._answer("a-role")
        else:
            self._answer(json.dumps(self.server.document()))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (its name in the base)
        """Nothing on stderr."""

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def credential_server(access_key: str, secret_key: str, lifetime: float = 3600) -> Iterator[CredentialServer]:
    """A running server, gone after the block."""
    with CredentialServer(access_key, secret_key, lifetime) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
