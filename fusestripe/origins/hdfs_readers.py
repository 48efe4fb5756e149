"""Readers of hdfs-native's, kept open: each holds where the blocks of one version are."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from hdfs_native import FileReader

from fusestripe.origins.confirmation import Confirmation
from fusestripe.units import ObjectVersion

__all__ = ["HeldReader", "HeldReaders", "VersionReaders"]

VERSIONS = 64
"""Versions whose readers are kept: that many files are read at once, or one after another."""
READERS = 12
"""Readers of one version. The NameNode gives each the replicas of a block in an order of its own
(DatanodeManager.sortLocatedBlocks shuffles what is equally near), and a reader takes a block from the first
of them that answers. With fewer, all of a block would come from one DataNode too often."""
LIFETIME = 600.0
"""Seconds after which the places are asked for again: replicas move, and the tokens of blocks expire after
10 hours (dfs.block.access.token.lifetime of hdfs-default.xml)."""


class HeldReader:
    """One reader. ``busy`` is how many requests for each block are under way by it.

    ``slow`` are the blocks for which it goes to a replica that turned out slow.
    """

    def __init__(self, reader: FileReader) -> None:
        self.reader = reader
        self.busy: Counter[int] = Counter()
        self.slow: set[int] = set()

    @property
    def length(self) -> int:
        """Bytes that can be read: of a file that is being written, its whole blocks."""
        return len(self.reader)

    def stream(self, offset: int, length: int) -> Iterator[bytes]:
        """The bytes of that range as they come, in order. ``offset + length`` lies within ``length``."""
        return self.reader.read_range_stream(offset, length)


class VersionReaders:
    """The readers of one version: ``open_reader`` brings one, ``ask`` raises unless the path has the version.

    Requests for one block go to the reader that has the fewest of them under way. So DataNodes that are fast
    get more of them, and one that is slow keeps those it has, or loses them (``leave``). Safe to call from
    many threads.
    """

    def __init__(self, open_reader: Callable[[], FileReader], ask: Callable[[], None]) -> None:
        self.expires = time.monotonic() + LIFETIME
        self._open = open_reader
        self._confirmation = Confirmation(ask)
        # Over all below; notified when an opening has come to its end.
        self._changed = threading.Condition()
        self._opening = 0
        self._readers: list[HeldReader] = []

    def confirm(self) -> None:
        """Return if the path still has the version, asked anew. Raises OriginError."""
        self._confirmation.confirm()

    @contextmanager
    def reading(self, block: int) -> Iterator[HeldReader]:
        """A reader of the path, for a request for bytes of ``block``. Raises what opening raises."""
        chosen = self._take(block) or self._open_another(block)
        try:
            yield chosen
        finally:
            with self._changed:
                chosen.busy[block] -= 1

    def _take(self, block: int) -> HeldReader | None:
        """One that is there, for a request; None: another is to be opened, and has its place."""
        with self._changed:
            while True:
                chosen = self._idlest(block)
                may_open = len(self._readers) + self._opening < READERS
                if may_open and (chosen is None or _weight(chosen, block) > (False, 0)):
                    self._opening += 1
                    return None
                if chosen is not None:
                    chosen.busy[block] += 1
                    # Those used last stand at the end.
                    self._readers.remove(chosen)
                    self._readers.append(chosen)
                    return chosen
                self._changed.wait()

    def _open_another(self, block: int) -> HeldReader:
        opened = None
        try:
            opened = HeldReader(self._open())
            opened.busy[block] += 1
        finally:
            with self._changed:
                self._opening -= 1
                if opened is not None:
                    self._readers.append(opened)
                self._changed.notify_all()
        return opened

    def can_leave(self, block: int) -> bool:
        """Whether another reader than one that is slow may be had for ``block``."""
        with self._changed:
            return len(self._readers) < READERS or sum(block not in each.slow for each in self._readers) > 1

    def leave(self, reader: HeldReader, block: int) -> None:
        """``reader`` is slow for ``block``: others go before it from now on."""
        with self._changed:
            reader.slow.add(block)

    def _idlest(self, block: int) -> HeldReader | None:
        return min(self._readers, key=lambda reader: _weight(reader, block), default=None)


def _weight(reader: HeldReader, block: int) -> tuple[bool, int]:
    """What ``reader`` has to do for ``block``; the more the heavier, and most where it is slow."""
    return block in reader.slow, reader.busy[block]


class HeldReaders:
    """The readers of the versions read last; see VersionReaders. Safe to call from many threads."""

    def __init__(
        self, open_reader: Callable[[ObjectVersion], FileReader], ask: Callable[[ObjectVersion], None]
    ) -> None:
        self._open = open_reader
        self._ask = ask
        self._lock = threading.Lock()
        self._versions: OrderedDict[ObjectVersion, VersionReaders] = OrderedDict()

    def of(self, version: ObjectVersion) -> VersionReaders:
        """Those of ``version``."""
        with self._lock:
            held = self._versions.get(version)
            if held is None or held.expires < time.monotonic():
                held = VersionReaders(partial(self._open, version), partial(self._ask, version))
                self._versions[version] = held
            self._versions.move_to_end(version)
            while len(self._versions) > VERSIONS:
                self._versions.popitem(last=False)
            return held

    def drop(self, version: ObjectVersion) -> None:
        """Ask for the places again the next time."""
        with self._lock:
            self._versions.pop(version, None)

    def clear(self) -> None:
        """Drop all."""
        with self._lock:
            self._versions.clear()
