"""Readers of hdfs-native's, kept open: each holds where the blocks of one version are."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import msgspec
from hdfs_native import FileReader

from fusestripe.origins.confirmation import Confirmation
from fusestripe.units import ObjectVersion

__all__ = ["HeldReader", "HeldReaders"]

VERSIONS = 64
"""Versions whose readers are kept: that many files are read at once, or one after another."""
READERS = 12
"""Readers of one version. The NameNode gives each the replicas of a block in an order of its own
(DatanodeManager.sortLocatedBlocks shuffles what is equally near), and a reader takes a block from the first
of them that answers. With fewer, all of a block would come from one DataNode too often."""
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


class _Reader:
    """``busy`` is how many requests for each block are under way by it."""

    def __init__(self, reader: FileReader) -> None:
        self.reader = reader
        self.busy: Counter[int] = Counter()


class _Version:
    def __init__(self, confirmation: Confirmation) -> None:
        self.confirmation = confirmation
        # Those used last stand at the end.
        self.readers: list[_Reader] = []
        self.expires = time.monotonic() + LIFETIME

    def idlest(self, block: int) -> _Reader | None:
        """The reader with the least to do for ``block``; None where another should be opened."""
        found = min(self.readers, key=lambda reader: reader.busy[block], default=None)
        if found is None or (found.busy[block] and len(self.readers) < READERS):
            return None
        self.readers.remove(found)
        self.readers.append(found)
        return found


class HeldReaders:
    """``open_reader`` brings a reader of a version's path, ``ask`` raises unless the path has the version.

    Requests for one block go to the reader that has the fewest of them under way. So DataNodes that are fast
    get more of them, and one that is slow keeps those it has. Safe to call from many threads.
    """

    def __init__(
        self, open_reader: Callable[[ObjectVersion], FileReader], ask: Callable[[ObjectVersion], None]
    ) -> None:
        self._open = open_reader
        self._ask = ask
        self._lock = threading.Lock()
        self._versions: OrderedDict[ObjectVersion, _Version] = OrderedDict()

    @contextmanager
    def reading(self, version: ObjectVersion, block: int) -> Iterator[HeldReader]:
        """A reader of the path, for a request for bytes of ``block``. Raises what opening raises."""
        with self._lock:
            held = self._held(version)
            chosen = held.idlest(block)
            if chosen is not None:
                chosen.busy[block] += 1
        if chosen is None:
            chosen = _Reader(self._open(version))
            chosen.busy[block] += 1
            with self._lock:
                if len(held.readers) < READERS:
                    held.readers.append(chosen)
        try:
            yield HeldReader(chosen.reader, held.confirmation)
        finally:
            with self._lock:
                chosen.busy[block] -= 1

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
