"""Which processes keep a mount busy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

import psutil

from fusestripe.kernel.within import within

__all__ = ["holders", "shell_is_in"]

PATIENCE_SECONDS = 2.0
"""How long a search for holders is waited for."""


def holders(mountpoint: str, seconds: float = PATIENCE_SECONDS) -> list[str]:
    """Processes that work in ``mountpoint``, or hold a file of it open or mapped, like "python (4711)".

    Best effort: those this user may look at, as far as ``seconds`` reach.
    """
    found: list[str] = []

    def search() -> None:
        for process in psutil.process_iter():
            try:
                if any(_lies_in(path, mountpoint) for path in _paths_of(process)):
                    is_own = process.pid == os.getpid()
                    found.append("this process" if is_own else f"{process.name()} ({process.pid})")
            except (psutil.Error, OSError):
                continue  # gone meanwhile, or another user's

    within(seconds, search)
    return list(found)


def shell_is_in(mountpoint: str) -> bool:
    """Whether a process that this one descends from works in ``mountpoint``, and so is not to be ended."""
    for process in psutil.Process().parents():
        with suppress(psutil.Error, OSError):
            if _lies_in(process.cwd(), mountpoint):
                return True
    return False


def _lies_in(path: str, mountpoint: str) -> bool:
    return path == mountpoint or path.startswith(mountpoint.rstrip("/") + "/")


def _paths_of(process: psutil.Process) -> Iterator[str]:
    """What ``process`` holds: torch.load(mmap=True) keeps a map and closes its descriptor."""
    yield process.cwd()
    yield from (file.path for file in process.open_files())
    yield from (region.path for region in process.memory_maps(grouped=True))
