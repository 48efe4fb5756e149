"""nginx, with its own configuration and all its files in one directory."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.support.seaweed import free_ports
from tests.support.server_process import ServerProcess

__all__ = ["PASSWORD", "TOKEN", "WebServer", "nginx_program"]

TOKEN = "token-of-a-test"
USER, PASSWORD = "reader", "password-of-a-test"  # open nothing but the server that this module starts

_CONFIGURATION = """
{user}
worker_processes 1;
pid nginx.pid;
daemon off;
error_log error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    default_type application/octet-stream;
    client_body_temp_path tmp/body;
    proxy_temp_path tmp/proxy;
    fastcgi_temp_path tmp/fastcgi;
    uwsgi_temp_path tmp/uwsgi;
    scgi_temp_path tmp/scgi;
    server {{
        listen 127.0.0.1:{port};
        location /html/ {{ alias root/; autoindex on; }}
        location /json/ {{ alias root/; autoindex on; autoindex_format json; }}
        location /unlisted/ {{ alias root/; }}
        location /dated/ {{ alias root/; autoindex on; etag off; }}
        location /weak/ {{
            alias root/; autoindex on; etag off;
            add_header ETag 'W/"weak"';
        }}
        location /whole/ {{ alias root/; autoindex on; max_ranges 0; }}
        location /nameless/ {{
            alias root/; autoindex on; etag off;
            add_header Last-Modified "";
        }}
        location /bearer/ {{
            if ($http_authorization != "Bearer {token}") {{ return 401; }}
            alias root/; autoindex on;
        }}
        location /basic/ {{
            auth_basic "a test"; auth_basic_user_file passwords;
            alias root/; autoindex on;
        }}
        location /closed/ {{
            location ~ ^/closed/(?<below>.*[^/])$ {{ return 403; }}
            alias root/; autoindex on;
        }}
        location /hub/ {{
            location ~ ^/hub/(?<below>.*[^/])$ {{
                if ($http_authorization != "Bearer {token}") {{ return 401; }}
                return 302 http://127.0.0.1:{elsewhere}/signed/$below?signature=secret;
            }}
            if ($http_authorization != "Bearer {token}") {{ return 401; }}
            alias root/; autoindex on;
        }}
        location /loop/ {{ return 302 /loop/; }}
        location /around/ {{ return 302 /around/again; }}
    }}
    server {{
        listen 127.0.0.1:{elsewhere};
        location /signed/ {{
            if ($http_authorization) {{ return 400; }}
            if ($arg_signature != secret) {{ return 403; }}
            alias root/;
        }}
    }}
}}
"""


class WebServer:
    """nginx that gives out ``root`` in many ways, each a path; see the configuration above.

    "/html/", "/json/": with an index of that form; "/unlisted/": with none; "/dated/": without ETag;
    "/weak/": with a weak one; "/nameless/": with neither ETag nor Last-Modified; "/whole/": without ranges;
    "/bearer/", "/basic/": with credentials; "/closed/": names that it does not give; "/hub/": files by way of
    another server.
    """

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        (directory / "tmp").mkdir(parents=True)
        self.root.mkdir()
        self.port, self._elsewhere = free_ports(2)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        (directory / "passwords").write_text(f"{USER}:{{PLAIN}}{PASSWORD}\n")
        (directory / "nginx.conf").write_text(
            _CONFIGURATION.format(
                user="user root;" if os.geteuid() == 0 else "",
                port=self.port,
                elsewhere=self._elsewhere,
                token=TOKEN,
            )
        )
        arguments = ["-p", str(directory), "-c", "nginx.conf", "-e", "error.log"]
        self._process = ServerProcess("nginx", [nginx_program(), *arguments], directory)
        self._process.await_ready(self._answers)

    def __enter__(self) -> WebServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def put(self, path: str, data: bytes) -> None:
        """Create or replace a file, in a later second: nginx tells versions apart by second and size."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.root.with_name("fresh")
        fresh.write_bytes(data)
        if target.exists():
            second = int(target.stat().st_mtime) + 1
            os.utime(fresh, (second, second))
        fresh.replace(target)

    def put_many(self, items: Mapping[str, bytes]) -> None:
        """Many small files."""
        for path, data in items.items():
            self.put(path, data)

    def close(self) -> None:
        """Stop the server."""
        self._process.close()

    def _answers(self) -> bool:
        socket.create_connection(("127.0.0.1", self.port), 1).close()
        return True


def nginx_program() -> str:
    """Path of nginx, which Debian puts where users do not look."""
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin")
    if found is None:
        raise FileNotFoundError("nginx is not installed: tests/run.sh brings it")
    return found
