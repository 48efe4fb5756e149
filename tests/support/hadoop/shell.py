"""Hadoop's own client in a process of its own: the far side of an HDFS origin in tests."""

from __future__ import annotations

import struct
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

__all__ = ["HdfsShell", "HdfsShellError"]


PIECE = 8 * 1024 * 1024
"""Bytes in one request: its memory is small."""


class HdfsShellError(Exception):
    """What Hadoop's client says of a failure."""


class HdfsShell:
    """One client with the configuration in ``conf``; paths are absolute. See HdfsShell.java."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        with open(log, "wb") as errors:
            self._process = subprocess.Popen(
                [*command, "HdfsShell"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(environment),
            )
        self._log = log
        self._lock = threading.Lock()

    def __call__(self, *fields: str | bytes) -> str:
        """One request; a string is sent as UTF-8. Raises HdfsShellError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        raw = [field if isinstance(field, bytes) else field.encode() for field in fields]
        request = struct.pack(">i", len(raw)) + b"".join(struct.pack(">i", len(one)) + one for one in raw)
        with self._lock:
            self._process.stdin.write(request)
            self._process.stdin.flush()
            head = self._process.stdout.read(5)
            if len(head) != 5:
                raise HdfsShellError(f"it ended: {self._log.read_text()}")
            failed, length = struct.unpack(">bi", head)
            answer = self._process.stdout.read(length).decode()
        if failed:
            raise HdfsShellError(answer)
        return answer

    def put(self, path: str, data: bytes, *, replication: int = 0) -> None:
        """Create or replace a file, with the cluster's replication unless said otherwise."""
        self("begin", path, str(replication))
        for start in range(0, len(data), PIECE):
            self("write", path, "", data[start : start + PIECE])
        self("end", path)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
