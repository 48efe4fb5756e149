"""A shell at a terminal, and a person who types."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

__all__ = ["Terminal"]

SECONDS = 30.0


class Terminal:
    """``command`` at a terminal of its own, in ``directory``. Killed at the end of the block."""

    def __init__(self, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            try:
                os.chdir(directory)
                os.execvpe(command[0], list(command), {**environment, "TERM": "dumb"})
            finally:
                os._exit(127)
        self._seen = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._terminal)

    def type(self, keys: str) -> None:
        """Press these keys; what was shown before counts no more."""
        self._seen = ""
        os.write(self._terminal, keys.encode())

    def expect(self, text: str) -> None:
        """Wait until ``text`` is shown."""
        ends = time.monotonic() + SECONDS
        while text not in self._seen:
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, ends - time.monotonic()))
            assert ready, f"not shown: {text!r}, but {self._seen!r}"
            self._seen += os.read(self._terminal, 65536).decode(errors="replace")
