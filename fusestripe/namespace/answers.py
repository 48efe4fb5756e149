"""Answers kept until their time is over."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import trio

__all__ = ["KEPT", "Answers"]

# Answers kept before those past their time are looked for and thrown out.
KEPT = 4096


class _Answer(Protocol):
    @property
    def expires(self) -> float:
        """Until when (trio.current_time()) it may be given."""
        ...


T = TypeVar("T", bound=_Answer)


class Answers(Generic[T]):
    """The latest answer about each path. One past its time is not given.

    They are swept when there are twice as many as the last sweep left, so that ten thousand fresh answers
    do not cost ten thousand looks at each other.
    """

    def __init__(self) -> None:
        self._kept: dict[str, T] = {}
        self._sweep_at = KEPT

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, path: str) -> T | None:
        """The answer about ``path``, if one may still be given."""
        answer = self._kept.get(path)
        return answer if answer is not None and answer.expires > trio.current_time() else None

    def keep(self, path: str, answer: T) -> None:
        """From now on this is the answer about ``path``."""
        self._kept[path] = answer
        if len(self._kept) >= self._sweep_at:
            self.sweep()

    def sweep(self) -> None:
        """Throw out what is past its time."""
        now = trio.current_time()
        self._kept = {path: kept for path, kept in self._kept.items() if kept.expires > now}
        self._sweep_at = max(KEPT, 2 * len(self._kept))

    def forget(self, path: str) -> None:
        """There is no answer about ``path`` any more."""
        self._kept.pop(path, None)
