"""How a web server is reached: straight or through a proxy, with TLS or without."""

from __future__ import annotations

import ssl
import urllib.request
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit

from urllib3.connection import HTTPConnection, HTTPSConnection, ProxyConfig
from urllib3.exceptions import LocationParseError
from urllib3.util import Url, make_headers, parse_url

from fusestripe.errors import ConfigError

__all__ = ["HttpEndpoint", "endpoint_of"]

_PORTS = {"http": 80, "https": 443}


class HttpEndpoint:
    """The server of ``url``, reached by ``proxy`` if there is one. ``shown`` names both, without secrets.

    An http:// server's proxy is told the whole URL with each request; to an https:// server it opens a
    tunnel (CONNECT: RFC 9110, 9.3.6), through which the TLS connection goes.
    """

    def __init__(self, url: SplitResult, proxy: Url | None, context: ssl.SSLContext) -> None:
        assert url.hostname is not None
        self._origin = f"{url.scheme}://{url.netloc}"
        self._scheme = url.scheme
        self._host = url.hostname
        self._port = url.port or _PORTS[url.scheme]
        self._proxy = proxy
        self._context = context
        self._greeting = make_headers(proxy_basic_auth=unquote(proxy.auth)) if proxy and proxy.auth else {}
        self.shown = self._origin + (f" through the proxy {proxy.host}:{proxy.port}" if proxy else "")

    @property
    def _forwarded(self) -> bool:
        return self._proxy is not None and self._scheme == "http"

    @property
    def headers(self) -> Mapping[str, str]:
        """What every request has to carry for the proxy."""
        return self._greeting if self._forwarded else {}

    def target(self, path: str) -> str:
        """The request target (RFC 9112, 3.2) for ``path``."""
        return self._origin + path if self._forwarded else path

    def connect(self, timeout: float) -> HTTPConnection:
        """A new connection, ready for a request; ``timeout`` in seconds for each of its steps.

        Raises OSError, HTTPException and urllib3's HTTPError.
        """
        connection = self._connection(timeout)
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        return connection

    def _connection(self, timeout: float) -> HTTPConnection:
        proxy = self._proxy
        if proxy is None:
            if self._scheme == "http":
                return HTTPConnection(self._host, self._port, timeout=timeout)
            return HTTPSConnection(self._host, self._port, timeout=timeout, ssl_context=self._context)
        host = (proxy.host or "").strip("[]")
        if self._forwarded and proxy.scheme == "http":
            return HTTPConnection(host, proxy.port, timeout=timeout, proxy=proxy)
        config = ProxyConfig(self._context, False, None, None)
        connection = HTTPSConnection(
            host,
            proxy.port,
            timeout=timeout,
            proxy=proxy,
            proxy_config=config,
            ssl_context=self._context,
        )
        if not self._forwarded:
            connection.set_tunnel(self._host, self._port, headers=self._greeting, scheme=proxy.scheme or "")
        return connection


def endpoint_of(url: str, ca_bundle: str | None) -> HttpEndpoint:
    """The server of ``url``, reached as the environment says; ``ca_bundle`` is a file of certificates (PEM).

    Raises ConfigError where the URL, the file or the proxy's URL cannot be used.
    """
    parts = urlsplit(url)
    try:
        usable = parts.scheme in _PORTS and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        usable = False
    if not usable or "@" in parts.netloc:
        shown = parts.netloc.rpartition("@")[2]
        raise ConfigError(
            f"{parts.scheme}://{shown} cannot be reached", mend='write it like "https://host:port"'
        )
    return HttpEndpoint(parts, _proxy_of(parts), _tls(ca_bundle))


def _proxy_of(url: SplitResult) -> Url | None:
    """The proxy that HTTP_PROXY, HTTPS_PROXY and NO_PROXY (in either case) name, as curl reads them."""
    named = urllib.request.getproxies().get(url.scheme)
    if not named or urllib.request.proxy_bypass(url.netloc):
        return None
    try:
        proxy = parse_url(named if "://" in named else f"http://{named}")
    except LocationParseError:
        proxy = Url()
    if proxy.scheme not in _PORTS or not proxy.host:
        raise ConfigError(
            f"{url.scheme.upper()}_PROXY names no http:// or https:// proxy",
            mend='write it like "http://host:port", or unset it',
        )
    return proxy._replace(port=proxy.port or _PORTS[proxy.scheme])


def _tls(ca_bundle: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_bundle)
    except ssl.SSLError as error:
        raise ConfigError(f"{ca_bundle} holds no certificates", mend="check AWS_CA_BUNDLE") from error
    except OSError as error:
        raise ConfigError(f"{ca_bundle}: {error.strerror}", mend="check AWS_CA_BUNDLE") from error
