"""`fusestripe cache`: look at a cache directory and tidy it, with or without a daemon that uses it."""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fusestripe.cache.catalogue import CacheCatalogue, CacheEntry, Removed, Verified
from fusestripe.commands.bars import byte_columns
from fusestripe.commands.completing import urls as url_schemes
from fusestripe.commands.options import config_option, json_option, print_json, setting_options
from fusestripe.commands.status import ANY_WIDTH, format_duration, shorten
from fusestripe.commands.usage import NamedCommands
from fusestripe.config import load, path_in
from fusestripe.errors import CacheError
from fusestripe.units import ObjectVersion, format_size, printable

__all__ = ["cache"]

FOR_EVER = 253_402_300_799.0
"""The last second of the year 9999: JSON has no number for a pin without an end."""


@click.group(cls=NamedCommands, epilog="Example: fusestripe cache ls --cache-dir /nvme/fusestripe")
def cache() -> None:
    """List, verify, evict, clear or unpin what is in the cache."""


@cache.command(name="ls", epilog="Example: fusestripe cache ls --json")
@setting_options("cache_dir")
@config_option
@json_option
def list_(cache_dir: str | None, config: str | None, as_json: bool) -> None:
    """List the file versions in the cache, and how much of each.

    The JSON is a list; sizes in bytes, times in seconds since the epoch. "present" is how much of the file is
    there, "disk" the room it takes; "pinned_until" is null where "pinned" is false, and the end of the year
    9999 for a pin without an end.
    """
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
    names = _distinct_names(entries)
    for entry, name in zip(entries, names, strict=True):
        marks = [*(["in use"] if entry.in_use else []), *([_pin(entry)] if entry.pinned else [])]
        ago = f"{format_duration(max(0, time.time() - entry.last_use))} ago"
        size = format_size(entry.version.size)
        table.add_row(Text(name), size, _share(entry), ago, ", ".join(marks))
    console = Console()
    if not console.is_terminal:
        console.width = ANY_WIDTH
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
    bad = good = 0
    shown: list[dict[str, object]] = []
    with _open(cache_dir, config) as catalogue:
        entries = catalogue.entries()
        for checked, say in _verified(catalogue, entries):
            bad += checked.bad_stripes
            good += checked.good_bytes
            found = {"good_bytes": checked.good_bytes, "bad_stripes": checked.bad_stripes}
            shown.append(_shown(checked.entry) | found)
            if not as_json:
                verdict = f"{checked.bad_stripes} bad, cleared" if checked.bad_stripes else "good"
                say(f"{_name(checked.entry)}: {format_size(checked.good_bytes)} {verdict}")
    stripes = "1 bad stripe" if bad == 1 else f"{bad:,} bad stripes"
    if as_json:
        print_json(shown)
    elif entries:
        click.echo(f"{catalogue.directory}: {_objects(len(entries))}, {format_size(good)} good, {stripes}")
    else:
        click.echo(f"{catalogue.directory}: nothing is in the cache")
    if bad:
        raise CacheError(f"{stripes} cleared", mend="what is missing is fetched again; look at the disk")


@cache.command(epilog="Example: fusestripe cache evict s3://bucket/checkpoints/step-100")
@click.argument("urls", metavar="URL...", nargs=-1, required=True, shell_complete=url_schemes)
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
@click.argument("urls", metavar="[URL]...", nargs=-1, shell_complete=url_schemes)
@setting_options("cache_dir")
@config_option
@json_option
def unpin(urls: tuple[str, ...], cache_dir: str | None, config: str | None, as_json: bool) -> None:
    """Let the files at and below each URL, as `cache ls` shows them, be evicted again.

    Without a URL all of them. They were pinned by `prefetch --pin`, or for a time by `--pin-for`.
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
    return f"{store}/{printable(entry.version.path)}{asks}{where}"


def _distinct_names(entries: Sequence[CacheEntry]) -> list[str]:
    """The name of each; where several have one, with what they differ in: version, or size of the stripes."""
    alike: dict[str, list[CacheEntry]] = defaultdict(list)
    for entry in entries:
        alike[_name(entry)].append(entry)
    names = []
    for entry in entries:
        name = _name(entry)
        others = alike[name]
        apart = [entry.version.tag] if len({one.version.tag for one in others}) > 1 else []
        if len({one.stripe_size for one in others}) > 1:
            apart.append(f"stripes of {format_size(entry.stripe_size)}")
        names.append(f"{name} [{', '.join(apart)}]" if apart else name)
    return names


def _verified(
    catalogue: CacheCatalogue, entries: Sequence[CacheEntry]
) -> Iterator[tuple[Verified, Callable[[str], None]]]:
    """What of each is good, and what prints a line about it: on a terminal above the bar for all of them."""
    console = Console(stderr=True)
    with Progress(
        *byte_columns(),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
        redirect_stdout=False,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("", total=sum(entry.present_bytes for entry in entries))

        def tell(entry: CacheEntry, length: int) -> None:
            name = shorten(printable(entry.version.path), max(16, console.width // 3))
            progress.update(task, description=name, advance=length)

        def say(line: str) -> None:
            if console.is_terminal and sys.stdout.isatty():
                progress.console.print(Text(line), soft_wrap=True)
            else:
                click.echo(line)

        for checked in catalogue.verify(entries, tell):
            yield checked, say


def _shown(entry: CacheEntry) -> dict[str, object]:
    """For JSON."""
    return {
        "url": _name(entry),
        "size": entry.version.size,
        "tag": entry.version.tag,
        "present": entry.present_bytes,
        "disk": entry.disk_bytes,
        "stripe_size": entry.stripe_size,
        "last_use": entry.last_use,
        "pinned": entry.pinned,
        "pinned_until": _end_of_pin(entry),
        "in_use": entry.in_use,
    }


def _pin(entry: CacheEntry) -> str:
    """That it is pinned, and until when, by this machine's clock."""
    if entry.pinned_until >= FOR_EVER:
        return "pinned"
    return time.strftime("pinned until %Y-%m-%d %H:%M", time.localtime(entry.pinned_until))


def _end_of_pin(entry: CacheEntry) -> float | None:
    if not entry.pinned:
        return None
    return FOR_EVER if math.isinf(entry.pinned_until) else entry.pinned_until


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
