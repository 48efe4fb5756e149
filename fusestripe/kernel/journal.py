"""What the next daemon has to know of this one: a small log in memory that is the keeper's too.

Each record is its length, then a key and a value; the last value of a key counts, and none takes it away. A
daemon may be killed in the middle of a record: what is not whole at the end is as if it were not there. The
next daemon may be of another version: kinds of records that it does not know are nothing to it.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from fusestripe.origins.base import Entry

__all__ = ["Journal", "Looked", "Opened", "Past", "Place", "read_past"]

log = logging.getLogger(__name__)

_LENGTH = struct.Struct("=I")
# A log is written anew when it is larger than this, and than a multiple of what counts in it (bytes).
_SMALL = 1 << 20
_WASTE = 4
_Key = tuple[str, int]
FILES = 50_000
"""So many files that are not open are known to the next daemon; of others the kernel looks the name up."""


class Opened(msgspec.Struct, frozen=True):
    """An open file, or an open directory, which has no ``entry``.

    ``unique`` is that of the request; ``path`` is in bytes, for it need not be UTF-8, and so ``entry`` has no
    name. ``backing_id``: see Passthrough.
    """

    unique: int
    node: int
    path: bytes
    entry: Entry | None
    backing_id: int = 0


class Looked(msgspec.Struct, frozen=True):
    """A file that was looked up by its name; see Opened."""

    path: bytes
    entry: Entry


class Place(msgspec.Struct, frozen=True):
    """Where someone has come to who lists a directory: the kernel asks next for one of these entries.

    ``names`` are those before the entries ``number``, ``number + 1`` and so on; b"" before the first of all.
    """

    number: int
    names: list[bytes]

    def before(self, number: int) -> str:
        """The name before entry ``number``; "" where it is not known."""
        index = number - self.number
        return os.fsdecode(self.names[index]) if 0 <= index < len(self.names) else ""


class _Greeting(msgspec.Struct, frozen=True):
    init: bytes
    started_ns: int
    device: str


_KINDS: Mapping[str, Any] = MappingProxyType(
    {"open": Opened, "directory": bytes, "file": Looked, "place": Place}
)


class Past(msgspec.Struct, frozen=True):
    """What the daemon before has left.

    ``init``: the kernel's INIT, as it came; ``started_ns``: what has no time of its own shows it; ``device``
    is the mount's (see mounting.Mount); ``opens`` by handle; ``directories`` (their paths) and ``files`` by
    inode, of the latter those that were looked up last. Handles up to ``last_handle`` have been given out,
    and none of them may be again: the kernel may yet close it. ``places`` are those of open directories, by
    handle.
    """

    init: bytes
    started_ns: int
    device: str
    opens: Mapping[int, Opened]
    directories: Mapping[int, bytes]
    files: Mapping[int, Looked]
    last_handle: int
    places: Mapping[int, Place] = MappingProxyType({})


class Journal:
    """``store`` has each new descriptor of the log kept by others; ``past`` is what it begins with.

    From any thread. Nothing here waits for a disk: it is memory (memfd_create(2)). Where there is none left
    it says so, and what came last will be missing.
    """

    def __init__(self, store: Callable[[int], None], past: Past | None = None) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._live: dict[_Key, bytes] = {}
        self._files: dict[int, None] = {}  # the one looked up last at the end
        self._live_bytes = 0
        self._written = 0
        self._descriptor = -1
        self._last_handle = 0
        if past is not None:
            self._last_handle = past.last_handle
            self._note("greeting", 0, _Greeting(past.init, past.started_ns, past.device))
            for inode, path in past.directories.items():
                self._note("directory", inode, path)
            for inode, looked in past.files.items():
                self._note("file", inode, looked)
                self._files[inode] = None
            for handle, opened in past.opens.items():
                self._note("open", handle, opened)
            for handle, place in past.places.items():
                self._note("place", handle, place)
        self._begin_anew()

    def greeted(self, init: bytes, started_ns: int, device: str) -> None:
        """The kernel's INIT has come. See Past."""
        self._put("greeting", 0, _Greeting(init, started_ns, device))

    def opened(self, handle: int, opened: Opened) -> None:
        """The kernel is about to hear of ``handle``, a number higher than all before."""
        self._last_handle = max(self._last_handle, handle)
        if opened.entry is not None:
            opened = msgspec.structs.replace(opened, entry=_nameless(opened.entry))
        self._put("open", handle, opened)

    def closed(self, handle: int) -> bool:
        """The kernel has let go of ``handle``; False where that was noted before."""
        self._drop("place", handle)
        return self._drop("open", handle)

    def directory(self, inode: int, path: str) -> None:
        """The kernel is about to hear of the directory at ``path``."""
        self._put("directory", inode, os.fsencode(path))

    def file(self, inode: int, path: str, entry: Entry) -> None:
        """The kernel is about to hear of the file at ``path``, by its name."""
        if inode in self._files:
            self._files[inode] = self._files.pop(inode)
            return
        self._files[inode] = None
        self._put("file", inode, Looked(os.fsencode(path), _nameless(entry)))
        if len(self._files) > FILES:
            self._drop("file", next(iter(self._files)))

    def listed(self, handle: int, number: int, names: Sequence[str]) -> None:
        """The kernel is about to be given entries of an open directory. See Place."""
        self._put("place", handle, Place(number, [os.fsencode(name) for name in names]))

    def forgotten(self, inode: int) -> None:
        """The kernel has forgotten a directory or a file."""
        self._drop("directory", inode)
        if inode in self._files:
            self._drop("file", inode)

    def close(self) -> None:
        """Nothing more is written."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = -1

    def _note(self, kind: str, number: int, value: object) -> bytes:
        key = (kind, number)
        body = msgspec.msgpack.encode((key, value))
        record = _LENGTH.pack(len(body)) + body
        self._live_bytes += len(record) - len(self._live.get(key, b""))
        self._live[key] = record
        return record

    def _put(self, kind: str, number: int, value: object) -> None:
        with self._lock:
            self._write(self._note(kind, number, value))

    def _drop(self, kind: str, number: int) -> bool:
        key = (kind, number)
        with self._lock:
            if kind == "file":
                self._files.pop(number, None)
            record = self._live.pop(key, None)
            if record is None:
                return False
            self._live_bytes -= len(record)
            body = msgspec.msgpack.encode((key, None))
            self._write(_LENGTH.pack(len(body)) + body)
        return True

    def _write(self, record: bytes) -> None:
        if self._descriptor < 0:
            return
        try:
            if self._written > max(_SMALL, _WASTE * self._live_bytes):
                self._written = 0  # where that fails it goes on in the old one for a while
                self._begin_anew()  # with what the record says
                return
        except OSError as error:
            log.warning("what the next daemon is to know is not written anew: %s", error.strerror)
        try:
            self._append(record)
        except OSError as error:
            log.warning("what the next daemon is to know cannot be noted: %s", error.strerror)

    def _append(self, record: bytes) -> None:
        """All of ``record`` or nothing. Raises OSError."""
        begin = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        if os.write(self._descriptor, record) != len(record):
            os.ftruncate(self._descriptor, begin)
            os.lseek(self._descriptor, begin, os.SEEK_SET)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._written += len(record)

    def _begin_anew(self) -> None:
        self._note("handles", 0, self._last_handle)
        fresh = os.memfd_create("fusestripe-state", os.MFD_CLOEXEC)
        try:
            with open(fresh, "wb", closefd=False) as file:
                for record in self._live.values():
                    file.write(record)
            self._store(fresh)
        except BaseException:
            os.close(fresh)
            raise
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._written = fresh, self._live_bytes


def read_past(descriptor: int) -> Past | None:
    """What the log in ``descriptor`` says; None where the daemon before has not even begun."""
    greeting = None
    last_handle = 0
    tables: dict[str, dict[int, Any]] = {kind: {} for kind in _KINDS}
    for (kind, number), value in _records(descriptor):
        if kind == "greeting":
            greeting = msgspec.convert(value, _Greeting)
        elif kind == "handles":
            last_handle = max(last_handle, msgspec.convert(value, int))
        elif kind in tables and value is None:
            tables[kind].pop(number, None)
        elif kind in tables:
            tables[kind][number] = msgspec.convert(value, _KINDS[kind])
            last_handle = max(last_handle, number if kind == "open" else 0)
    if greeting is None:
        return None
    return Past(
        greeting.init,
        greeting.started_ns,
        greeting.device,
        tables["open"],
        tables["directory"],
        tables["file"],
        last_handle,
        tables["place"],
    )


def _nameless(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, name="")


def _records(descriptor: int) -> Iterator[tuple[_Key, object]]:
    size = os.fstat(descriptor).st_size
    data = memoryview(os.pread(descriptor, size, 0))
    decoder = msgspec.msgpack.Decoder(tuple[_Key, object])
    place = 0
    while place + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, place)
        body = data[place + _LENGTH.size : place + _LENGTH.size + length]
        if len(body) < length:
            return
        yield decoder.decode(body)
        place += _LENGTH.size + length
