"""Looking at what may hang: a mount whose daemon is silent, a disk that does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["within"]


def within(seconds: float, call: Callable[[], None]) -> None:
    """Wait for ``call`` that long. One that is held up longer goes on alone: it cannot be stopped."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
