"""A reader of a mount in a process of its own, every one of whose calls has a deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socketpair
from types import TracebackType
from typing import Any

from tests.support import reader_process

__all__ = ["ENDED", "Hangs", "OtherReader"]

ENDED = reader_process.ENDED


class Hangs(AssertionError):
    """A call did not come back in time."""


class OtherReader:
    """``deadline``: seconds that a call may take. Calls are the methods of reader_process."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        ours, theirs = socketpair()
        with theirs:
            # By a path and with -S: it is there in a few hundredths of a second.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", reader_process.__file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._pipe = Connection(ours.detach())

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def call(self, name: str, *arguments: object) -> tuple[int, Any]:
        """The errno, or 0, and what the call gave."""
        self.begin(name, *arguments)
        return self.finish()

    def begin(self, name: str, *arguments: object) -> None:
        """Have the call made; ``finish`` has to follow before the next."""
        self._what = f"{name}{arguments}"
        self._pipe.send((name, arguments))

    @property
    def is_done(self) -> bool:
        """Whether what was begun has ended."""
        return self._pipe.poll(0)

    def finish(self) -> tuple[int, Any]:
        """See ``call``."""
        if not self._pipe.poll(self._deadline):
            raise Hangs(f"{self._what} did not end in {self._deadline} s: it waits in {self._waits_in()}")
        answer: tuple[int, Any] = self._pipe.recv()
        return answer

    def close(self) -> None:
        """kill -9, and reap it: all its files are closed then."""
        self._pipe.close()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(20)

    def _waits_in(self) -> str:
        with suppress(OSError):
            return Path(f"/proc/{self.pid}/wchan").read_text() or os.fspath(f"/proc/{self.pid}")
        return "an unknown place"

    def __enter__(self) -> OtherReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
