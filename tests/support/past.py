"""What an origin has held when: the plain dictionary that a mount is compared with."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

__all__ = ["Past"]


class _Span(msgspec.Struct, frozen=True):
    """``content`` (None: nothing) may have been there from ``begin`` to ``end``, by time.monotonic()."""

    content: bytes | None
    begin: float
    end: float


class Past:
    """Names and what was there. Each change takes time: meanwhile the old and the new may be seen."""

    def __init__(self) -> None:
        self._spans: dict[str, list[_Span]] = {}

    def now(self) -> dict[str, bytes]:
        """Names that hold something, and what."""
        latest = {name: spans[-1].content for name, spans in self._spans.items()}
        return {name: content for name, content in latest.items() if content is not None}

    def change(self, name: str, content: bytes | None, begin: float, end: float) -> None:
        """``name`` was given ``content``, or deleted, between ``begin`` and ``end``."""
        spans = self._of(name)
        spans[-1] = msgspec.structs.replace(spans[-1], end=end)
        spans.append(_Span(content, begin, math.inf))

    def possible(self, name: str, since: float, until: float = math.inf) -> list[bytes | None]:
        """What ``name`` held at one time or another between ``since`` and ``until``."""
        return [span.content for span in self._of(name) if span.begin <= until and span.end >= since]

    def contents(self, name: str) -> list[bytes]:
        """All that ``name`` ever held, the oldest first."""
        return [span.content for span in self._of(name) if span.content is not None]

    def directory(self, names: Iterable[str], since: float, until: float) -> tuple[set[str], set[str]]:
        """Which of ``names`` must be in a listing made between ``since`` and ``until``, and which may be."""
        held = {name: self.possible(name, since, until) for name in names}
        must = {name for name, contents in held.items() if None not in contents}
        may = {name for name, contents in held.items() if any(content is not None for content in contents)}
        return must, may

    def _of(self, name: str) -> list[_Span]:
        return self._spans.setdefault(name, [_Span(None, -math.inf, math.inf)])
