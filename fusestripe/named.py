"""What a URL names by itself: a directory with all below it, or one file."""

from __future__ import annotations

import msgspec

from fusestripe.config import Route
from fusestripe.engine import connect
from fusestripe.errors import NotFound
from fusestripe.origins.base import Origin
from fusestripe.units import split_url

__all__ = ["Named", "open_named"]


class Named(msgspec.Struct, frozen=True):
    """``name`` is the file's name in ``origin``; "" means all of it. ``url`` is the directory's."""

    origin: Origin
    url: str
    name: str

    def shown(self, below: str) -> str:
        """The URL of the path ``below`` the directory."""
        slash = "" if self.url.endswith("/") or not below else "/"
        return f"{self.url}{slash}{below}"


async def open_named(route: Route, *, timeout: float) -> Named:
    """The origin of what the route's source names, checked. ``timeout`` as for ``engine.connect``.

    It is taken for a directory first, and only where there is none for a file in the one above: credentials
    may reach no further than what was named. Raises OriginError and ConfigError.
    """
    try:
        return await _open(route, route.source, "", timeout)
    except NotFound:
        parent, name = split_url(route.source)
        if not name:
            raise
        return await _open(route, parent, name, timeout)


async def _open(route: Route, source: str, name: str, timeout: float) -> Named:
    origins = await connect([msgspec.structs.replace(route, source=source)], timeout=timeout)
    (origin,) = origins.values()
    return Named(origin, source, name)
