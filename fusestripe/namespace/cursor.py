"""Where someone who lists a directory has come to."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from fusestripe.namespace.tree import Listing
from fusestripe.origins.base import Entry

__all__ = ["Cursor"]


class Cursor:
    """A place among the entries of ``path``, which stay as they were when it was made; no copy of them.

    ``number`` counts them from 0, ``entry`` is None at the end. Going on is cheap; going back (seekdir(3))
    takes a step for each entry before the place.
    """

    def __init__(self, path: str, listing: Listing) -> None:
        self.path = path
        self.expires = listing.expires
        self._entries = listing.entries
        self._go(0)

    def _go(self, number: int) -> None:
        self._rest: Iterator[Entry] = islice(self._entries.values(), number, None)
        self.number = number
        self.entry = next(self._rest, None)

    def seek(self, number: int) -> None:
        """Be at entry ``number``."""
        if number != self.number:
            self._go(number)

    def step(self) -> None:
        """Be at the next entry."""
        self.number += 1
        self.entry = next(self._rest, None)
