"""Prefetching what URLs name, without a mount."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import trio

from fusestripe.config import Settings
from fusestripe.engine import Engine, connect, open_cache
from fusestripe.errors import FusestripeError
from fusestripe.prefetcher import Report, prefetch

__all__ = ["prefetch_urls"]


def prefetch_urls(loaded: Sequence[Settings], tell: Callable[[Report], None], *, check: bool) -> None:
    """Bring files and trees into the cache; blocking. ``tell`` hears how each goes, by its URL.

    The routes of ``loaded`` name them; cache and stripes are those of the first. With ``check`` nothing is
    fetched. Raises FusestripeError where the cache or an origin cannot be used.
    """
    failure = trio.run(_prefetch_urls, loaded, tell, check)
    if failure is not None:
        raise failure


async def _prefetch_urls(
    loaded: Sequence[Settings], tell: Callable[[Report], None], check: bool
) -> FusestripeError | None:
    """An error inside a nursery would come out wrapped; so it is returned."""
    wanted = [route for settings in loaded for route in settings.routes]
    parents = [_split(route.source) for route in wanted]
    try:
        origins = await connect(
            [
                msgspec.structs.replace(route, path=f"/{number}", source=parent)
                for number, (route, (parent, _name)) in enumerate(zip(wanted, parents, strict=True))
            ]
        )
        cache = await open_cache(loaded[0])
    except FusestripeError as error:
        return error

    async def send(report: Report) -> None:
        number, _, below = report.path.partition("/")
        tell(msgspec.structs.replace(report, path=f"{parents[int(number)][0]}/{below}"))

    async with trio.open_nursery() as services:
        engine = Engine(loaded[0], origins, cache, services)
        paths = [f"{number}/{name}".rstrip("/") for number, (_parent, name) in enumerate(parents)]
        await prefetch(engine.tree, engine.prefetcher, paths, send, check=check)
        services.cancel_scope.cancel()
    engine.close()
    return None


def _split(url: str) -> tuple[str, str]:
    """The directory that ``url`` lies in, and its name there; "" for the root of a store."""
    scheme, separator, rest = url.rstrip("/").partition("://")
    parent, slash, name = rest.rpartition("/")
    if not slash:
        return url, ""
    return f"{scheme}{separator}{parent or '/'}", name
