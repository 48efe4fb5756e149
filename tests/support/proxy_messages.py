"""HTTP messages for the proxy's process: heads are parsed, bodies are not. Standard library alone."""

from __future__ import annotations

import socket
from typing import Any

__all__ = ["Gone", "Head", "Reader"]

HEAD_LIMIT = 256 * 1024


class Gone(Exception):
    """One side of a connection ended before it should have."""


class Reader:
    """A socket with what was read of it beyond the head."""

    def __init__(self, source: socket.socket) -> None:
        self.socket = source
        self._ahead = b""

    def until(self, mark: bytes) -> bytes:
        """Everything up to and with ``mark``; b"" where the stream ends before its first byte."""
        while (end := self._ahead.find(mark)) < 0:
            data = self.socket.recv(16 * 1024)
            if not data and not self._ahead:
                return b""
            if not data or len(self._ahead) > HEAD_LIMIT:
                raise Gone
            self._ahead += data
        end += len(mark)
        taken, self._ahead = self._ahead[:end], self._ahead[end:]
        return taken

    def take(self, most: int) -> bytes:
        taken, self._ahead = self._ahead[:most], self._ahead[most:]
        return taken


class Head:
    """Start line and headers of a message."""

    def __init__(self, raw: bytes) -> None:
        first, *rest = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        self.first = first
        self.headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in rest)]

    def get(self, name: str, default: str = "") -> str:
        return next((value for key, value in self.headers if key.lower() == name), default)

    def replace(self, pairs: list[Any]) -> None:
        replaced = {name.lower() for name, _ in pairs}
        self.headers = [pair for pair in self.headers if pair[0].lower() not in replaced] + pairs

    def encode(self) -> bytes:
        lines = [self.first, *(f"{name}: {value}" for name, value in self.headers)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    @property
    def chunked(self) -> bool:
        return self.get("transfer-encoding").lower() == "chunked"

    @property
    def length(self) -> int:
        """Of the body; -1 where only its end tells."""
        return int(self.get("content-length", "-1"))
