"""Where someone who lists a directory has come to."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from fusestripe.namespace.tree import Listing
from fusestripe.origins.base import Entry

__all__ = ["Cursor"]


class Cursor:
    """A place among the entries of ``path``, which stay as they were when it was made; no copy of them.

    ``number`` counts them from 0, ``entry`` is None at the end, ``last`` is the name before it. Going on is
    cheap; going back (seekdir(3)) takes a step for each entry before the place.

    ``number`` and ``last``: somebody has come so far in another listing of the same directory, and has seen
    all names up to ``last``. What follows it has the numbers from there on.
    """

    def __init__(self, path: str, listing: Listing, number: int = 0, last: str = "") -> None:
        self.path = path
        self.expires = listing.expires
        self._entries = listing.entries
        before = sum(1 for name in self._entries if name <= last) if last else number
        self._shift = number - before
        self.last = ""
        self._go(number)
        self.last = last or self.last

    def _go(self, number: int) -> None:
        if number == 0:  # from the beginning: what was seen in another listing counts no more
            self._shift = 0
        index = max(0, number - self._shift)
        self._rest: Iterator[Entry] = islice(self._entries.values(), max(0, index - 1), None)
        before = next(self._rest, None) if index else None
        self.last = before.name if before is not None else ""
        self.number = number
        self.entry = next(self._rest, None)

    def seek(self, number: int) -> None:
        """Be at entry ``number``."""
        if number != self.number:
            self._go(number)

    def step(self) -> None:
        """Be at the next entry."""
        self.number += 1
        self.last = self.entry.name if self.entry is not None else self.last
        self.entry = next(self._rest, None)
