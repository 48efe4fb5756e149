"""Prefetching what URLs name, without a mount."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import trio

from fusestripe.config import Settings
from fusestripe.engine import Engine, open_cache
from fusestripe.errors import FusestripeError
from fusestripe.named import Named, open_named
from fusestripe.places import check_places
from fusestripe.prefetcher import Report, prefetch

__all__ = ["prefetch_urls"]


def prefetch_urls(
    loaded: Sequence[Settings], tell: Callable[[Report], None], *, check: bool, pin: bool
) -> None:
    """Bring files and trees into the cache; blocking. ``tell`` hears how each goes, by its URL.

    The routes of ``loaded`` name them; cache and stripes are those of the first. With ``check`` nothing is
    fetched; with ``pin`` what is done is not evicted until it is unpinned. Raises FusestripeError where the
    cache or an origin cannot be used.
    """
    for settings in loaded:
        check_places(settings)
    failure = trio.run(_prefetch_urls, loaded, tell, check, pin)
    if failure is not None:
        raise failure


async def _prefetch_urls(
    loaded: Sequence[Settings], tell: Callable[[Report], None], check: bool, pin: bool
) -> FusestripeError | None:
    """An error inside a nursery would come out wrapped; so it is returned."""
    named: list[Named] = []
    try:
        for settings in loaded:
            timeout = settings.mount.timeout
            named.extend([await open_named(route, timeout=timeout) for route in settings.routes])
        cache = await open_cache(loaded[0])
    except FusestripeError as error:
        return error

    async def send(report: Report) -> None:
        number, _, below = report.path.partition("/")
        tell(msgspec.structs.replace(report, path=named[int(number)].shown(below)))

    async with trio.open_nursery() as services:
        origins = {str(number): one.origin for number, one in enumerate(named)}
        engine = Engine(loaded[0], origins, cache, services)
        paths = [f"{number}/{one.name}".rstrip("/") for number, one in enumerate(named)]
        failure = None
        try:
            await prefetch(engine.tree, engine.prefetcher, paths, send, check=check, pin=pin)
        except FusestripeError as error:
            failure = error
        services.cancel_scope.cancel()
    engine.close()
    return failure
