"""`fusestripe cache`: look at a cache directory and tidy it, with or without a daemon that uses it."""

from __future__ import annotations

import math
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fusestripe.cache.catalogue import CacheCatalogue, CacheEntry, Removed
from fusestripe.commands.options import config_option, json_option, print_json, setting_options
from fusestripe.commands.status import format_duration
from fusestripe.commands.usage import NamedCommands
from fusestripe.config import load
from fusestripe.errors import CacheError
from fusestripe.units import ObjectVersion, format_size

__all__ = ["cache"]


@click.group(cls=NamedCommands, epilog="Example: fusestripe cache ls --cache-dir /nvme/fusestripe")
def cache() -> None:
    """List, verify, evict, clear or unpin what is in the cache."""


@cache.command(name="ls", epilog="Example: fusestripe cache ls --json")
@setting_options("cache_dir")
@config_option
@json_option
def list_(cache_dir: str | None, config: str | None, as_json: bool) -> None:
    """List the file versions in the cache, and how much of each. The JSON is a list."""
    with _open(cache_dir, config) as catalogue:
        entries = catalogue.entries()
    if as_json:
        print_json([_shown(entry) for entry in entries])
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("file", overflow="fold")
    for name in ("size", "in cache", "used"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for entry in entries:
        marks = [*(["in use"] if entry.in_use else []), *(["pinned"] if entry.pinned else [])]
        ago = f"{format_duration(max(0, time.time() - entry.last_use))} ago"
        size = format_size(entry.version.size)
        table.add_row(Text(_name(entry)), size, _share(entry), ago, ", ".join(marks))
    console = Console()
    if not console.is_terminal:
        console.width = 1000  # a line a file, whatever reads it
    if entries:
        console.print(table)
    total = sum(entry.disk_bytes for entry in entries)
    text = f"{catalogue.directory}: {_objects(len(entries))}, {format_size(total)} on disk"
    console.print(text, highlight=False, soft_wrap=True)


@cache.command(epilog="Example: fusestripe cache verify --cache-dir /nvme/fusestripe")
@setting_options("cache_dir")
@config_option
@json_option
def verify(cache_dir: str | None, config: str | None, as_json: bool) -> None:
    """Read every stripe back and check it.

    A bad one is cleared, and fetched again when it is next read. Exits with 1 if there was one. The JSON is a
    list, as that of `cache ls`.
    """
    bad = 0
    shown: list[dict[str, object]] = []
    with _open(cache_dir, config) as catalogue:
        for checked in catalogue.verify():
            bad += checked.bad_stripes
            found = {"good_bytes": checked.good_bytes, "bad_stripes": checked.bad_stripes}
            shown.append(_shown(checked.entry) | found)
            if not as_json:
                verdict = f"{checked.bad_stripes} bad, cleared" if checked.bad_stripes else "good"
                click.echo(f"{_name(checked.entry)}: {format_size(checked.good_bytes)} {verdict}")
    if as_json:
        print_json(shown)
    if bad:
        stripes = "1 bad stripe" if bad == 1 else f"{bad:,} bad stripes"
        raise CacheError(f"{stripes} cleared", mend="what is missing is fetched again; look at the disk")


@cache.command(epilog="Example: fusestripe cache evict s3://bucket/checkpoints/step-100")
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@setting_options("cache_dir")
@config_option
@json_option
@click.option("--pinned", is_flag=True, help="Pinned ones too.")
def evict(
    urls: tuple[str, ...], cache_dir: str | None, config: str | None, as_json: bool, pinned: bool
) -> None:
    """Delete the files at and below each URL from the cache, as `cache ls` shows them.

    What is open stays. Where one of the URLs names nothing in the cache, nothing is deleted.
    """
    total = Removed()
    with _open(cache_dir, config) as catalogue:
        for origin, path in _chosen(catalogue, urls):
            total = _sum(total, catalogue.evict(origin=origin, path=path, pinned=pinned))
    _tell(total, as_json)


@cache.command(epilog="Example: fusestripe cache unpin s3://bucket/checkpoints/step-100")
@click.argument("urls", metavar="[URL]...", nargs=-1)
@setting_options("cache_dir")
@config_option
@json_option
def unpin(urls: tuple[str, ...], cache_dir: str | None, config: str | None, as_json: bool) -> None:
    """Let the files at and below each URL, as `cache ls` shows them, be evicted again.

    Without a URL all of them. They were pinned by `prefetch --pin`.
    """
    with _open(cache_dir, config) as catalogue:
        chosen = _chosen(catalogue, urls) if urls else [("", "")]
        unpinned = sum(catalogue.unpin(origin=origin, path=path) for origin, path in chosen)
    if as_json:
        print_json({"objects": unpinned})
    else:
        click.echo(f"{_objects(unpinned)} unpinned")


@cache.command(epilog="Example: fusestripe cache clear --cache-dir /nvme/fusestripe")
@setting_options("cache_dir")
@config_option
@json_option
@click.option("--pinned", is_flag=True, help="Pinned ones too.")
def clear(cache_dir: str | None, config: str | None, as_json: bool, pinned: bool) -> None:
    """Delete everything from the cache but what is open or pinned.

    What somebody else put into its directory is left alone, and named on stderr.
    """
    with _open(cache_dir, config) as catalogue:
        removed = catalogue.clear(pinned=pinned)
        aliens = catalogue.aliens()
    for path in aliens:
        click.echo(
            f"fusestripe: left alone, for it is not of the cache: {catalogue.directory / path}", err=True
        )
    _tell(removed, as_json)


def path_in(url: str, origin: str) -> str | None:
    """The path in ``origin`` (as ObjectVersion has it: "s3://bucket", "s3://bucket?endpoint=...", "file://")
    that ``url`` names; "" is all of it, None: it names none. Without a "?" it is of any endpoint.
    """
    store, _, where = origin.partition("?")
    place, asks, wanted = url.partition("?")
    place = place.rstrip("/") if len(place.rstrip("/")) > len(store) else place
    if asks and wanted != where:
        return None
    if place.rstrip("/") == store.rstrip("/"):
        return ""
    return place[len(store) + 1 :] if place.startswith(store + "/") else None


def _chosen(catalogue: CacheCatalogue, urls: tuple[str, ...]) -> list[tuple[str, str]]:
    """Origins of the cache and paths in them that ``urls`` name. Raises CacheError for one of nothing."""
    versions = [entry.version for entry in catalogue.entries()]
    chosen: list[tuple[str, str]] = []
    for url in urls:
        places = [(origin, path_in(url, origin)) for origin in sorted({each.origin for each in versions})]
        found = [
            (origin, path)
            for origin, path in places
            if path is not None and any(_lies_at(version, origin, path) for version in versions)
        ]
        if not found:
            raise CacheError(f"nothing of {url} is in the cache", mend="fusestripe cache ls shows what is")
        chosen += found
    return chosen


def _lies_at(version: ObjectVersion, origin: str, path: str) -> bool:
    return version.origin == origin and (not path or f"{version.path}/".startswith(f"{path}/"))


def _open(cache_dir: str | None, config: str | None) -> CacheCatalogue:
    return CacheCatalogue(Path(load(None, {"cache_dir": cache_dir}, config=config).cache.dir))


def _name(entry: CacheEntry) -> str:
    """The URL of a cached file, with the endpoint of its store behind it where that is not the usual one."""
    store, asks, where = entry.version.origin.partition("?")
    return f"{store}/{entry.version.path}{asks}{where}"


def _shown(entry: CacheEntry) -> dict[str, object]:
    """For JSON: bytes; seconds since the epoch; ``pinned_until`` null for ever, 0 without a pin."""
    return {
        "url": _name(entry),
        "size": entry.version.size,
        "tag": entry.version.tag,
        "present": entry.present_bytes,
        "disk": entry.disk_bytes,
        "stripe_size": entry.stripe_size,
        "last_use": entry.last_use,
        "pinned_until": None if math.isinf(entry.pinned_until) else entry.pinned_until,
        "in_use": entry.in_use,
    }


def _share(entry: CacheEntry) -> str:
    size = entry.version.size
    return f"{100 * entry.present_bytes // size} %" if size else "100 %"


def _sum(one: Removed, other: Removed) -> Removed:
    return Removed(
        one.objects + other.objects,
        one.bytes + other.bytes,
        one.in_use + other.in_use,
        one.pinned + other.pinned,
        one.failed + other.failed,
    )


def _tell(removed: Removed, as_json: bool) -> None:
    if as_json:
        print_json(removed)
    else:
        click.echo(_summary(removed))
    if removed.failed:
        more = f" and {len(removed.failed) - 1:,} more" if len(removed.failed) > 1 else ""
        raise CacheError(
            f"cannot delete {removed.failed[0]}{more}", mend="look at the rights there and the disk"
        )


def _summary(removed: Removed) -> str:
    reasons = ((removed.in_use, "in use"), (removed.pinned, "pinned"))
    left = [f"{number} {why}" for number, why in reasons if number]
    kept = f"; left: {', '.join(left)}" if left else ""
    return f"{_objects(removed.objects)} deleted, {format_size(removed.bytes)} freed{kept}"


def _objects(number: int) -> str:
    return f"{number:,} object" + ("" if number == 1 else "s")
