"""The place of a run: a directory, a real S3 server in it, and objects on the server."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

import msgspec

from fusestripe.units import MIB
from tests.support.seaweed import SeaweedServer

__all__ = ["BUCKET", "Lab", "StoredObject", "write_random"]

BUCKET = "bench"
_BLOCK = 16 * MIB


class StoredObject(msgspec.Struct, frozen=True):
    """An object of ``size`` bytes in the bucket."""

    key: str
    size: int


def write_random(path: Path, size: int) -> Path:
    """``size`` random bytes into the new file ``path``."""
    with open(path, "wb") as file:
        for start in range(0, size, _BLOCK):
            file.write(os.urandom(min(_BLOCK, size - start)))
    return path


class Lab:
    """``directory`` holds everything of a run."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self._stack = stack
        self._numbers = itertools.count(1)
        self._stored: dict[int, StoredObject] = {}

    @classmethod
    @contextmanager
    def open(cls, directory: Path) -> Iterator[Lab]:
        """A lab whose server, where one was asked for, stops at the end."""
        with ExitStack() as stack:
            yield cls(directory, stack)

    @cached_property
    def server(self) -> SeaweedServer:
        """In front of nothing but the disk; it starts when it is first asked for."""
        server = self._stack.enter_context(SeaweedServer(self.directory / "server"))
        server.create_bucket(BUCKET)
        return server

    def stored(self, size: int) -> StoredObject:
        """An object of ``size`` random bytes; the same for the same size."""
        if size not in self._stored:
            self._stored[size] = self.store_new(size)
        return self._stored[size]

    def store_new(self, size: int) -> StoredObject:
        """A new object of ``size`` random bytes."""
        with self.scratch() as directory:
            return self.store_file(write_random(directory / "data.bin", size))

    def store_file(self, path: Path, prefix: str = "") -> StoredObject:
        """A new object, its key beginning with ``prefix``, of what is in the file at ``path``."""
        key = f"{prefix}data-{next(self._numbers)}.bin"
        self.server.put_file(BUCKET, key, path)
        return StoredObject(key, path.stat().st_size)

    def remove(self, stored: StoredObject) -> None:
        """Delete an object that was stored as a new one."""
        self.server.delete(BUCKET, stored.key)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A new empty directory, gone after the block."""
        path = self.directory / f"scratch-{next(self._numbers)}"
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path)
