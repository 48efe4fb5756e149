"""Any filesystem of pyarrow's, HDFS through the JVM client (libhdfs) among them.

A version is told by length and modification time, as fine as the filesystem gives it: nanoseconds of a local
one, whole seconds of HDFS through libhdfs. Where the time is that coarse, nothing is told of a file before
its second is over: what replaces it later has another time. A file is opened once a range, so that what is
read is one file's, and bytes count once the path was found unchanged after they arrived.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, HadoopFileSystem

from fusestripe.errors import BadAnswer, ConfigError, NotFound, OriginError, VersionChanged
from fusestripe.origins.arrow_errors import failure_of
from fusestripe.origins.base import Entry, OriginOptions, Progress, is_path, root_is_a_file
from fusestripe.origins.confirmation import Confirmation, fill
from fusestripe.origins.hdfs_settings import SNAPSHOTS, parse_url, read_settings
from fusestripe.origins.jvm import prepare_jvm
from fusestripe.origins.patience import Patience
from fusestripe.origins.walking import walk_directories
from fusestripe.units import MIB, ObjectVersion

__all__ = ["ArrowOrigin", "open_libhdfs"]

T = TypeVar("T")

PAGE = 1000
"""Entries a page; pyarrow itself hands out a whole directory."""
CHUNK = MIB
"""Bytes of one call for data."""
LIBHDFS_GRAIN = 1.0
"""Seconds between two times that libhdfs can tell apart (hdfs.h: tTime is a time_t)."""
LIBHDFS_LAST = "\uffff"
"""libhdfs hands names to the JVM as modified UTF-8 (JNI), which writes what comes after in another way."""
CLOCKS = 0.5
"""Seconds that this machine's clock may be ahead of the store's."""


class ArrowOrigin:
    """The tree below ``root`` ("" or "/a/b") of ``filesystem``.

    ``store`` names the filesystem in versions: a scheme and whom it reaches. ``timeout``: seconds that one
    call may take. ``grain``: seconds between two modification times that it tells apart.
    Names with characters after ``last_character`` cannot be had, and are not shown.
    """

    lists_trees = False

    def __init__(
        self,
        filesystem: FileSystem,
        store: str,
        root: str,
        timeout: float,
        *,
        grain: float = 0.0,
        last_character: str = chr(sys.maxunicode),
    ) -> None:
        self.url = store + (root or "/")
        self._filesystem = filesystem
        self._store = store
        self._root = root
        self._patience = Patience(timeout)
        self._grain = grain
        self._last_character = last_character
        self._lock = threading.Lock()
        self._confirmations: WeakValueDictionary[ObjectVersion, Confirmation] = WeakValueDictionary()

    def check(self) -> None:
        """See Origin."""
        if not self.stat("").is_dir:
            raise root_is_a_file(self.url)
        for _ in self.list_dir(""):
            return

    def stat(self, path: str) -> Entry:
        """See Origin. One request."""
        return _entry(path.rpartition("/")[2], self._info(self._full(path)))

    def list_dir(self, path: str) -> Iterator[list[Entry]]:
        """See Origin. One request, and one before."""
        full = self._full(path)
        if self._info(full).type != FileType.Directory:
            raise NotFound(f"{self._shown(full)} is no directory")
        ask = partial(self._filesystem.get_file_info, FileSelector(full))
        infos = self._ask(ask, self._shown(full))
        if any(map(self._wait, infos)):
            infos = self._ask(ask, self._shown(full))
        found = iter(infos)
        while page := list(itertools.islice(found, PAGE)):
            named = ((_name(info), info) for info in page)
            yield [_entry(name, info) for name, info in named if name is not None]

    def walk(self, path: str) -> Iterator[list[tuple[str, Entry]]]:
        """See Origin. A listing a directory."""
        return walk_directories(
            self.list_dir, path, lambda below: self.stat(f"{path}/{below}" if path else below)
        )

    def hides(self, name: str) -> bool:
        """See HidingOrigin."""
        return name == SNAPSHOTS

    def version(self, path: str, entry: Entry) -> ObjectVersion:
        """See Origin."""
        return ObjectVersion(self._store, self._full(path).lstrip("/"), entry.size, entry.tag)

    def read_range(self, version: ObjectVersion, offset: int, into: memoryview, progress: Progress) -> None:
        """See Origin."""
        if not len(into):
            return
        confirmation = self._confirmation(version)
        what = self._shown("/" + version.path)
        try:
            fill(self._chunks(version, offset, len(into)), into, confirmation.confirm, progress, what)
        except NotFound as error:
            raise VersionChanged(f"{what} was deleted while it was open") from error
        except BadAnswer:
            # A file that is shorter by now is another, whatever came of it.
            confirmation.confirm()
            raise

    def close(self) -> None:
        """See Origin. pyarrow lets go of its connections when the filesystem goes."""

    def _chunks(self, version: ObjectVersion, offset: int, length: int) -> Iterator[bytes]:
        path = "/" + version.path
        what = self._shown(path)
        file = self._ask(partial(self._filesystem.open_input_file, path), what)
        try:
            end = offset + length
            while offset < end:
                data = self._ask(partial(file.read_at, min(CHUNK, end - offset), offset), what)
                if not data:
                    return
                yield data
                offset += len(data)
        finally:
            self._ask(file.close, what)

    def _confirmation(self, version: ObjectVersion) -> Confirmation:
        with self._lock:
            found = self._confirmations.get(version)
            if found is None:
                found = self._confirmations[version] = Confirmation(partial(self._same, version))
            return found

    def _same(self, version: ObjectVersion) -> None:
        what = self._shown("/" + version.path)
        try:
            info = self._info("/" + version.path)
        except NotFound as error:
            raise VersionChanged(f"{what} was deleted while it was open") from error
        if info.type != FileType.File or (info.size, _tag(info)) != (version.size, version.tag):
            raise VersionChanged(f"{what} has changed since it was opened", mend="open it again")

    def _info(self, full: str) -> FileInfo:
        ask = partial(self._filesystem.get_file_info, full or "/")
        info: FileInfo = self._ask(ask, self._shown(full))
        while self._wait(info):
            info = self._ask(ask, self._shown(full))
        if info.type not in (FileType.File, FileType.Directory):
            raise NotFound(f"{self._shown(full)} does not exist")
        return info

    def _wait(self, info: FileInfo) -> bool:
        """Let the moment pass in which the file could be replaced by another with the same time."""
        if not self._grain or info.type != FileType.File:
            return False
        left = info.mtime_ns / 1e9 + self._grain + CLOCKS - time.time()
        if left <= 0 or left > self._grain + CLOCKS:  # a time in the future says nothing about now
            return False
        time.sleep(left)
        return True

    def _ask(self, call: Callable[[], T], what: str) -> T:
        try:
            return self._patience.run(call, what)
        except OriginError:
            raise
        except Exception as error:
            raise failure_of(error, what) from None

    def _full(self, path: str) -> str:
        if path and (not is_path(path) or max(path) > self._last_character):
            raise NotFound(f"{path!a} does not exist")
        return f"{self._root}/{path}" if path else self._root

    def _shown(self, full: str) -> str:
        return f"{self._store + (full or '/')!a}"[1:-1]


def open_libhdfs(url: str, options: OriginOptions) -> ArrowOrigin:
    """The origin for "hdfs+libhdfs://nameservice/path" and the like: HDFS through Hadoop's own client.

    Raises ConfigError where the JVM, libhdfs or the class path is missing. See ``registry.open_origin``.
    """
    if options.endpoint or options.region or options.profile or options.anonymous:
        raise ConfigError(
            "HDFS has no endpoint, region, profile or anonymous access",
            mend="leave them out; settings come from HADOOP_CONF_DIR",
        )
    store, root = parse_url(url.replace("hdfs+libhdfs://", "hdfs://", 1), read_settings())
    prepare_jvm(os.environ)
    host, _, port = store.partition("://")[2].partition(":")
    connect = partial(HadoopFileSystem, host, int(port or 0), user=os.environ.get("HADOOP_USER_NAME"))
    try:
        filesystem = Patience(options.timeout).run(connect, store)
    except OSError as error:
        raise failure_of(error, store) from None
    store = store.replace("hdfs://", "hdfs+libhdfs://", 1)
    return ArrowOrigin(
        filesystem, store, root, options.timeout, grain=LIBHDFS_GRAIN, last_character=LIBHDFS_LAST
    )


def _name(info: FileInfo) -> str | None:
    """None for what is not shown."""
    try:
        name: str = info.base_name
    except UnicodeDecodeError:
        return None
    return name if info.type in (FileType.File, FileType.Directory) and is_path(name) else None


def _entry(name: str, info: FileInfo) -> Entry:
    is_dir = info.type == FileType.Directory
    return Entry(
        name,
        is_dir=is_dir,
        size=0 if is_dir else info.size,
        mtime_ns=info.mtime_ns or 0,
        tag="" if is_dir else _tag(info),
    )


def _tag(info: FileInfo) -> str:
    return f"mtime {info.mtime_ns}"
