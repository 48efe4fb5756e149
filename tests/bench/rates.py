"""How fast bytes came once the beginning was over, from notes of when how many had come. Pure."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Sequence
from typing import TypeAlias

__all__ = ["Marks", "rate_from"]

Marks: TypeAlias = Sequence[tuple[float, int]]
"""(seconds since the beginning, bytes so far), in order."""

_SAMPLES = 500


def rate_from(marks: Marks, since: float) -> float:
    """Bytes a second from second ``since`` to the last mark: the slope of the line that fits best.

    Stripes that are asked for together come together, so that the bytes are a stair. Where on it the two ends
    lie makes a difference of a step to what came between them, and to the slope only one of a step over the
    number of steps. Raises ValueError where nothing came in that time.
    """
    seconds = [moment for moment, _ in marks]
    if not marks or seconds[-1] <= since or marks[-1][1] == _at(marks, seconds, since):
        raise ValueError(f"no bytes came after second {since}")
    span = seconds[-1] - since
    moments = [since + span * number / _SAMPLES for number in range(_SAMPLES + 1)]
    came = [_at(marks, seconds, moment) for moment in moments]
    return statistics.linear_regression(moments, came).slope


def _at(marks: Marks, seconds: Sequence[float], moment: float) -> int:
    place = bisect.bisect_right(seconds, moment)
    return marks[place - 1][1] if place else 0
