"""A reader of one file from its first byte to its last, in a process of its own. See tests.support.nodes.

Run with the path: opens it, says "ready", and begins when its stdin is closed. Its last line is a Read.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import xxhash

__all__ = ["NodeReader", "Read"]

BLOCK = 1 << 20
POLL = 0.01
OPEN_SECONDS = 30.0


class Read(msgspec.Struct, frozen=True):
    """``size`` bytes came, with this xxh3_64, and then ``error`` (errno) or the end, 0.

    ``ended`` is when, by CLOCK_MONOTONIC.
    """

    digest: str
    size: int
    ended: float
    error: int = 0


class NodeReader:
    """The reader of ``path``, which is open when the constructor returns."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._go, self._said = self._process.stdin, self._process.stdout
        if self._said.readline() != b"ready\n":
            self.close()
            raise RuntimeError(f"{path} cannot be opened")
        self._before = self._read_chars()

    def start(self) -> None:
        """Let it read."""
        self._go.close()
        self._process.stdin = None  # or communicate() would flush it

    def got(self) -> int:
        """How many bytes have come so far."""
        try:
            return self._read_chars() - self._before
        except psutil.Error:
            return 0

    def wait_for(self, size: int, seconds: float) -> None:
        """Until ``size`` bytes have come. Raises RuntimeError where it ends before, or after ``seconds``."""
        deadline = time.monotonic() + seconds
        while self.got() < size:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the reader did not get {size} bytes in {seconds:g} s")
            time.sleep(POLL)

    def result(self, deadline: float) -> Read:
        """What it got, once it has ended. Raises TimeoutError at ``deadline`` (CLOCK_MONOTONIC)."""
        try:
            said, _ = self._process.communicate(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError("a reader did not end in time") from None
        return msgspec.json.decode(said, type=Read)

    def close(self) -> None:
        """kill -9 if it still runs, and reap it."""
        self._process.kill()
        self._go.close()
        self._said.close()
        self._process.wait()

    def _read_chars(self) -> int:
        return int(psutil.Process(self._process.pid).io_counters().read_chars)


def main(path: str) -> None:
    """See above."""
    buffer = bytearray(BLOCK)
    digest = xxhash.xxh3_64()
    size = error = 0
    descriptor = os.open(path, os.O_RDONLY)  # not closed: close(2) may fail too once the daemon is dead
    print("ready", flush=True)
    sys.stdin.buffer.read()
    view = memoryview(buffer)
    try:
        while count := os.readv(descriptor, [view]):
            digest.update(view[:count])
            size += count
    except OSError as failed:
        error = failed.errno or -1
    read = Read(digest.hexdigest(), size, time.monotonic(), error)
    os.write(1, msgspec.json.encode(read) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
