"""The directories of a mount lie side by side: one in another would read or hide itself."""

from __future__ import annotations

import itertools
import os

import msgspec

from fusestripe.config import Settings
from fusestripe.errors import CacheError, ConfigError, OriginUnavailable
from fusestripe.kernel.within import within
from fusestripe.origins.local import directory_of

__all__ = ["check_places"]

SECONDS = 10.0
"""How long a disk is waited for."""


class _Place(msgspec.Struct, frozen=True):
    """A directory, as it is called, and how to choose another."""

    path: str
    name: str
    mend: str


def check_places(settings: Settings, mountpoint: str | None = None) -> None:
    """Raise ConfigError where cache, mountpoint and the directories shown are or lie in one another.

    ``mountpoint`` is absolute and without links; None for a command that mounts nothing. Links in the others
    are followed. Raises CacheError and OriginUnavailable where a disk does not answer.
    """
    cache, sources = _resolved(settings)
    places = [_Place(cache, "cache directory", "take a --cache-dir outside of it")]
    if mountpoint is not None:
        places.append(_Place(mountpoint, "mountpoint", "mount outside of it"))
    shown = [_Place(source, "source", "name a directory outside of it") for source in sources]
    for one, other in (*itertools.combinations(places, 2), *itertools.product(places, shown)):
        _check_apart(one, other)


def _resolved(settings: Settings) -> tuple[str, list[str]]:
    """The cache directory and the directories shown, without links."""
    caches: list[str] = []
    within(SECONDS, lambda: caches.append(os.path.realpath(settings.cache.dir)))
    if not caches:
        raise CacheError(
            f"the disk of the cache directory {settings.cache.dir} does not answer",
            mend="look at the disk's health, or choose another --cache-dir",
        )
    urls = [route.source for route in settings.routes if route.source.lower().startswith("file://")]
    sources: list[str] = []
    errors: list[ConfigError] = []

    def resolve() -> None:
        try:
            sources.extend(directory_of(url) for url in urls)
        except ConfigError as error:
            errors.append(error)

    within(SECONDS, resolve)
    if errors:
        raise errors[0]
    if len(sources) < len(urls):
        raise OriginUnavailable(
            f"the disk of {urls[len(sources)]} does not answer", mend="look at its health"
        )
    return caches[0], sources


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
