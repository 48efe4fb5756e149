"""nginx before an emulator: gives out tokens as a cloud does, and lets in only who shows one."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from tests.support.seaweed import free_ports
from tests.support.server_process import ServerProcess
from tests.support.web_server import nginx_program

__all__ = ["TokenGate"]

# Google: https://developers.google.com/identity/protocols/oauth2/service-account (the token endpoint) and
# https://cloud.google.com/compute/docs/access/authenticate-workloads (the metadata server). Azure:
# https://learn.microsoft.com/azure/app-service/overview-managed-identity (IDENTITY_ENDPOINT).
_CONFIGURATION = """
{user}
worker_processes 1;
pid nginx.pid;
daemon off;
error_log error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    default_type application/json;
    client_body_temp_path tmp/body;
    proxy_temp_path tmp/proxy;
    fastcgi_temp_path tmp/fastcgi;
    uwsgi_temp_path tmp/uwsgi;
    scgi_temp_path tmp/scgi;
    server {{
        listen 127.0.0.1:{port};
        location = /google-token {{
            return 200 '{{"access_token": "{token}", "expires_in": 3600, "token_type": "Bearer"}}';
        }}
        location = /refused-token {{ return 400 '{{"error": "invalid_grant"}}'; }}
        location = /broken-token {{ return 503; }}
        location = /azure-token {{
            return 200 '{{"access_token": "{token}", "expires_on": "{expires}", "token_type": "Bearer",
                "resource": "https://storage.azure.com/"}}';
        }}
        location /computeMetadata/ {{
            add_header Metadata-Flavor Google;
            location ~ /token$ {{
                add_header Metadata-Flavor Google;
                return 200 '{{"access_token": "{token}", "expires_in": 3600, "token_type": "Bearer"}}';
            }}
            return 200 '{{"email": "test@example.com", "scopes": ["a"], "aliases": ["default"]}}';
        }}
        location = / {{ add_header Metadata-Flavor Google; return 200 "computeMetadata/"; }}
        location / {{
            if ($http_authorization != "Bearer {token}") {{ return 401; }}
            proxy_set_header Authorization "";
            proxy_set_header Host {upstream};
            proxy_pass http://{upstream};
        }}
    }}
}}
"""


class TokenGate:
    """``endpoint`` is the server at ``upstream`` for those who have its token. Use as a context manager."""

    token = "token-that-the-gate-gives-out"

    def __init__(self, directory: Path, upstream: str) -> None:
        (self.port,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._directory, self._upstream = directory, upstream
        (directory / "tmp").mkdir(parents=True)
        self._configure()
        self._begin()

    def __enter__(self) -> TokenGate:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.close()

    def renew(self, token: str) -> None:
        """From now on this is the token; nobody gets in with the one before."""
        self.token = token
        self._configure()
        # Quick, unlike a reload: no worker goes on with the old one (nginx(8), signals).
        self._process.close()
        self._begin()

    def _configure(self) -> None:
        (self._directory / "nginx.conf").write_text(
            _CONFIGURATION.format(
                user="user root;" if os.geteuid() == 0 else "",
                port=self.port,
                token=self.token,
                expires=int(time.time()) + 3600,
                upstream=urlsplit(self._upstream).netloc,
            )
        )

    def _begin(self) -> None:
        arguments = ["-p", str(self._directory), "-c", "nginx.conf", "-e", "error.log"]
        self._process = ServerProcess("nginx", [nginx_program(), *arguments], self._directory)
        self._process.await_ready(self._answers)

    def _answers(self) -> bool:
        socket.create_connection(("127.0.0.1", self.port), 1).close()
        return True
