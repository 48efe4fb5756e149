"""Which origin stands where in the tree."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fusestripe.origins.base import Origin

__all__ = ["Place", "RouteTable"]


class Place(msgspec.Struct, frozen=True):
    """A path of the tree as an origin knows it."""

    origin: Origin
    path: str


class RouteTable:
    """Routes by their path in the tree ("" for the root), none inside another."""

    def __init__(self, routes: Mapping[str, Origin]) -> None:
        self._routes = dict(routes)
        self._children: dict[str, list[str]] = {}
        for path in self._routes:
            while path:
                parent, _, name = path.rpartition("/")
                names = self._children.setdefault(parent, [])
                if name not in names:
                    names.append(name)
                path = parent

    def place(self, path: str) -> Place | None:
        """Where ``path`` lies in an origin; None for a parent of routes, or outside all."""
        prefix = path
        while True:
            origin = self._routes.get(prefix)
            if origin is not None:
                return Place(origin, path[len(prefix) :].lstrip("/"))
            if not prefix:
                return None
            prefix = prefix.rpartition("/")[0]

    def children(self, path: str) -> list[str]:
        """The names below a parent of routes; none where ``path`` is no such parent."""
        return self._children.get(path, [])
