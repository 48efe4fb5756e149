"""A disk that stops to answer, and answers again, under the cache of the process that runs the test."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

# What a cache asks of its disk that a disk can keep waiting; preadv with RWF_NOWAIT is none of it.
CALLS = ("open", "pwrite", "preadv", "utime", "fdatasync")


class HungDisk:
    """From ``hang`` to ``answer``, system calls (of ``CALLS``) wait in the threads that make them.

    A read that waited brings garbage, as late as it comes: memory that is used again would show it. The event
    loop must not be among those who wait; ``loop_waited`` says whether it would have been.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._answers = threading.Event()
        self._answers.set()
        self._hung: tuple[str, ...] = ()
        self._count = threading.Condition()
        self._main = threading.current_thread()
        self.waiting = 0
        self.loop_waited = False
        for name in CALLS:
            monkeypatch.setattr(os, name, self._slowed(name, getattr(os, name)))

    def hang(self, *calls: str) -> None:
        self._hung = calls or CALLS
        self._answers.clear()

    def answer(self) -> None:
        self._answers.set()

    def _slowed(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nowait = name == "preadv" and len(args) > 3 and args[3] & os.RWF_NOWAIT
            if self._answers.is_set() or nowait or name not in self._hung:
                return real(*args, **kwargs)
            if threading.current_thread() is self._main:
                self.loop_waited = True
                return real(*args, **kwargs)
            with self._count:
                self.waiting += 1
            assert self._answers.wait(60)
            with self._count:
                self.waiting -= 1
            result = real(*args, **kwargs)
            if name == "preadv":
                for view in args[1]:
                    view[:] = b"\xee" * len(view)
            return result

        return call
