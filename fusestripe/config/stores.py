"""Which of a route's settings a store has, and the endpoint that a URL may name. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

__all__ = ["path_in", "split_endpoint", "takes", "without_scheme"]

_KEYED = frozenset(("endpoint", "anonymous"))
_TAKEN: Mapping[str, frozenset[str]] = {
    "s3": _KEYED | {"region", "profile"},
    "gs": _KEYED,
    "az": _KEYED,
    "abfs": _KEYED,
    "abfss": _KEYED,
    "http": frozenset(("anonymous",)),
    "https": frozenset(("anonymous",)),
    "hdfs": frozenset(("client",)),
    "viewfs": frozenset(),
    "hdfs+libhdfs": frozenset(),
    "file": frozenset(),
}
"""Scheme -> keys of a route that mean something there; its origin refuses the others."""
_ENDPOINT = re.compile(r"((?:s3|gs|az)://.*)\?endpoint=([^?&]+)", re.IGNORECASE)


def takes(url: str, key: str) -> bool:
    """Whether the store of ``url`` has the setting ``key`` of a route; of an unknown store: yes."""
    taken = _TAKEN.get(url.partition("://")[0].lower())
    return taken is None or key in taken


def split_endpoint(url: str, known: Iterable[str]) -> tuple[str, str]:
    """``url`` without its "?endpoint=host:port", as commands show URLs, and that endpoint as a URL; else "".

    Where it has no scheme it is that of ``known``, URLs of servers, with the same host; otherwise http for an
    address or a port of its own, and https for a mere name.
    """
    found = _ENDPOINT.fullmatch(url)
    if found is None:
        return url, ""
    source, endpoint = found.groups()
    if "://" in endpoint:
        return source, endpoint
    for one in known:
        if without_scheme(one) == without_scheme(endpoint):
            return source, one
    return source, f"{_usual_scheme(endpoint)}://{endpoint}"


def without_scheme(endpoint: str) -> str:
    """Host, port and path of ``endpoint``, as the cache knows a store."""
    return endpoint.rpartition("://")[2].rstrip("/")


def _usual_scheme(endpoint: str) -> str:
    try:
        parts = urlsplit(f"//{endpoint}")
        host, port = parts.hostname or "", parts.port
    except ValueError:  # refused by whoever checks it
        return "http"
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "http" if host == "localhost" or port not in (None, 443) else "https"
    return "https" if port == 443 else "http"


def path_in(url: str, origin: str) -> str | None:
    """The path in ``origin`` (as ObjectVersion has it: "s3://bucket", "s3://bucket?endpoint=...", "file://")
    that ``url`` names; "" is all of it, None: it names none. Without a "?" it is of any endpoint.
    """
    store, _, where = origin.partition("?")
    place, asks, wanted = url.partition("?")
    key, equals, endpoint = wanted.partition("=")
    wanted = f"{key}{equals}{without_scheme(endpoint)}"
    place = place.rstrip("/") if len(place.rstrip("/")) > len(store) else place
    if asks and wanted != where:
        return None
    if place.rstrip("/") == store.rstrip("/"):
        return ""
    return place[len(store) + 1 :] if place.startswith(store + "/") else None
