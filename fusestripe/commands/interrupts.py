"""Ctrl-C while something waits that cannot be told to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["interruptible"]

T = TypeVar("T")


def interruptible(call: Callable[[], T]) -> T:
    """What ``call`` returns or raises, from a thread of its own; KeyboardInterrupt at once, whatever it does.

    It goes on in its thread then, until the process ends.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
