"""Keep-alive connections to one web server; its answers are received straight into the caller's memory.

urllib3 makes the connections (names, TLS, proxies) and http.client reads what comes: its ``readinto`` has the
kernel copy into the caller's buffer, where urllib3's responses make a bytes object of every piece first.
"""

from __future__ import annotations

import email.errors
import http.client
import io
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import urllib3.exceptions
from urllib3.connection import HTTPConnection

from fusestripe.errors import BadAnswer, OriginUnavailable
from fusestripe.origins.base import Progress
from fusestripe.origins.http_endpoint import HttpEndpoint, endpoint_of

__all__ = ["Answer", "HttpConnections"]

CONNECT_SECONDS = 5.0
"""At most for each address of a host; the caller's timeout where that is shorter."""
IDLE_SECONDS = 30.0
"""A connection unused for longer is not used again: servers and firewalls forget it, some without a word."""
IDLE_CONNECTIONS = 64
"""Kept at most. More run at once, but 256 for each of several stores would use up the descriptors."""
FIRST_PIECE = 16 * 1024
PIECE = 256 * 1024
"""Bytes between two calls of ``progress``: few at first, since a reader waits only for its own bytes.

The kernel asks for 16 KiB where one byte is read. More than the latter save nothing that shows, and would be
a silence to who watches a slow connection.
"""
LEAST = 64 * 1024
"""Bytes of a body that have to come in the time in which not one may stay away."""

