"""Bytes of a store that cannot be asked for one version: they count once the path was asked after them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from fusestripe.errors import BadAnswer
from fusestripe.origins.base import Progress
from fusestripe.units import MIB

__all__ = ["Confirmation", "fill"]

FIRST_PIECE = MIB
"""Bytes after which a range is confirmed for the first time; later ones are each as long as all before."""
CONFIRM_SECONDS = 0.05
"""Bytes that come slowly are confirmed this often, since readers wait for them."""


class Confirmation:
    """``ask`` raises unless the version is still there; it is asked by one thread at a time.

    Invariant: ``confirm`` returns only after an ``ask`` that began after ``confirm`` was called. So bytes
    that had arrived before are of the version, if a file's content never goes back to an earlier one. Those
    that wait while one question is under way share the next. What ends an ``ask`` without being an Exception
    is no answer: another one asks.
    """

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._changed = threading.Condition()
        self._begun = 0
        self._answered = 0
        self._is_asking = False
        self._error: Exception | None = None

    def confirm(self) -> None:
        """Return where the version is still there; raise what ``ask`` raised."""
        with self._changed:
            wanted = self._begun + 1
            while self._is_asking and self._answered < wanted:
                self._changed.wait()
            if self._answered >= wanted:
                if self._error is not None:
                    raise self._error
                return
            self._is_asking = True
            self._begun += 1
            mine = self._begun
        is_answered, error = False, None
        try:
            self._ask()
            is_answered = True
        except Exception as failure:
            is_answered, error = True, failure
            raise
        finally:
            with self._changed:
                self._is_asking = False
                if is_answered:
                    self._answered, self._error = mine, error
                self._changed.notify_all()


def fill(
    chunks: Iterable[bytes], into: memoryview, confirm: Callable[[], None], progress: Progress, what: str
) -> None:
    """Put ``chunks`` into ``into`` in order, and tell ``progress`` once ``confirm`` was asked.

    Raises BadAnswer, naming ``what``, where they are more or fewer than there is room for.
    """
    done = told = 0
    due = time.monotonic() + CONFIRM_SECONDS
    for chunk in chunks:
        count = len(chunk)
        if done + count > len(into):
            raise BadAnswer(f"{what}: more bytes came than were asked for")
        into[done : done + count] = chunk
        done += count
        if done - told >= max(FIRST_PIECE, told) or time.monotonic() > due:
            confirm()
            told = done
            progress(told)
            due = time.monotonic() + CONFIRM_SECONDS
    if done != len(into):
        confirm()
        raise BadAnswer(f"{what}: {done} of {len(into)} bytes came")
    if done > told:
        confirm()
        progress(done)
