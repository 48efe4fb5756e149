"""The bare obstore client in a process of its own, so that its processor time is its own.

``fetch`` starts it: `python -m tests.bench.bare` with a Task as JSON for its argument answers with a Fetched.
"""

from __future__ import annotations

import resource
import subprocess
import sys

import msgspec

from tests.bench.lab import BUCKET
from tests.bench.reading import fetch_noting
from tests.support.seaweed import store_of

__all__ = ["Fetched", "Task", "fetch"]


class Task(msgspec.Struct, frozen=True):
    """``in_flight`` ranges of ``stripe`` bytes at once, until ``size`` bytes came or ``seconds`` are over."""

    endpoint: str
    key: str
    size: int
    stripe: int
    in_flight: int
    seconds: float | None = None


class Fetched(msgspec.Struct, frozen=True):
    """When how many bytes had come (see Marks), and the seconds of processor time that it took."""

    marks: list[tuple[float, int]]
    cpu: float

    @property
    def seconds(self) -> float:
        """Until the last byte."""
        return self.marks[-1][0]

    @property
    def bytes(self) -> int:
        """All that came."""
        return self.marks[-1][1]


def fetch(task: Task) -> Fetched:
    """Have a process do it. Raises RuntimeError where it fails or bytes are missing."""
    command = [sys.executable, "-m", "tests.bench.bare", msgspec.json.encode(task).decode()]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the bare client failed:\n{done.stderr.decode(errors='replace')[-1000:]}")
    fetched = msgspec.json.decode(done.stdout, type=Fetched)
    if task.seconds is None and fetched.bytes != task.size:
        raise RuntimeError(f"{task.key}: {fetched.bytes} bytes came, not {task.size}")
    return fetched


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Do the task of the first argument. Starting Python is not counted."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    store = store_of(task.endpoint, BUCKET)
    before = _cpu()
    marks = fetch_noting(
        store, task.key, task.size, stripe=task.stripe, in_flight=task.in_flight, seconds=task.seconds
    )
    fetched = Fetched(marks, _cpu() - before)
    sys.stdout.buffer.write(msgspec.json.encode(fetched))


if __name__ == "__main__":
    main()
