"""A control group with a limit of memory, in version 1 or 2, whichever has it here. Needs root."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.mounted import until

__all__ = ["MemoryGroup", "memory_hierarchy"]


class MemoryGroup:
    """A control group at ``path`` (cgroups(7)); whoever is in it has ``limit`` bytes of memory."""

    def __init__(self, hierarchy: Path, name: str, limit: int, *, is_v2: bool) -> None:
        self.path = hierarchy / name
        self.path.mkdir()
        self.limit_file = self.path / ("memory.max" if is_v2 else "memory.limit_in_bytes")
        self._events = self.path / ("memory.events" if is_v2 else "memory.oom_control")
        self.limit_file.write_text(str(limit))

    def inside(self, *command: str) -> list[str]:
        """The ``command`` as it has to be started to be in it."""
        return ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(self.path), *command]

    def kills(self) -> int:
        """How often the kernel killed for want of memory in it."""
        lines = self._events.read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("oom_kill ")))

    def remove(self) -> None:
        """End what is in it, and take it away."""
        for pid in (self.path / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        until(lambda: not (self.path / "cgroup.procs").read_text())
        self.path.rmdir()


@contextmanager
def memory_hierarchy(directory: Path) -> Iterator[tuple[Path, bool]]:
    """Where groups that limit memory can be made, for the time of the block, and whether in version 2."""
    directory.mkdir()
    version_1 = ["mount", "-t", "cgroup", "-o", "memory", "none", str(directory)]
    # Refused where the system has given memory to version 2: one of the two has it.
    is_v2 = subprocess.run(version_1, capture_output=True, check=False).returncode != 0
    if is_v2:
        subprocess.run(["mount", "-t", "cgroup2", "none", str(directory)], check=True)
        (directory / "cgroup.subtree_control").write_text("+memory")
    try:
        yield directory, is_v2
    finally:
        subprocess.run(["umount", str(directory)], check=True)
