"""A node: a mount namespace of its own, with a directory whose mounts propagate as kubelet's. Needs root."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from fusestripe.kernel.mounting import Mount, parse_mountinfo

__all__ = ["Node"]

# systemd makes / shared on a node; here ``directory`` alone is. Control groups are of version 2, as today.
_PREPARE = """
set -e
mount --bind "$1" "$1"
mount --make-rshared "$1"
mount -t tmpfs tmpfs "$2"
mount --make-private "$2"
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo ready
exec cat
"""


class Node:
    """``directory`` is the part of its tree where pods have their volumes; all mounts go with the node.

    ``layers`` is where containers have their root filesystems: no part of what propagates.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve() / "node"
        self.layers = directory.resolve() / "layers"
        for path in (self.directory, self.layers):
            path.mkdir()
        prepare = ["sh", "-c", _PREPARE, "sh", str(self.directory), str(self.layers)]
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", *prepare],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holder.communicate(timeout=20)

    def inside(self, *command: str) -> list[str]:
        """The ``command`` as it has to be started to run on this node."""
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--", *command]

    def run(self, *command: str) -> None:
        """Run ``command`` on this node."""
        subprocess.run(self.inside(*command), check=True, capture_output=True, timeout=30)

    def mounts(self) -> list[Mount]:
        """All that is mounted on this node, outside of its containers."""
        return list(parse_mountinfo(Path(f"/proc/{self._holder.pid}/mountinfo").read_text()))

    def fuse_mounts(self, directory: Path) -> list[str]:
        """Where FUSE filesystems are mounted in ``directory``."""
        found = (mount for mount in self.mounts() if mount.fstype.startswith("fuse"))
        return [mount.mountpoint for mount in found if Path(mount.mountpoint).is_relative_to(directory)]

    def seen_by(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """What ``command`` says on this node."""
        return subprocess.run(self.inside(*command), capture_output=True, text=True, check=False, timeout=30)
