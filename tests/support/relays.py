"""What stands between a client and a server: TLS in front of a plain server, and an HTTP proxy."""

from __future__ import annotations

import base64
import http.client
import select
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

__all__ = ["ForwardProxy", "Relay", "running"]

_OF_A_CONNECTION = {"connection", "proxy-authorization", "proxy-connection"}
"""Headers that concern one connection and are not passed on (RFC 9110, 7.6.1)."""


class _Serving(socketserver.ThreadingTCPServer):
    """A server at a free port of ``host``; each connection has a thread."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, handler: type[socketserver.BaseRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.connections = 0
        super().__init__((host, 0), handler)

    @property
    def netloc(self) -> str:
        """Host and port, as a URL has them."""
        host, port = self.socket.getsockname()[:2]
        return f"[{host}]:{port}" if self.address_family == socket.AF_INET6 else f"{host}:{port}"

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """A client that goes away, or wants no TLS with us, is no error of the test."""
        self.connections += 1
        with suppress(OSError):
            super().process_request_thread(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing on stderr."""


class Relay(_Serving):
    """Carries bytes between its clients, with TLS where ``tls`` is given, and the server at ``netloc``."""

    def __init__(self, netloc: str, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.target, self.tls = netloc, tls
        super().__init__(host, _RelayHandler)


class _RelayHandler(socketserver.BaseRequestHandler):
    server: Relay

    def handle(self) -> None:
        tls = self.server.tls
        with (
            tls.wrap_socket(self.request, server_side=True) if tls else self.request as client,
            _connected(self.server.target) as server,
        ):
            _carry(client, server)


class ForwardProxy(_Serving):
    """An HTTP proxy: GET of whole URLs, and CONNECT. ``requests`` are the request lines it was sent.

    It writes Accept-Encoding anew, as caches do, so that a signature over that would not hold.

    ``credentials``, "user:password", are asked for where they are given.
    """

    def __init__(self, *, credentials: str = "") -> None:
        self.requests: list[str] = []
        self.expected = f"Basic {base64.b64encode(credentials.encode()).decode()}" if credentials else None
        super().__init__("127.0.0.1", _ProxyHandler)


class _ProxyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ForwardProxy

    def do_GET(self) -> None:
        if not self._is_allowed():
            return
        target = urlsplit(self.path)
        upstream = http.client.HTTPConnection(target.netloc)
        try:
            headers = {k: v for k, v in self.headers.items() if k.lower() not in _OF_A_CONNECTION}
            headers["Accept-Encoding"] = "identity;q=1, *;q=0"
            upstream.request("GET", target._replace(scheme="", netloc="").geturl(), headers=headers)
            answer = upstream.getresponse()
            body = answer.read()
        finally:
            upstream.close()
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_CONNECT(self) -> None:
        if not self._is_allowed():
            return
        with _connected(self.path) as upstream:
            self.send_response_only(200)
            self.end_headers()
            _carry(self.connection, upstream)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (its name in the base)
        """Nothing on stderr."""

    def _is_allowed(self) -> bool:
        self.server.requests.append(self.requestline)
        if self.server.expected is None or self.headers["Proxy-Authorization"] == self.server.expected:
            return True
        self.send_response_only(407)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return False


@contextmanager
def running(server: Relay | ForwardProxy) -> Iterator[None]:
    """``server`` serves for the time of the block."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def _connected(netloc: str) -> socket.socket:
    host, _, port = netloc.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)))


def _carry(one: socket.socket, other: socket.socket) -> None:
    """Bytes both ways until either side ends. One thread: an SSL object is not for two at once."""
    opposite = {one: other, other: one}
    while True:
        for source in select.select(list(opposite), [], [])[0]:
            while True:
                data = source.recv(64 * 1024)
                if not data:
                    return
                opposite[source].sendall(data)
                if not (isinstance(source, ssl.SSLSocket) and source.pending()):
                    break
