"""Requests to one web service with its credentials. Each call is one request: the caller asks again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote, urlsplit

from fusestripe.errors import ConfigError, CredentialsRefused, OriginError, OriginUnavailable
from fusestripe.origins.http_connections import Answer, HttpConnections
from fusestripe.origins.http_errors import Refusal

__all__ = ["Again", "Authorize", "HttpClient", "Refused", "checked_endpoint", "query_of"]

Authorize = Callable[[str, str, Mapping[str, str]], tuple[str, Mapping[str, str]]]
"""From method, target (path and query) and headers of a request to target and headers with credentials."""

Again = Callable[[OriginError, Mapping[str, str], Mapping[str, str]], str]
"""From an error, the headers that were sent and those of the answer to why the same request, with what
``authorize`` says now, will fare better; "" where it will not."""

Refused = Callable[[Refusal, str], OriginError]
"""The error for a refusal of what was asked for."""

_ERROR_BODY = 64 * 1024


class HttpClient:
    """Requests to ``endpoint``, a URL without a slash at its end. Blocking; safe to use from many threads."""

    def __init__(
        self,
        endpoint: str,
        *,
        authorize: Authorize,
        refused: Refused,
        timeout: float,
        ca_bundle: str | None = None,
        again: Again | None = None,
    ) -> None:
        """``timeout``: seconds without a byte after which a request has failed.

        ``again`` is asked about every refusal of credentials. ``ca_bundle`` is a file of certificates to
        believe in place of the system's. Raises ConfigError.
        """
        self.endpoint = endpoint
        self._authorize = authorize
        self._refused = refused
        self._again = again
        self._timeout = timeout
        self._path = urlsplit(endpoint).path
        self._connections = HttpConnections(endpoint, ca_bundle=ca_bundle)

    @contextmanager
    def answer(
        self,
        target: str,
        headers: Mapping[str, str],
        what: str,
        *,
        method: str = "GET",
        timeout: float | None = None,
    ) -> Iterator[Answer]:
        """The answer to a request for ``target`` below the endpoint, where it is 200 or 206.

        ``what`` names it in messages. Redirects are not followed. Raises OriginError subclasses.
        """
        target, signed = self._authorize(method, self._path + target, {**_PLAIN, **headers})
        limit = min(timeout or self._timeout, self._timeout)
        with self._connections.request(method, target, signed, timeout=limit) as answer:
            if answer.status not in (200, 206):
                body = answer.read_some(_ERROR_BODY).decode("utf-8", "replace")
                raise self._error_of(Refusal(answer.status, answer.headers, body), what, signed)
            yield answer

    def _error_of(self, refusal: Refusal, what: str, sent: Mapping[str, str]) -> OriginError:
        error = self._refused(refusal, what)
        if self._again is not None and isinstance(error, CredentialsRefused):
            reason = self._again(error, sent, refusal.headers)
            if reason:
                return OriginUnavailable(f"{what}: {reason} ({refusal.said})")
        return error

    def close(self) -> None:
        """Close the idle connections."""
        self._connections.close()


_PLAIN = {"Accept-Encoding": "identity", "User-Agent": "fusestripe"}


def query_of(parameters: Mapping[str, str]) -> str:
    """``parameters`` as the query of a target, without those that are empty."""
    return "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in parameters.items() if value)


def checked_endpoint(endpoint: str) -> str:
    """``endpoint`` without a slash at its end. Raises ConfigError where it is no http(s) URL of a server."""
    try:
        parts = urlsplit(endpoint)
        usable = (
            parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
        )
    except ValueError:  # a port that is no number
        usable = False
    if not usable:
        shown = endpoint.rpartition("@")[2]
        raise ConfigError(f"{shown!r} is not an endpoint", mend='write it like "https://host:port"')
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(
            "an endpoint holds no credentials, query or fragment", mend='write "https://host:port"'
        )
    return endpoint.rstrip("/")
