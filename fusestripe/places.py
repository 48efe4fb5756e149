"""The directories of a mount lie side by side: one in another would read or hide itself."""

from __future__ import annotations

import itertools
import os

import msgspec

from fusestripe.config import Settings
from fusestripe.errors import ConfigError
from fusestripe.origins.local import directory_of

__all__ = ["check_places"]


class _Place(msgspec.Struct, frozen=True):
    """A directory, as it is called, and how to choose another."""

    path: str
    name: str
    mend: str


def check_places(settings: Settings, mountpoint: str | None = None) -> None:
    """Raise ConfigError where cache, mountpoint and the directories shown are or lie in one another.

    ``mountpoint`` is absolute and without links; None for a command that mounts nothing. Links in the others
    are followed.
    """
    places = [
        _Place(os.path.realpath(settings.cache.dir), "cache directory", "take a --cache-dir outside of it")
    ]
    if mountpoint is not None:
        places.append(_Place(mountpoint, "mountpoint", "mount outside of it"))
    sources = [
        _Place(directory_of(route.source), "source", "name a directory outside of it")
        for route in settings.routes
        if route.source.lower().startswith("file://")
    ]
    for one, other in (*itertools.combinations(places, 2), *itertools.product(places, sources)):
        _check_apart(one, other)


def _check_apart(one: _Place, other: _Place) -> None:
    if one.path == other.path:
        raise ConfigError(
            f"{one.path} is both {one.name} and {other.name}", mend="take another directory for one"
        )
    for inner, outer in ((one, other), (other, one)):
        if inner.path.startswith(outer.path.rstrip("/") + "/"):
            raise ConfigError(
                f"the {inner.name} {inner.path} lies in the {outer.name} {outer.path}", mend=inner.mend
            )
