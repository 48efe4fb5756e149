"""The versions that are in use: each held once, however many handles and running stripes need it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from functools import partial

import msgspec
import trio

from fusestripe.cache.store import CachedObject, CacheStore, Capacity, Forecast
from fusestripe.cache.threads import DiskHangs, DiskThreads
from fusestripe.errors import CacheError
from fusestripe.origins.base import Origin, unit_of
from fusestripe.stripes.readahead import AccessPattern
from fusestripe.units import ObjectVersion

__all__ = ["FileStatistics", "OpenFile", "OpenFiles"]

log = logging.getLogger(__name__)


class FileStatistics(msgspec.Struct, frozen=True):
    """An open file: bytes it has, bytes of it in the cache, and what its reads brought from where.

    ``path`` is that in the mount, from its "/" on; ``url`` is where it comes from.
    ``passthrough``: the kernel reads it from the cache's file itself, which nobody counts.
    """

    path: str
    url: str
    size: int
    present: int
    from_cache: int
    from_origin: int
    from_peers: int
    passthrough: bool


class OpenFile:
    """A version that at least one handle or running stripe needs. The cache keeps what it holds.

    ``patterns`` are those of its handles; ``in_flight`` are its stripes on their way from the origin;
    ``changed`` is set once the origin has another version, and nothing more is fetched ahead.
    ``is_used``: not only looked at.
    ``is_read_back``: ReadBack looks at it now. ``served_at`` is the position from which nothing was left to
    fetch ahead (see Reader).
    ``looked_at`` is the same of a reader that needs no help. ``unit`` bytes lie on one server (0: unknown);
    ``is_spread``: on more than one.
    """

    def __init__(self, origin: Origin, version: ObjectVersion, cached: CachedObject | None) -> None:
        self.origin = origin
        self.version = version
        self.cached = cached
        self.users = 0
        self.is_used = False
        self.patterns: set[AccessPattern] = set()
        self.in_flight: set[int] = set()
        self.unit = unit_of(origin, version)
        self.is_spread = 0 < self.unit < version.size
        self.changed = False
        self.is_read_back = False
        self.served_at: tuple[int, int] | None = None
        self.looked_at: tuple[int, int] | None = None
        self.from_cache = 0
        self.from_origin = 0
        self.from_peers = 0

    def present(self, index: int) -> bool:
        """Whether the cache has stripe ``index``."""
        return self.cached is not None and self.cached.present(index)

    def statistics(self, path: str, *, passthrough: bool) -> FileStatistics:
        """What is there and what was brought. ``path`` is where the mount shows it."""
        return FileStatistics(
            path=path,
            url=str(self.version),
            size=self.version.size,
            present=0 if self.cached is None else self.cached.present_bytes,
            from_cache=self.from_cache,
            from_origin=self.from_origin,
            from_peers=self.from_peers,
            passthrough=passthrough,
        )


class OpenFiles:
    """``cache`` may be None; ``disk`` has the threads that wait for it."""

    def __init__(self, cache: CacheStore | None, disk: DiskThreads) -> None:
        self._cache = cache
        self._disk = disk
        self._files: dict[ObjectVersion, OpenFile] = {}

    def __len__(self) -> int:
        return len(self._files)

    def statistics(
        self, place: Callable[[Origin, ObjectVersion], str], passthrough: AbstractSet[ObjectVersion]
    ) -> list[FileStatistics]:
        """Of each open file; ``place`` tells its path. Those in ``passthrough`` the kernel reads itself."""
        return [
            file.statistics(place(file.origin, version), passthrough=version in passthrough)
            for version, file in self._files.items()
        ]

    async def hold(self, origin: Origin, version: ObjectVersion, *, use: bool = True) -> OpenFile:
        """The open file of ``version``, for one more user, who will let it go.

        ``use``: what is used is evicted after what is not; who only looks does not use it.
        """
        surplus = None
        if version not in self._files:
            cached = await self._acquire(version, use=use)
            if version in self._files:
                surplus = cached  # another was faster
            else:
                self._files[version] = OpenFile(origin, version, cached)
        file = self._files[version]
        file.users += 1
        file.is_used |= use
        if surplus is not None:
            # Only now: the file must not go meanwhile.
            await self._release(surplus, use=use)
        return file

    async def let_go(self, file: OpenFile) -> None:
        """One user less; the last one takes the file along."""
        file.users -= 1
        if file.users == 0:
            del self._files[file.version]
            if file.cached is not None:
                await self._release(file.cached, use=file.is_used)

    async def pin(self, file: OpenFile, until: float | None) -> None:
        """Keep ``file`` in the cache, beyond its last user, as ``CacheStore.pin`` says. Raises CacheError."""
        if self._cache is not None and file.cached is not None:
            await self._disk.run(partial(self._cache.pin, file.version, until))

    async def capacity(self) -> Capacity | None:
        """The most the cache can hold; None where there is none, or its disk does not tell."""
        if self._cache is None:
            return None
        try:
            return await self._disk.run(self._cache.capacity)
        except (OSError, CacheError):
            return None

    async def present_bytes(self, version: ObjectVersion) -> int:
        """How much of ``version`` the cache has. Raises CacheError."""
        if self._cache is None or version.size == 0:
            return 0
        return await self._disk.run(partial(self._cache.present_bytes, version))

    async def forecast(self, need: int, wanted: Collection[ObjectVersion]) -> Forecast | None:
        """As ``CacheStore.forecast``; None where there is no cache, or its disk does not tell."""
        if self._cache is None:
            return None
        try:
            return await self._disk.run(partial(self._cache.forecast, need, wanted))
        except (OSError, CacheError):
            return None

    async def _acquire(self, version: ObjectVersion, *, use: bool) -> CachedObject | None:
        if self._cache is None or version.size == 0:
            return None
        try:
            acquire, release = partial(self._cache.acquire, use=use), partial(self._cache.release, use=use)
            return await self._disk.run(partial(acquire, version), undo=release)
        except DiskHangs:
            return None  # said once for all, by the disk's health
        except CacheError as error:
            log.warning("%s is read without the cache: %s", version, error)
            return None

    async def _release(self, cached: CachedObject, *, use: bool) -> None:
        assert self._cache is not None
        with trio.CancelScope(shield=True):
            await self._disk.finish(partial(self._cache.release, cached, use=use))
