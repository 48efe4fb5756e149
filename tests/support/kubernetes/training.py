"""A training as a pod runs it: `python -m tests.support.kubernetes.training DIRECTORY`.

It holds cold.bin and warm.bin of DIRECTORY open, reads a piece of each over and over, and says when a file
is open and by what errno it fails; then it opens it anew. Told to end it takes its time, opens cold.bin once
more, as what saves a last checkpoint does, and says "saved".
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from functools import cache
from types import FrameType

__all__ = ["COMMAND", "content"]

COMMAND = ("python", "-m", "tests.support.kubernetes.training")
PIECE = 64 * 1024
SAVING_SECONDS = 0.5


@cache
def content(size: int) -> bytes:
    """``size`` bytes that tell where in the file they are."""
    return b"".join(b"%015d\n" % offset for offset in range(0, size, 16))[:size]


class _File:
    def __init__(self, path: str) -> None:
        self._path = path
        self._name = os.path.basename(path)
        self._descriptor: int | None = None
        self._last_error = 0

    def read(self) -> None:
        try:
            self._read()
        except OSError as error:
            if self._descriptor is not None:
                with suppress(OSError):  # it is closed all the same
                    os.close(self._descriptor)
                self._descriptor = None
            if error.errno != self._last_error:
                print(f"{self._name}: error {error.errno}", flush=True)
                self._last_error = error.errno or 0

    def _read(self) -> None:
        is_new = self._descriptor is None
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDONLY)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if os.pread(self._descriptor, PIECE, 0) != content(PIECE):
            print(f"{self._name}: wrong bytes", flush=True)
        if is_new:
            print(f"{self._name}: open", flush=True)
            self._last_error = 0


def _main(directory: str) -> None:
    is_told = False

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_told
        is_told = True

    signal.signal(signal.SIGTERM, end)
    files = [_File(os.path.join(directory, name)) for name in ("cold.bin", "warm.bin")]
    while not is_told:
        for file in files:
            file.read()
        time.sleep(0.02)
    time.sleep(SAVING_SECONDS)
    with open(os.path.join(directory, "cold.bin"), "rb") as last:
        if last.read(PIECE) == content(PIECE):
            print("saved", flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
