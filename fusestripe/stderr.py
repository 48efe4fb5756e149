"""Lines on stderr: with the time for files and terminals, with their priority for systemd's journal.

Python's own library alone: a keeper, which has little to fail, writes through it too.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress

__all__ = ["goes_to_journal", "line_handler", "priority_of", "with_priority"]

_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# The journal has the time, and knows who writes.
_BARE = "%(name)s: %(message)s"
# syslog(3) has eight levels; the first from the top that a record's level reaches is its own.
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG = 7


def goes_to_journal(environ: Mapping[str, str] = os.environ, descriptor: int = 2) -> bool:
    """Whether ``descriptor`` is the stream to the journal that systemd opened for this service.

    JOURNAL_STREAM names its device and inode (systemd.exec(5)); a child whose stderr was sent elsewhere still
    has the variable.
    """
    with suppress(OSError):
        found = os.fstat(descriptor)
        return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
    return False


def priority_of(level: int) -> int:
    """The level of syslog(3), which the journal's PRIORITY is, of a level of logging."""
    return next((priority for least, priority in _PRIORITIES if level >= least), _DEBUG)


def with_priority(text: str, level: int) -> str:
    """``text`` as systemd reads levels from a stream: each line begins with <N> (sd-daemon(3))."""
    return "\n".join(f"<{priority_of(level)}>{line}" for line in text.split("\n"))


def line_handler(environ: Mapping[str, str] = os.environ) -> logging.Handler:
    """Writes records to stderr, as befits what that is."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Prefixed(_BARE) if goes_to_journal(environ) else logging.Formatter(_LINE))
    return handler


class _Prefixed(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return with_priority(super().format(record), record.levelno)
