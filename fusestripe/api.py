"""fusestripe from Python: mount a source for the length of a block, and fill the cache ahead of use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Union

import msgspec

from fusestripe.config import Settings, load
from fusestripe.errors import FusestripeError, MountError
from fusestripe.kernel import mounting
from fusestripe.launch import launch, stop
from fusestripe.offline import prefetch_urls
from fusestripe.origins.registry import FACTORIES
from fusestripe.prefetcher import Report
from fusestripe.telemetry.control import request, socket_of

__all__ = ["PrefetchError", "Report", "bring", "mount", "prefetch"]

Value = Union[str, int, float, bool, "os.PathLike[str]", None]
"""What a setting may be given as: sizes in bytes or like "8MiB", times in seconds."""


class PrefetchError(FusestripeError):
    """Files could not be brought into the cache. ``reports`` are those of all, also of what is there."""

    def __init__(self, reports: Sequence[Report]) -> None:
        failed = [report for report in reports if report.state == "failed"]
        first, count = failed[0], f"{len(failed):,} of {len(reports):,}"
        what = "" if len(reports) == 1 else f"{count} files failed, the first of them: "
        super().__init__(f"{what}{first.path}: {first.error}", mend=first.mend)
        self.reports = tuple(reports)


@contextlib.contextmanager
def mount(
    source: str | os.PathLike[str],
    mountpoint: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | None = None,
    **settings: Value,
) -> Iterator[Path]:
    """Mount ``source`` (a URL, or a TOML file) at ``mountpoint`` for the block; gives the mountpoint.

    ``settings`` have the names that ``-o`` has: cache_dir, stripe_count, endpoint and so on. The cache stays.
    Raises ConfigError and MountError, also where files of the mount are still open at the end.
    """
    loaded = _load(os.fspath(source), settings, config)
    launch(loaded, os.fspath(mountpoint))
    path = mounting.resolve(os.fspath(mountpoint))
    try:
        yield Path(path)
    finally:
        stop(path)


def prefetch(
    *sources: str | os.PathLike[str],
    config: str | os.PathLike[str] | None = None,
    check: bool = False,
    pin: bool = False,
    **settings: Value,
) -> tuple[Report, ...]:
    """Bring the files at and below ``sources``, paths under a mount or URLs, into the cache.

    Returns a Report of each file when every byte of all is there and checked. With ``check`` nothing is
    fetched: the reports say what is there, with ``state`` "done", and what is not, with "failed" and
    ``error``. With ``pin`` what is done is not evicted until `fusestripe cache unpin`. ``settings`` (see
    ``mount``) are those of URLs; a mount has its own. Not to be called from a trio task, but in a thread.

    Raises PrefetchError where files failed, when all others are there; ConfigError; MountError where a path
    is in no mount or its daemon does not answer; and for a URL CacheError and OriginError where its cache or
    origin cannot be used at all.
    """
    ended: list[Report] = []

    def tell(report: Report) -> None:
        if report.state in ("done", "failed"):
            ended.append(report)

    bring([os.fspath(source) for source in sources], settings, tell, config=config, check=check, pin=pin)
    if not check and any(report.state == "failed" for report in ended):
        raise PrefetchError(ended)
    return tuple(ended)


def bring(
    sources: Sequence[str],
    settings: Mapping[str, object],
    tell: Callable[[Report], None],
    *,
    config: str | os.PathLike[str] | None,
    check: bool,
    pin: bool,
) -> None:
    """As ``prefetch``, with all Reports as they come; their paths are absolute, or URLs."""
    urls = [source for source in sources if "://" in source]
    by_mount: dict[str, list[str]] = {}
    sockets: dict[str, str] = {}
    for path in (source for source in sources if "://" not in source):
        found = mounting.mount_above(path)
        if found is None:
            raise MountError(f"{path} is in no fusestripe mount", mend="mount it first, or name a URL")
        by_mount.setdefault(found[0].mountpoint, []).append(found[1])
        sockets[found[0].mountpoint] = socket_of(found[0])
    loaded = [_load(url, settings, config) for url in urls]
    for mountpoint, paths in by_mount.items():
        for answer in request(sockets[mountpoint], "prefetch", paths=paths, check=check, pin=pin):
            report = msgspec.convert(answer, Report)
            tell(msgspec.structs.replace(report, path=os.path.join(mountpoint, report.path)))
    if loaded:
        prefetch_urls(loaded, tell, check=check, pin=pin)


def _load(source: str, settings: Mapping[str, object], config: str | os.PathLike[str] | None) -> Settings:
    return load(source, settings, config=None if config is None else os.fspath(config), schemes=FACTORIES)
