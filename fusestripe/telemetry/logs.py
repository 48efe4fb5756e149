"""How a daemon's log is written: lines to files and terminals, entries with fields to systemd's journal."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from logging_journald import JournaldTransport

from fusestripe.stderr import goes_to_journal, line_handler, priority_of

__all__ = ["IDENTIFIER", "JOURNAL", "set_up_logs"]

IDENTIFIER = "fusestripe"
"""The journal's SYSLOG_IDENTIFIER: `journalctl -t fusestripe` shows all mounts of a machine."""
JOURNAL = "/run/systemd/journal/socket"
"""Where the journal takes entries with fields (systemd.io, Native Journal Protocol)."""


def set_up_logs(
    mountpoint: str, level: str, *, environ: Mapping[str, str] = os.environ, journal: str = JOURNAL
) -> None:
    """Have this process's loggers write to stderr as befits what that is; ours from ``level`` on.

    To the journal each entry says PRIORITY, SYSLOG_IDENTIFIER, LOGGER, CODE_FILE, CODE_FUNC, CODE_LINE and
    FUSESTRIPE_MOUNTPOINT, which is ``mountpoint``. Where it takes none, lines go to stderr all the same.
    """
    handler = line_handler(environ)
    if goes_to_journal(environ):
        handler = _JournalHandler(JournaldTransport(journal, connected=False), mountpoint, handler)
    logging.basicConfig(handlers=[handler])
    logging.getLogger("fusestripe").setLevel(level.upper())


class _JournalHandler(logging.Handler):
    """Each record is one entry; what the journal does not take goes to ``fallback``."""

    def __init__(self, transport: JournaldTransport, mountpoint: str, fallback: logging.Handler) -> None:
        super().__init__()
        self._transport = transport
        self._mountpoint = _encodable(mountpoint)
        self._fallback = fallback
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        try:
            self._transport.send(self._fields(record))
        except OSError:
            self._fallback.handle(record)
        except Exception:
            self.handleError(record)

    def _fields(self, record: logging.LogRecord) -> list[tuple[str, str | int]]:
        return [
            ("MESSAGE", _encodable(self.format(record))),
            ("PRIORITY", priority_of(record.levelno)),
            ("SYSLOG_IDENTIFIER", IDENTIFIER),
            ("FUSESTRIPE_MOUNTPOINT", self._mountpoint),
            ("LOGGER", record.name),
            ("CODE_FILE", record.pathname),
            ("CODE_FUNC", record.funcName or ""),
            ("CODE_LINE", record.lineno),
        ]


def _encodable(text: str) -> str:
    """A name that is not UTF-8 is shown as on a terminal."""
    return text.encode("utf-8", "backslashreplace").decode()
