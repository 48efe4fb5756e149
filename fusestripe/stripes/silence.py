"""How long an origin has been silent: for people who wonder what a reader waits for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import trio

__all__ = ["LOUD_SECONDS", "Silence"]

log = logging.getLogger(__name__)

LOUD_SECONDS = 10.0
"""A silence that lasts so long is told in the log. Stores that are well answer within a few."""


class Silence:
    """That of one origin, by its ``url``. On the event loop, but for ``broken``."""

    def __init__(self, url: str) -> None:
        self.why = ""
        """What a request failed with since the last byte; "" where none did."""
        self._url = url
        self._clock = trio.lowlevel.current_clock()
        self._asked = 0
        self._since = 0.0
        self._told = False

    @property
    def seconds(self) -> float:
        """Since the last byte, or since the first request after it; 0 where nothing is asked for."""
        return max(0.0, self._clock.current_time() - self._since) if self._asked else 0.0

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Something is asked for in the block."""
        if not self._asked and not self._told:
            self._since = self._clock.current_time()
            self.why = ""
        self._asked += 1
        try:
            yield
        finally:
            self._asked -= 1

    def broken(self) -> None:
        """Bytes have just come. From any thread."""
        self._since = self._clock.current_time()
        self.why = ""

    def failed(self, error: Exception) -> None:
        """A request has failed, and may be made again."""
        self.why = str(error)

    def look(self) -> None:
        """Tell the log where a silence has become long, or is over; to be called now and then."""
        seconds = self.seconds
        if seconds >= LOUD_SECONDS and not self._told:
            self._told = True
            because = f": {self.why}" if self.why else ""
            log.warning("%s has sent nothing for %.0f s%s", self._url, seconds, because)
        elif seconds < LOUD_SECONDS and self._told:
            self._told = False
            self.why = ""
            log.info(
                "%s: %s", self._url, "bytes come again" if self._asked else "nobody waits for it any more"
            )
