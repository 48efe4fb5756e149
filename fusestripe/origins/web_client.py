"""Requests to a web server that may send one on to another: redirects are followed, credentials are not."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote, urljoin, urlsplit

from fusestripe.errors import IsADirectory, OriginError
from fusestripe.origins.http_client import HttpClient
from fusestripe.origins.http_connections import Answer
from fusestripe.origins.http_errors import Refusal, Wording, error_of
from fusestripe.origins.web_access import TOKEN

__all__ = ["WebClient"]

MOST_HOPS = 5
MOST_SERVERS = 8
"""Servers that connections are kept to: those that a hub spreads its files over."""
_IN_URLS = "%:/?[]@!$&'()*+,;=-._~"
"""Characters that a URL has as they are (RFC 3986, section 2)."""
_MOVED = (301, 302, 303, 307, 308)
_WORDING = Wording(
    credentials=f"put the host into ~/.netrc, or a token into {TOKEN}",
    rights="ask whoever runs the server",
    foreign="does this server give out files?",
)


class _Moved(OriginError):
    """The server says that it is elsewhere."""

    def __init__(self, location: str) -> None:
        super().__init__("moved")
        self.location = location


class WebClient:
    """Requests to the server at ``root`` ("https://host:port") and those that it redirects to.

    ``authorization`` holds the headers that only the former may see. Blocking; safe to use from many threads.
    """

    def __init__(self, root: str, authorization: Mapping[str, str], timeout: float) -> None:
        self._root = root
        self._authorization = authorization
        self._timeout = timeout
        self._lock = threading.Lock()
        self._clients: dict[str, HttpClient] = {}

    @contextmanager
    def answer(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        what: str,
        *,
        timeout: float | None = None,
    ) -> Iterator[tuple[str, Answer]]:
        """The answer for ``url`` where it is 200 or 206, and the URL that it came from in the end.

        Raises IsADirectory where the server redirects to the same path with a "/" at its end, as it does for
        directories, and other OriginErrors.
        """
        for _ in range(MOST_HOPS):
            client = self._client_of(url)
            target = url.removeprefix(client.endpoint) or "/"
            try:
                with client.answer(target, headers, what, method=method, timeout=timeout) as answer:
                    yield url, answer
                    return
            except _Moved as moved:
                url = self._next(url, moved.location, what)
        raise OriginError(f"{what}: more than {MOST_HOPS} redirects", mend="mend the server")

    def close(self) -> None:
        """Close the idle connections."""
        for client in self._clients.values():
            client.close()

    def _client_of(self, url: str) -> HttpClient:
        parts = urlsplit(url)
        endpoint = f"{parts.scheme}://{parts.netloc}"
        with self._lock:
            client = self._clients.pop(endpoint, None) or self._made(endpoint)
            self._clients[endpoint] = client  # the one used last is dropped last
            surplus = [other for other in self._clients if other != self._root][: -MOST_SERVERS + 1]
            for other in surplus:
                self._clients.pop(other).close()
        return client

    def _made(self, endpoint: str) -> HttpClient:
        def authorize(method: str, target: str, headers: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
            return target, {**headers, **(self._authorization if endpoint == self._root else {})}

        return HttpClient(endpoint, authorize=authorize, refused=self._refused, timeout=self._timeout)

    def _next(self, url: str, location: str, what: str) -> str:
        try:
            # A server may forget to encode what it redirects to, as browsers know.
            target = quote(urljoin(url, location).partition("#")[0], safe=_IN_URLS)
            here, there = urlsplit(url), urlsplit(target)
        except ValueError:
            raise OriginError(f"{what}: a redirect to nowhere", mend="mend the server") from None
        if there.path == here.path + "/":
            raise IsADirectory(f"{what} is a directory")
        if there.scheme not in ("http", "https") or not there.netloc or "@" in there.netloc:
            raise OriginError(f"{what}: a redirect to nowhere", mend="mend the server")
        if here.scheme == "https" and there.scheme == "http":
            raise OriginError(f"{what}: a redirect out of TLS is not followed", mend="mend the server")
        return target

    def _refused(self, refusal: Refusal, what: str) -> OriginError:
        location = refusal.headers.get("location", "")
        if refusal.status in _MOVED and location:
            return _Moved(location)
        anonymous = not self._authorization
        return error_of(refusal, what, endpoint=self._root, anonymous=anonymous, wording=_WORDING)
