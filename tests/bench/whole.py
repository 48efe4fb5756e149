"""A file that is whole in a mount's cache, beside the same bytes as a plain file on the same disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fusestripe import prefetch
from tests.bench.case import Tell
from tests.bench.lab import Lab
from tests.bench.peers import Fusestripe
from tests.bench.reading import drop_page_cache, touch_every_page
from tests.support.mounted import until

__all__ = ["Whole", "whole"]

SETTLED_SECONDS = 120.0


class Whole(msgspec.Struct, frozen=True):
    """``shown`` in the mount and ``plain`` beside its cache: the same ``size`` bytes."""

    mount: Fusestripe
    shown: Path
    plain: Path
    size: int

    def heat(self) -> None:
        """Have the kernel hold every page of both, in the same way.

        Pages that were written lie in larger folios than those that were read ahead, and are mapped faster;
        one side was written past the page cache.
        """
        drop_page_cache()
        touch_every_page(self.mount.cache)
        touch_every_page(self.plain.parent)

    def notes(self) -> tuple[str, ...]:
        """What must be known of the mount to read a figure."""
        why = self.mount.why_no_passthrough()
        return (f"passthrough is off: {why}",) if why else ()


@contextmanager
def whole(lab: Lab, write: Callable[[Path], object], tell: Tell) -> Iterator[Whole]:
    """What ``write`` writes to the path it is given, for the time of the block."""
    with lab.scratch() as directory:
        plain = directory / "plain" / "data.bin"
        plain.parent.mkdir()
        tell("writing a file")
        write(plain)
        tell("storing it")
        stored = lab.store_file(plain)
        try:
            with Fusestripe(lab.server.endpoint, directory) as mount:
                tell("filling the cache")
                _fill(mount, mount.path / stored.key)
                os.sync()  # what is still to be written would slow whoever is measured first
                yield Whole(mount, mount.path / stored.key, plain, stored.size)
        finally:
            lab.remove(stored)


def _fill(mount: Fusestripe, path: Path) -> None:
    prefetch(path)
    until(lambda: bool(mount.daemon.status()["open_files"] == 0), SETTLED_SECONDS)
