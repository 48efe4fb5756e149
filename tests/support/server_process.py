"""A real server as a child process of the tests, with all its files in one directory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["ServerProcess"]

START_SECONDS = 120.0
STOP_SECONDS = 3.0


class ServerProcess:
    """``command`` running in ``directory``, its output in ``NAME.log`` there.

    It dies with the thread that made it, where setpriv(1) is there, so a killed test run leaves none behind.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._name = name
        self._log = directory / f"{name}.log"
        setpriv = shutil.which("setpriv")
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [*([setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []), *command],
                cwd=directory,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the server's first process."""
        return self._process.pid

    def await_ready(self, answers: Callable[[], bool]) -> None:
        """Return once ``answers()``, which may raise OSError until then; close and fail if it never does."""
        try:
            self._await(answers)
        except BaseException:
            self.close()
            raise

    def _await(self, answers: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with suppress(OSError):
                if answers():
                    return
            if self._process.poll() is not None:
                raise RuntimeError(f"{self._name} ended with {self._process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._name} gave no answer in time:\n{self.log_tail()}")
            time.sleep(0.02)

    def log_tail(self) -> str:
        """The end of what it has said."""
        return self._log.read_text(errors="replace")[-2000:]

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def close(self) -> None:
        """Stop the server and reap it. A second call does nothing."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