_TROUBLE = (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError)
_GARBLED = (email.errors.MissingHeaderBodySeparatorDefect, email.errors.FirstHeaderLineIsContinuationDefect)
"""After these the parser takes no more headers, and what the body's length is may be among them."""
_HUNG_UP = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""How a connection fails that the server has closed (RemoteDisconnected is a ConnectionError)."""


class Answer:
    """A server's answer, whose body is still to come; for the block of ``HttpConnections.request`` alone.

    ``headers`` has names in lower case; one that came more than once has its values joined by ", ".
    """

    def __init__(self, response: _Response, endpoint: HttpEndpoint) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = _joined(response.headers)
        self.whole = response.length == 0
        """Whether all of the body was read, so that the connection can carry another request."""
        self._response = response
        self._endpoint = endpoint

    def read(self, limit: int) -> bytes:
        """The body, decoded from chunks but from no Content-Encoding. Raises OriginUnavailable.

        BadAnswer where it has more than ``limit`` bytes.
        """
        body = self.read_some(limit + 1)
        if len(body) > limit:
            raise BadAnswer(f"{self._endpoint.shown}: an answer of more than {limit} bytes")
        return body

    def read_some(self, limit: int) -> bytes:
        """The body, or the first ``limit`` bytes of a longer one. Raises OriginUnavailable."""
        body = bytearray()
        try:
            while len(body) < limit:
                self._response.allow(LEAST)
                piece = self._response.read(min(LEAST, limit - len(body)))
                if not piece:
                    break
                body += piece
        except _TROUBLE as error:
            raise _unavailable(error, self._endpoint) from error
        if len(body) < limit and self._response.length:
            raise _error(_BROKE, self._endpoint)
        self.whole = self._response.isclosed() and not self._response.length
        return bytes(body)

    def fill(self, into: memoryview, progress: Progress) -> None:
        """Receive ``into`` from the body, and tell how many bytes are there as they come.

        Raises OriginUnavailable where the connection breaks, falls silent or has fewer bytes.
        """
        done = 0
        while done < len(into):
            piece = min(PIECE, max(FIRST_PIECE, done), len(into) - done)
            if not 0 < done < LEAST:  # the first pieces have one patience together
                self._response.allow(piece)
            done += self._receive(into[done : done + piece])
            progress(done)
        self.whole = self._response.isclosed()

    def _receive(self, into: memoryview) -> int:
        try:
            count = self._response.readinto(into)
        except _TROUBLE as error:
            raise _unavailable(error, self._endpoint) from error
        if not count:
            raise _error(_BROKE, self._endpoint)
        return count


class HttpConnections:
    """The connections to the server of ``url`` (http or https; what follows the host is not looked at).

    They go through the proxy that the environment names (HTTP_PROXY, HTTPS_PROXY, NO_PROXY), and believe the
    certificates of the system, or those in the file ``ca_bundle``. Blocking; safe to use from many threads,
    each of which has a connection of its own for as long as it reads an answer.

    Raises ConfigError where the URL, ``ca_bundle`` or the proxy's URL cannot be used. Nothing connects before
    the first request.
    """

    def __init__(self, url: str, *, ca_bundle: str | None = None) -> None:
        self._endpoint = endpoint_of(url, ca_bundle)
        self._idle = _Idle()
        weakref.finalize(self, self._idle.close)

    @contextmanager
    def request(
        self, method: str, target: str, headers: Mapping[str, str], *, timeout: float
    ) -> Iterator[Answer]:
        """The answer to ``method`` (GET, HEAD: it may be sent twice) of ``target``, a path with its query.

        ``timeout``: seconds for connecting, for the head, and without a byte in the body, after which it has
        failed; so it has where less than LEAST of the body comes in that time. Redirects are not
        followed. Raises OriginUnavailable where no answer comes; a connection that the server has closed
        meanwhile is replaced in silence.
        """
        connection, response = self._exchange(method, target, headers, timeout)
        answer = Answer(response, self._endpoint)
        try:
            if answer.status == 407:
                raise _error(_PROXY_REFUSES, self._endpoint)
            yield answer
        finally:
            response.close()
            if answer.whole and not connection.is_closed:
                self._idle.put(connection)
            else:
                connection.close()  # what is left of the body must not meet the next request

    def close(self) -> None:
        """Close the idle connections, and those in use once their answers are read."""
        self._idle.close()

    def _exchange(
        self, method: str, target: str, headers: Mapping[str, str], timeout: float
    ) -> tuple[HTTPConnection, _Response]:
        target = self._endpoint.target(target)
        headers = {**self._endpoint.headers, **headers}
        try:
            reused = self._idle.take()
            if reused is not None:
                try:
                    return reused, _send(reused, method, target, headers, timeout)
                except _HUNG_UP:
                    pass
                except TimeoutError:
                    self._idle.clear()  # they may all lead to where nobody listens any more
                    raise
            fresh = self._endpoint.connect(min(CONNECT_SECONDS, timeout))
            return fresh, _send(fresh, method, target, headers, timeout)
        except _TROUBLE as error:
            raise _unavailable(error, self._endpoint) from error


class _Response(http.client.HTTPResponse):
    """An answer whose bytes may not trickle. ``patience``: seconds for its head, or without a byte."""

    def __init__(self, sock: socket.socket, *arguments: Any, patience: float, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        self._patience = patience
        self._bytes = _Hurried(self.fp.detach(), sock, patience)
        self.fp = io.BufferedReader(self._bytes)
        self.allow(1)

    def begin(self) -> None:
        super().begin()
        if self._bytes.ended:  # http.client takes the end of the stream for that of the head
            raise ConnectionResetError

    def allow(self, count: int) -> None:
        """``count`` bytes are wanted next: as long as so many may take."""
        self._bytes.until = time.monotonic() + self._patience * max(1.0, count / LEAST)


class _Hurried(io.RawIOBase):
    """What ``raw`` receives from ``sock``. After ``patience`` seconds without a byte, and past ``until``
    (time.monotonic()) even if bytes come, it raises TimeoutError. ``ended``: there are no more."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, patience: float) -> None:
        self._raw, self._socket, self._patience = raw, sock, patience
        self.until = 0.0
        self.ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int | None:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(min(left, self._patience))
        count: int = self._raw.readinto(into)
        self.ended = not count
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Idle:
    """Connections that wait for their next request; the one used last is used next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, HTTPConnection]] = []
        self._closed = False

    def take(self) -> HTTPConnection | None:
        """One that looks alive."""
        while True:
            with self._lock:
                since, connection = self._waiting.pop() if self._waiting else (0.0, None)
            if connection is None:
                return None
            if time.monotonic() - since > IDLE_SECONDS:
                self.clear()  # the others have waited for longer still
            elif connection.is_connected:
                return connection
            connection.close()

    def put(self, connection: HTTPConnection) -> None:
        """Keep it, in the place of the one unused for longest where there are too many."""
        with self._lock:
            self._waiting.append((time.monotonic(), connection))
            too_many = self._closed or len(self._waiting) > IDLE_CONNECTIONS
            surplus = self._waiting.pop(0)[1] if too_many else None
        if surplus is not None:
            surplus.close()

    def clear(self) -> None:
        """Close them all."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for _, connection in waiting:
            connection.close()

    def close(self) -> None:
        """The same, and keep none from now on."""
        self._closed = True
        self.clear()


