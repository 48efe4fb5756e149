"""Asking whether a file is still the version that was opened, once for everyone who wants to know."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Confirmation"]


class Confirmation:
    """``ask`` raises unless the version is still there; it is asked by one thread at a time.

    Invariant: ``confirm`` returns only after an ``ask`` that began after ``confirm`` was called. So bytes
    that had arrived before are of the version, if a file's content never goes back to an earlier one. Those
    that wait while one question is under way share the next.
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
        error: Exception | None = None
        try:
            self._ask()
        except Exception as failure:
            error = failure
            raise
        finally:
            with self._changed:
                self._is_asking = False
                self._answered = mine
                self._error = error
                self._changed.notify_all()
