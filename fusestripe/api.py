"""fusestripe from Python: mount a source for the length of a block, and fill the cache ahead of use."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Union

import msgspec

from fusestripe.checkpoints import Ranks, parse_ranks, ranks_of_node
from fusestripe.config import Settings, load
from fusestripe.config.values import from_text
from fusestripe.errors import ConfigError, FusestripeError, MountError
from fusestripe.kernel import mounting
from fusestripe.launch import launch, stop
from fusestripe.offline import plan_urls, prefetch_urls
from fusestripe.origins.registry import FACTORIES
from fusestripe.planning import Plan
from fusestripe.prefetcher import Pin, Report, outermost
from fusestripe.selection import Choice, Wanted
from fusestripe.telemetry.client import DaemonGone, request
from fusestripe.telemetry.rundir import socket_of
from fusestripe.telling import with_paths

__all__ = ["Choice", "PrefetchError", "Report", "bring", "mount", "pin_of", "plans", "prefetch", "ranks_of"]

log = logging.getLogger(__name__)

ENDED = ("done", "missing", "failed")
"""States of a file of which no other report comes."""
DAEMONS = 20
"""So many may serve one prefetch, one after the other."""

Value = Union[str, int, float, bool, "os.PathLike[str]", None]
"""What a setting may be given as: sizes in bytes or like "8MiB", times in seconds."""


class PrefetchError(FusestripeError):
    """Files could not be brought into the cache. ``reports`` are those of all, also of what is there."""

    def __init__(self, reports: Sequence[Report]) -> None:
        failed = [report for report in reports if report.state == "failed"]
        first, count = failed[0], f"{len(failed):,} of {len(reports):,}"
        what = "" if len(reports) == 1 else f"{count} files failed, the first of them: "
        super().__init__(f"{what}{first.failure}", mend=first.mend)
        self.reports = tuple(reports)


def mount(
    source: str | os.PathLike[str],
    mountpoint: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | None = None,
    **settings: Value,
) -> contextlib.AbstractContextManager[Path]:
    """Mount ``source`` (a URL, or a TOML file) at ``mountpoint`` for the block; gives the mountpoint.

    ``settings`` have the names that ``-o`` has: cache_dir, stripe_count, endpoint and so on. The cache stays.
    What is still open or mapped at the end of the block can be read as long as it is: the mountpoint is free
    at once, and the daemon ends when the last of it is let go, with this process at the latest.

    Raises ConfigError when it is called, and MountError when the block is entered. An exception of the block
    passes, whatever becomes of the mount.
    """
    return _mounted(_load(os.fspath(source), settings, config), os.fspath(mountpoint))


@contextlib.contextmanager
def _mounted(settings: Settings, mountpoint: str) -> Iterator[Path]:
    launch(settings, mountpoint)
    path = mounting.resolve(mountpoint)
    try:
        yield Path(path)
    except BaseException:
        try:
            stop(path, lazy=True)
        except MountError as error:
            log.warning("%s", error)  # no reason to hide what failed in the block
        raise
    stop(path, lazy=True)


def prefetch(
    *sources: str | os.PathLike[str],
    config: str | os.PathLike[str] | None = None,
    check: bool = False,
    pin: bool = False,
    pin_for: str | float | None = None,
    latest: bool = False,
    ranks: str | Sequence[int] | None = None,
    on_choice: Callable[[Choice], None] | None = None,
    **settings: Value,
) -> tuple[Report, ...]:
    """Bring the files at and below ``sources``, paths under a mount or URLs, into the cache.

    Returns a Report of each file when every byte of all is there and checked. With ``check`` nothing is
    fetched: the reports say which files are there, with ``state`` "done", and which are not, with "missing"
    and so many ``missing`` bytes. With ``pin`` what is done is not evicted until `fusestripe cache unpin`,
    with ``pin_for`` (seconds, or like "12h") for so long at the least.

    With ``latest`` each source is a directory of checkpoints, and of these the newest that is whole is taken:
    of torch.distributed.checkpoint, DeepSpeed, Megatron, safetensors or Hugging Face's Trainer. With
    ``ranks`` (global ranks, or text like "0-7", "0-7/64" where 64 is the number of all; "local": those of
    this node by the environment of torchrun or Slurm) only what these read is brought where names tell, as
    they do when as many processes read as wrote, each what it wrote; else everything. ``on_choice`` hears
    what was chosen, and why, before it is brought: ``choice.taken`` is the checkpoint.

    ``settings`` (see ``mount``) are those of URLs; a mount has its own. Not to be called from a trio task,
    but in a thread.

    Raises PrefetchError where files failed, when all others are there, and where there is no whole
    checkpoint; ConfigError; MountError where a path is in no mount or its daemon does not answer; and for a
    URL CacheError and OriginError where its cache or origin cannot be used at all.
    """
    ended: list[Report] = []

    def tell(told: Report | Choice) -> None:
        if isinstance(told, Choice):
            if on_choice is not None:
                on_choice(told)
        elif told.state in ENDED:
            ended.append(told)

    wanted = Wanted(check=check, pin=pin_of(pin, pin_for), latest=latest, ranks=ranks_of(ranks))
    bring([os.fspath(source) for source in sources], settings, tell, config=config, wanted=wanted)
    # A look fails for nothing that is missing; but there is nothing to look at where nothing was chosen.
    if any(report.state == "failed" for report in ended) and (not check or wanted.chooses):
        raise PrefetchError(ended)
    return tuple(ended)


def bring(
    sources: Sequence[str],
    settings: Mapping[str, object],
    tell: Callable[[Report | Choice], None],
    *,
    config: str | os.PathLike[str] | None,
    wanted: Wanted,
) -> None:
    """As ``prefetch``, with all Reports as they come; their paths are absolute, or URLs."""
    mounts, loaded = _sorted(sources, settings, config)
    for mountpoint, socket, paths in mounts:
        for told in _answers(mountpoint, socket, paths, wanted):
            tell(with_paths(told, partial(_in_mount, mountpoint)))
    if loaded:
        prefetch_urls(loaded, tell, wanted)


def _answers(mountpoint: str, socket: str, paths: Sequence[str], wanted: Wanted) -> Iterator[Report | Choice]:
    """What the daemon at ``socket`` tells; where it dies, what the one that follows tells of the rest."""
    ended: set[str] = set()
    chosen: set[Choice] = set()
    for left in reversed(range(DAEMONS)):
        try:
            for answer in request(socket, "prefetch", paths=paths, wanted=wanted):
                if "taken" in answer:
                    choice = msgspec.convert(answer, Choice)
                    if choice not in chosen:
                        yield choice
                    chosen.add(choice)
                    continue
                report = msgspec.convert(answer, Report)
                if report.path not in ended:
                    yield report
                if report.state in ENDED:
                    ended.add(report.path)
        except DaemonGone:
            if not left or mounting.is_dead(mountpoint):
                raise
        else:
            return


def plans(
    sources: Sequence[str],
    settings: Mapping[str, object],
    *,
    config: str | os.PathLike[str] | None,
    wanted: Wanted,
) -> list[Plan]:
    """What ``bring`` would do: a Plan for each mount, and one for all URLs together. Raises as it does."""
    mounts, loaded = _sorted(sources, settings, config)
    found = []
    for mountpoint, socket, paths in mounts:
        for answer in request(socket, "plan", paths=paths, wanted=wanted):
            found.append(with_paths(msgspec.convert(answer, Plan), partial(_in_mount, mountpoint)))
    return [*found, plan_urls(loaded, wanted)] if loaded else found


def pin_of(pin: bool, pin_for: str | float | None) -> Pin | None:
    """The pin that is asked for. Raises ConfigError where ``pin_for`` is no length of time, or zero."""
    if pin_for is None:
        return Pin() if pin else None
    seconds = from_text("seconds", str(pin_for), "")
    assert isinstance(seconds, float)
    if seconds <= 0:
        raise ConfigError("a pin for no time is none", mend='write it like "12h"')
    return Pin(time.time() + seconds)


def ranks_of(ranks: str | Sequence[int] | None) -> Ranks | None:
    """The ranks that are meant; "local" are those of this node. Raises ConfigError."""
    if ranks is None:
        return None
    if ranks == "local":
        return ranks_of_node(os.environ)
    return parse_ranks(ranks if isinstance(ranks, str) else ",".join(map(str, ranks)))


def _in_mount(mountpoint: str, path: str) -> str:
    return os.path.join(mountpoint, path) if path else mountpoint


def _sorted(
    sources: Sequence[str], settings: Mapping[str, object], config: str | os.PathLike[str] | None
) -> tuple[list[tuple[str, str, list[str]]], list[Settings]]:
    """For each mount its mountpoint, socket and the paths in it that are meant; the settings of each URL."""
    urls = _outermost([source for source in sources if "://" in source])
    by_mount: dict[tuple[str, str], list[str]] = {}
    for path in (source for source in sources if "://" not in source):
        found = mounting.mount_above(path)
        if found is None:
            raise MountError(f"{path} is in no fusestripe mount", mend="mount it first, or name a URL")
        by_mount.setdefault((found[0].mountpoint, socket_of(found[0])), []).append(found[1])
    said = [*(name for name, value in settings.items() if value is not None), *(["config"] if config else [])]
    if by_mount and not urls and said:
        raise ConfigError(f"a mount has its own settings, {said[0]} is for URLs", mend="leave it out")
    loaded = [_load(url, settings, config) for url in urls]
    return [(mountpoint, socket, paths) for (mountpoint, socket), paths in by_mount.items()], loaded


def _outermost(urls: Sequence[str]) -> list[str]:
    """Those that lie in none of the others, each once."""
    written = {url.rstrip("/"): url for url in urls}
    return [written[url] for url in outermost(written)]


def _load(source: str, settings: Mapping[str, object], config: str | os.PathLike[str] | None) -> Settings:
    return load(source, settings, config=None if config is None else os.fspath(config), schemes=FACTORIES)
