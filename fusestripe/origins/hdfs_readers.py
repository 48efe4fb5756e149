"""Readers of hdfs-native's, kept open: each holds where the blocks of one version are."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
from hdfs_native import FileReader

from fusestripe.origins.confirmation import Confirmation
from fusestripe.units import ObjectVersion

__all__ = ["HeldReader", "HeldReaders"]

VERSIONS = 64
"""Versions whose readers are kept: that many files are read at once, or one after another."""
READERS = 3
"""Readers of one version. The NameNode gives each the replicas of a block in an order of its own, so that
the stripes of one block come from several DataNodes (DatanodeManager.sortLocatedBlocks shuffles what is
equally near)."""
LIFETIME = 600.0
"""Seconds after which the places are asked for again: replicas move, and the tokens of blocks expire after
10 hours (dfs.block.access.token.lifetime of hdfs-default.xml)."""


class HeldReader(msgspec.Struct, frozen=True):
    """One reader, and the question whether the path still has its version."""

    reader: FileReader
    confirmation: Confirmation

    @property
    def length(self) -> int:
        """Bytes that can be read: of a file that is being written, its whole blocks."""
        return len(self.reader)

    def stream(self, offset: int, length: int) -> Iterator[bytes]:
        """The bytes of that range as they come, in order. ``offset + length`` lies within ``length``."""
        return self.reader.read_range_stream(offset, length)

    def confirm(self) -> None:
        """Return if the path still has the version, asked anew. Raises OriginError."""
        self.confirmation.confirm()


class _Version:
    def __init__(self, confirmation: Confirmation) -> None:
        self.confirmation = confirmation
        self.readers: deque[FileReader] = deque()
        self.expires = time.monotonic() + LIFETIME


class HeldReaders:
    """``open_reader`` brings a reader of a version's path, ``ask`` raises unless the path has the version.

    Safe to call from many threads.
    """

    def __init__(
        self, open_reader: Callable[[ObjectVersion], FileReader], ask: Callable[[ObjectVersion], None]
    ) -> None:
        self._open = open_reader
        self._ask = ask
        self._lock = threading.Lock()
        self._versions: OrderedDict[ObjectVersion, _Version] = OrderedDict()

    def take(self, version: ObjectVersion) -> HeldReader:
        """A reader of the path, each of them in turn. Raises what opening raises."""
        with self._lock:
            held = self._held(version)
            if len(held.readers) == READERS:
                held.readers.rotate()
                return HeldReader(held.readers[0], held.confirmation)
        reader = self._open(version)
        with self._lock:
            if len(held.readers) < READERS:
                held.readers.append(reader)
        return HeldReader(reader, held.confirmation)

    def drop(self, version: ObjectVersion) -> None:
        """Ask for the places again the next time."""
        with self._lock:
            self._versions.pop(version, None)

    def clear(self) -> None:
        """Drop all."""
        with self._lock:
            self._versions.clear()

    def _held(self, version: ObjectVersion) -> _Version:
        held = self._versions.get(version)
        if held is None or held.expires < time.monotonic():
            held = self._versions[version] = _Version(Confirmation(partial(self._ask, version)))
        self._versions.move_to_end(version)
        while len(self._versions) > VERSIONS:
            self._versions.popitem(last=False)
        return held