def _send(
    connection: HTTPConnection, method: str, target: str, headers: Mapping[str, str], timeout: float
) -> _Response:
    """The answer's head. Where none comes the connection is closed."""
    try:
        connection.timeout = timeout
        connection.request(method, target, headers=headers)
        connection.sock.settimeout(timeout)
        connection.response_class = partial(_Response, patience=timeout)  # type: ignore[assignment]
        response = http.client.HTTPConnection.getresponse(connection)
        assert isinstance(response, _Response)
        _check_head(response)
    except BaseException:
        connection.close()
        raise
    return response


def _check_head(response: http.client.HTTPResponse) -> None:
    if any(isinstance(defect, _GARBLED) for defect in response.headers.defects):
        raise http.client.HTTPException("a line of the head is no header")


def _joined(headers: http.client.HTTPMessage) -> dict[str, str]:
    joined: dict[str, str] = {}
    for name, value in headers.items():
        name = name.lower()
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


_BROKE = ("the connection broke", "")
_PROXY_REFUSES = (
    "the proxy refuses to lead there",
    "check HTTP_PROXY or HTTPS_PROXY, the credentials in it, and NO_PROXY",
)


def _unavailable(error: Exception, endpoint: HttpEndpoint) -> OriginUnavailable:
    """What ``error`` means. Its text may hold the URL and is not passed on."""
    return _error(_reason(error), endpoint)


def _error(reason: tuple[str, str], endpoint: HttpEndpoint) -> OriginUnavailable:
    said, mend = reason
    return OriginUnavailable(f"{endpoint.shown}: {said}", mend=mend)


def _reason(error: Exception) -> tuple[str, str]:
    text = str(error)
    if isinstance(error, urllib3.exceptions.NameResolutionError):
        return "no such host name", "is the endpoint right?"
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return _os_reason(text), "is the endpoint right, and is it running?"
    if isinstance(error, urllib3.exceptions.ConnectTimeoutError):
        return "no connection in time", "is the endpoint right and reachable?"
    if isinstance(error, TimeoutError):
        return "no answer in time", "is the endpoint right and well?"
    if isinstance(error, ssl.SSLError) and not isinstance(error, _HUNG_UP):
        reason = getattr(error, "verify_message", "")
        return f"TLS failed ({reason})" if reason else "TLS failed", _TLS_MEND
    if "Tunnel connection failed" in text:  # http.client and urllib3 know no exception for this
        return _PROXY_REFUSES
    return _BROKE


_TLS_MEND = (
    "check the certificate (AWS_CA_BUNDLE or SSL_CERT_FILE name the file of a private CA), "
    "or write http:// for https://"
)


def _os_reason(text: str) -> str:
    for said in ("connection refused", "network unreachable", "no route to host"):
        if said.rpartition(" ")[2] in text.lower():
            return said
    return "no connection"
