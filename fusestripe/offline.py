"""Prefetching what URLs name, without a mount; and what that would do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

import trio

from fusestripe.config import Settings
from fusestripe.engine import Engine, open_cache
from fusestripe.errors import FusestripeError
from fusestripe.named import Named, open_named
from fusestripe.places import check_places
from fusestripe.planning import Plan, plan_wanted
from fusestripe.prefetcher import Report
from fusestripe.selection import Choice, Wanted, prefetch_wanted
from fusestripe.telling import with_paths

__all__ = ["plan_urls", "prefetch_urls"]

T = TypeVar("T")
Work = Callable[[Engine, "list[str]", Callable[[str], str]], Awaitable[T]]
"""Does something about paths of the engine's tree; the last argument turns such a path into its URL."""


def prefetch_urls(
    loaded: Sequence[Settings], tell: Callable[[Report | Choice], None], wanted: Wanted
) -> None:
    """Bring files and trees into the cache; blocking. ``tell`` hears how each goes, by its URL.

    The routes of ``loaded`` name them; cache and stripes are those of the first. ``wanted`` says what of
    them, and how. Raises FusestripeError where the cache or an origin cannot be used.
    """

    async def work(engine: Engine, paths: list[str], shown: Callable[[str], str]) -> None:
        async def send(told: Report | Choice) -> None:
            tell(with_paths(told, shown))

        await prefetch_wanted(engine.tree, engine.reader, engine.prefetcher, paths, wanted, send)

    _run(loaded, work)


def plan_urls(loaded: Sequence[Settings], wanted: Wanted) -> Plan:
    """What ``prefetch_urls`` would do; blocking. Raises as it does."""

    async def work(engine: Engine, paths: list[str], shown: Callable[[str], str]) -> Plan:
        directory = str(engine.cache.directory)
        plan = await plan_wanted(engine.tree, engine.reader, engine.files, paths, wanted, directory=directory)
        return with_paths(plan, shown)

    return _run(loaded, work)


def _run(loaded: Sequence[Settings], work: Work[T]) -> T:
    """Errors inside a nursery would come out wrapped; so they are returned."""
    for settings in loaded:
        check_places(settings)
    outcome = trio.run(_outcome, loaded, work)
    if isinstance(outcome, FusestripeError):
        raise outcome
    return outcome


async def _outcome(loaded: Sequence[Settings], work: Work[T]) -> T | FusestripeError:
    named: list[Named] = []
    try:
        for settings in loaded:
            timeout = settings.mount.timeout
            named.extend([await open_named(route, timeout=timeout) for route in settings.routes])
        cache = await open_cache(loaded[0])
    except BaseException as error:
        for one in named:
            one.origin.close()
        if isinstance(error, FusestripeError):
            return error
        raise

    def shown(path: str) -> str:
        number, _, below = path.partition("/")
        return named[int(number)].shown(below)

    outcome: T | FusestripeError
    with ExitStack() as stack:
        async with trio.open_nursery() as services:
            origins = {str(number): one.origin for number, one in enumerate(named)}
            engine = Engine(loaded[0], origins, cache, services)
            stack.callback(engine.close)
            paths = [f"{number}/{one.name}".rstrip("/") for number, one in enumerate(named)]
            try:
                outcome = await work(engine, paths, shown)
            except FusestripeError as error:
                outcome = error
            services.cancel_scope.cancel()
    return outcome
