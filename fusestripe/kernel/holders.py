"""Which processes keep a mount busy."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import psutil

from fusestripe.kernel.within import within

__all__ = ["Holders", "holders", "shell_is_in"]

PATIENCE_SECONDS = 2.0
"""How long a search for holders is waited for."""


class Holders(msgspec.Struct, frozen=True):
    """``names`` of processes, like "python (4711)"; ``all_seen``: in ``seconds`` every one was looked at."""

    names: tuple[str, ...]
    all_seen: bool
    seconds: float

    def told(self, mountpoint: str) -> str:
        """That ``mountpoint`` is in use, and by whom as far as is known."""
        names = ", ".join(self.names)
        if self.all_seen:
            return f"{mountpoint} is in use by {names or 'a process that cannot be seen from here'}"
        who = f" by {names} and maybe others" if names else ""
        return f"{mountpoint} is in use{who} ({self.seconds:g} s were too short to look at every process)"

    def mend(self, mountpoint: str) -> str:
        """What to do about it."""
        if shell_is_in(mountpoint):
            return "your shell is in it: cd out first"
        if self.names:
            return "end them first"
        if not self.all_seen:
            return f"fuser -vm {mountpoint} looks at all"
        return "look for it in other containers" if os.geteuid() == 0 else "look for it as root"


def holders(mountpoint: str, seconds: float = PATIENCE_SECONDS) -> Holders:
    """Processes that work in ``mountpoint``, or hold a file of it open or mapped.

    Best effort: those this user may look at, as far as ``seconds`` reach.
    """
    found: list[str] = []
    ended = threading.Event()

    def search() -> None:
        for process in psutil.process_iter():
            try:
                if any(_lies_in(path, mountpoint) for path in _paths_of(process)):
                    is_own = process.pid == os.getpid()
                    found.append("this process" if is_own else f"{process.name()} ({process.pid})")
            except (psutil.Error, OSError):
                continue  # gone meanwhile, or another user's
        ended.set()

    within(seconds, search)
    all_seen = ended.is_set()
    return Holders(tuple(found), all_seen, seconds)


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
    """What ``process`` holds: torch.load(mmap=True) keeps a map and closes its descriptor.

    By the names in /proc alone (proc(5)): nothing in the mount is touched, and no page table is walked, as
    for smaps, which takes a second for a large process.
    """
    place = f"/proc/{process.pid}"
    yield os.readlink(f"{place}/cwd")
    for name in os.listdir(f"{place}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            yield os.readlink(f"{place}/fd/{name}")
    with open(f"{place}/maps", encoding="utf-8", errors="surrogateescape", newline="\n") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6:
                yield fields[5].replace("\\012", "\n")  # the one character that the kernel escapes
