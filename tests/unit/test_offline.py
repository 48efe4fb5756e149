"""A prefetch of URLs, without a mount, leaves nothing open in the process that asked for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fusestripe.config import Settings, load
from fusestripe.errors import FusestripeError
from fusestripe.offline import plan_urls, prefetch_urls
from fusestripe.prefetcher import Report
from fusestripe.selection import Choice, Wanted

FILES = ("one", "two")


@pytest.fixture
def settings(tmp_path: Path) -> Callable[[str], Settings]:
    """Those for the file of that name, some of which are there."""
    source = tmp_path / "source"
    source.mkdir()
    for name in FILES:
        (source / name).write_bytes(os.urandom(10_000))

    def of(name: str) -> Settings:
        return load(f"file://{source / name}", {"cache_dir": str(tmp_path / "cache")}, environ={})

    return of


def descriptors() -> set[str]:
    """What this process has open."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
        except FileNotFoundError:  # of the listing itself
            continue
    return found


def test_what_is_brought(settings: Callable[[str], Settings]) -> None:
    reports: list[Report | Choice] = []
    before = descriptors()
    prefetch_urls([settings(name) for name in FILES], reports.append, Wanted())
    done = [report.path for report in reports if isinstance(report, Report) and report.state == "done"]
    assert sorted(Path(path).name for path in done) == sorted(FILES)
    assert plan_urls([settings(name) for name in FILES], Wanted()).cached == 20_000
    assert not descriptors() - before


def test_an_origin_that_is_not_there(settings: Callable[[str], Settings]) -> None:
    before = descriptors()
    with pytest.raises(FusestripeError):
        plan_urls([settings("one"), settings("missing/file"), settings("two")], Wanted())
    assert not descriptors() - before


def test_a_cache_that_cannot_be_used(settings: Callable[[str], Settings], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    before = descriptors()
    with pytest.raises(FusestripeError):
        prefetch_urls([settings(name) for name in FILES], print, Wanted())
    assert not descriptors() - before
