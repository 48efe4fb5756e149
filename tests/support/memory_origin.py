"""An origin in memory for unit tests of what stands above origins: counts what is asked, fails on order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

from fusestripe.errors import NotFound, OriginError, VersionChanged
from fusestripe.origins.base import Entry, Progress
from fusestripe.units import ObjectVersion


class MemoryOrigin:
    """``files`` by path. Before each range is answered, ``gate`` may block or raise."""

    def __init__(
        self, files: dict[str, bytes] | None = None, *, page: int = 1000, chunk: int = 65536
    ) -> None:
        self.files = dict(files or {})
        self.page = page
        self.chunk = chunk
        self.asked: Counter[str] = Counter()
        self.ranges: list[tuple[str, int, int]] = []
        self.gate: Callable[[str, int, int], object] = lambda path, offset, length: None
        self.failures: list[OriginError] = []
        self._tags: Counter[str] = Counter()
        self._lock = threading.Lock()

    url = "memory://"
    lists_trees = True

    def replace(self, path: str, content: bytes) -> None:
        """A new version, even of the same bytes."""
        with self._lock:
            self.files[path] = content
            self._tags[path] += 1

    def check(self) -> None:
        self._ask("check")

    def stat(self, path: str) -> Entry:
        self._ask("stat")
        if path in self.files:
            return self._entry(path)
        if any(other.startswith(path + "/") for other in self.files):
            return Entry(name=path.rpartition("/")[2], is_dir=True)
        raise NotFound(path)

    def list_dir(self, path: str) -> Iterator[list[Entry]]:
        prefix = f"{path}/" if path else ""
        entries: dict[str, Entry] = {}
        for other in sorted(self.files):
            if other.startswith(prefix):
                name, slash, _ = other[len(prefix) :].partition("/")
                entries[name] = Entry(name=name, is_dir=True) if slash else self._entry(other)
        listed = list(entries.values())
        for start in range(0, max(1, len(listed)), self.page):
            self._ask("list")
            yield listed[start : start + self.page]

    def walk(self, path: str) -> Iterator[list[tuple[str, Entry]]]:
        prefix = f"{path}/" if path else ""
        found = [(other[len(prefix) :], self._entry(other)) for other in sorted(self.files)]
        for start in range(0, max(1, len(found)), self.page):
            self._ask("walk")
            yield found[start : start + self.page]

    def version(self, path: str, entry: Entry) -> ObjectVersion:
        return ObjectVersion("memory://", path, entry.size, entry.tag)

    def read_range(self, version: ObjectVersion, offset: int, into: memoryview, progress: Progress) -> None:
        self._ask("read")
        with self._lock:
            self.ranges.append((version.path, offset, len(into)))
        self.gate(version.path, offset, len(into))
        content = self.files.get(version.path)
        if content is None or str(self._tags[version.path]) != version.tag:
            raise VersionChanged(version.path)
        for start in range(0, len(into), self.chunk):
            stop = min(start + self.chunk, len(into))
            into[start:stop] = content[offset + start : offset + stop]
            progress(stop)

    def close(self) -> None:
        pass

    def _entry(self, path: str) -> Entry:
        name = path.rpartition("/")[2]
        return Entry(name, False, len(self.files[path]), 1_000_000_000, str(self._tags[path]))

    def _ask(self, what: str) -> None:
        with self._lock:
            self.asked[what] += 1
            failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
