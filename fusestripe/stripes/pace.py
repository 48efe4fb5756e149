"""How fast the requests of one origin go, and when one of them is far behind its fellows."""

from __future__ import annotations

from collections import deque

__all__ = ["Pace"]

# Requests that are remembered, and how many must be before any is called late.
REMEMBERED = 64
KNOWN = 8
# One is late that takes so many times as long as its fellows for the same bytes, and so many seconds more.
FACTOR = 3.0
GRACE = 0.25
# The same where the origin has little else to do: at the end of a file, or while all else waits for this one.
IDLE_FACTOR = 1.5
IDLE_GRACE = 0.1
# The fellow it is compared with: all but a tenth were faster.
QUANTILE = 0.9


class Pace:
    """Of the requests that ended well. Seconds and bytes; pure."""

    def __init__(self) -> None:
        self._first_bytes: deque[float] = deque(maxlen=REMEMBERED)
        self._seconds_a_byte: deque[float] = deque(maxlen=REMEMBERED)
        self._longest = 1
        self._usual: tuple[float, float] | None = None

    def note(self, first_byte: float, whole: float, length: int) -> None:
        """A request for ``length`` bytes had its first after ``first_byte`` seconds, all after ``whole``."""
        self._longest = max(self._longest, length)
        if length > self._longest // 2:  # the short ones tell more of this machine than of the origin
            self._first_bytes.append(first_byte)
            self._seconds_a_byte.append((whole - first_byte) / length)
            self._usual = None

    def late_after(self, arrived: int, *, idle: bool = False) -> float | None:
        """Seconds after which a request with ``arrived`` bytes is late; None: not known yet.

        ``idle``: a second one would take nothing from others.
        """
        if len(self._first_bytes) < KNOWN:
            return None
        if self._usual is None:
            self._usual = _quantile(self._first_bytes), _quantile(self._seconds_a_byte)
        first_byte, a_byte = self._usual
        factor, grace = (IDLE_FACTOR, IDLE_GRACE) if idle else (FACTOR, GRACE)
        return factor * (first_byte + arrived * a_byte) + grace


def _quantile(values: deque[float]) -> float:
    return sorted(values)[int((len(values) - 1) * QUANTILE)]
