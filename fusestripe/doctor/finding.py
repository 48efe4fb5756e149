"""What is told of one thing."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Finding", "Level"]

Level = Literal["ok", "warning", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """``what`` was looked at, how it is in one line, and the mend where it is not well.

    "fail": a mount does not come about; "warning": it does, without some speed or a feature.
    """

    what: str
    level: Level
    text: str
    mend: str = ""
