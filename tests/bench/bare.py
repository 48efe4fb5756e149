"""The bare obstore client in a process of its own, so that its processor time is its own.

`python -m tests.bench.bare` with a Task as JSON for its argument answers with a Fetched.
"""

from __future__ import annotations

import resource
import subprocess
import sys

import msgspec

from tests.bench.lab import BUCKET
from tests.bench.reading import fetch_striped
from tests.support.seaweed import store_of

__all__ = ["Fetched", "Task", "fetch", "start_fetch"]


class Task(msgspec.Struct, frozen=True):
    """An object of ``size`` bytes in ranges of ``stripe`` bytes, ``in_flight`` of them at once."""

    endpoint: str
    key: str
    size: int
    stripe: int
    in_flight: int


class Fetched(msgspec.Struct, frozen=True):
    """How long it took, and how much processor time, both in seconds; starting Python is not counted."""

    seconds: float
    cpu: float


def start_fetch(task: Task) -> subprocess.Popen[str]:
    """A process that does it."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bench.bare", msgspec.json.encode(task).decode()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def fetch(task: Task) -> Fetched:
    """Do it in a process. Raises RuntimeError where it fails, also where bytes are missing."""
    process = start_fetch(task)
    try:
        answer, said = process.communicate()
    finally:
        process.kill()  # nothing where it has ended
        process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"the bare client failed:\n{said[-1000:]}")
    return msgspec.json.decode(answer, type=Fetched)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Do the task of the first argument."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    store = store_of(task.endpoint, BUCKET)
    before = _cpu()
    seconds = fetch_striped(store, task.key, task.size, stripe=task.stripe, in_flight=task.in_flight)
    sys.stdout.buffer.write(msgspec.json.encode(Fetched(seconds, _cpu() - before)))


if __name__ == "__main__":
    main()
