"""HDFS through hdfs-native: no JVM on this side.

A version is told by length, modification time (milliseconds) and block size: hdfs-native shows no inode
number. A reader of hdfs-native's holds the blocks of one file as the NameNode listed them, and the bytes of a
block stay what they are, except when the file is truncated, which changes its time before its bytes. So bytes
are of the version if, after they arrived, the path still has its length and time: that is asked before
``progress`` tells of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeVar

from hdfs_native import Client, FileReader, FileStatus

from fusestripe.errors import (
    ConfigError,
    IsADirectory,
    NotFound,
    OriginError,
    OriginUnavailable,
    VersionChanged,
)
from fusestripe.origins.base import Entry, OriginOptions, Owner, Progress, Superseded, is_path, root_is_a_file
from fusestripe.origins.confirmation import fill
from fusestripe.origins.hdfs_errors import failure_of, is_panic
from fusestripe.origins.hdfs_readers import HeldReaders, VersionReaders
from fusestripe.origins.hdfs_settings import SNAPSHOTS, missing_fallback, parse_url, read_settings
from fusestripe.origins.hdfs_streams import LastBlockOpen, ReplicaStreams
from fusestripe.origins.owners import Owners
from fusestripe.origins.patience import Patience
from fusestripe.origins.walking import walk_directories
from fusestripe.units import ObjectVersion

__all__ = ["HdfsOrigin", "open_hdfs"]

T = TypeVar("T")

PAGE = 1000
"""Entries a page; the NameNode sends as many at once (dfs.ls.limit of hdfs-default.xml)."""
DEFAULT_PORT = 8020
"""Of a NameNode, where the URL names a host and no port (dfs.namenode.rpc-address of hdfs-default.xml)."""
DATANODE_SILENCE = 10.0
"""Seconds without a byte after which hdfs-native leaves a DataNode for another replica."""
FAILOVERS = 4
"""NameNodes that one request tries at most: twice each of a pair. Who asks tries again."""

# Where the cluster's configuration says nothing of them.
_SETTINGS = {
    "dfs.client.socket-timeout": f"{DATANODE_SILENCE * 1000:.0f}",
    "dfs.client.failover.max.attempts": str(FAILOVERS - 1),
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "1000",
}


class HdfsOrigin:
    """The tree below ``root`` ("" or "/a/b") of the cluster that ``client`` speaks to.

    ``store`` names the cluster: "hdfs://nameservice", "hdfs://host:port" or "viewfs://table".
    ``timeout``: seconds that a NameNode may take to answer.
    """

    lists_trees = False

    def __init__(self, client: Client, store: str, root: str, timeout: float) -> None:
        self.url = store + (root or "/")
        self._client = client
        self._store = store
        self._root = root
        self._patience = Patience(timeout)
        self._owners = Owners()
        self._readers = HeldReaders(self._open, self._same)
        self._streams = ReplicaStreams()

    def check(self) -> None:
        """See Origin."""
        if not self.stat("").is_dir:
            raise root_is_a_file(self.url)
        for _ in self.list_dir(""):
            return

    def stat(self, path: str) -> Entry:
        """See Origin. One request."""
        return self._entry(path.rpartition("/")[2], self._status(self._full(path)))

    def list_dir(self, path: str) -> Iterator[list[Entry]]:
        """See Origin. A request a thousand names, and one before."""
        full = self._full(path)
        what = self._shown(full)
        if not self._status(full).isdir:
            # Of a file the NameNode lists the file itself.
            raise NotFound(f"{what} is no directory")
        found = self._ask(lambda: self._client.list_status(full), what)
        while page := self._ask(lambda: list(itertools.islice(found, PAGE)), what):
            named = ((status.path.rpartition("/")[2], status) for status in page)
            yield [self._entry(name, status) for name, status in named if is_path(name)]

    def walk(self, path: str) -> Iterator[list[tuple[str, Entry]]]:
        """See Origin. A listing a directory."""
        return walk_directories(
            self.list_dir, path, lambda below: self.stat(f"{path}/{below}" if path else below)
        )

    def version(self, path: str, entry: Entry) -> ObjectVersion:
        """See Origin."""
        return ObjectVersion(self._store, self._full(path).lstrip("/"), entry.size, entry.tag)

    def hides(self, name: str) -> bool:
        """See HidingOrigin."""
        return name == SNAPSHOTS

    def spread(self, version: ObjectVersion) -> int:
        """See Origin: the block size."""
        return int(version.tag.rpartition(" ")[2])

    def read_range(self, version: ObjectVersion, offset: int, into: memoryview, progress: Progress) -> None:
        """See Origin."""
        if not len(into):
            return
        readers = self._readers.of(version)
        try:
            self._read(readers, version, offset, into, progress)
        except Superseded:
            raise
        except BaseException as error:
            # Its list of blocks and their places may be what is wrong.
            self._readers.drop(version)
            if isinstance(error, OriginError):
                raise
            if isinstance(error, Exception) or is_panic(error):
                # What a vanished block says is not what matters if the file is another by now.
                readers.confirm()
                raise failure_of(error, _shown(version)) from None
            raise

    def close(self) -> None:
        """See Origin."""
        self._readers.clear()

    def _read(
        self,
        readers: VersionReaders,
        version: ObjectVersion,
        offset: int,
        into: memoryview,
        progress: Progress,
    ) -> None:
        unit = self.spread(version) or version.size
        with closing(self._streams.chunks(readers, unit, offset, len(into))) as chunks:
            try:
                fill(chunks, into, readers.confirm, progress, _shown(version))
            except LastBlockOpen:
                readers.confirm()
                raise OriginError(
                    f"{_shown(version)} is being written, and its last block cannot be read yet",
                    mend="read it when its writer has closed it",
                ) from None

    def _open(self, version: ObjectVersion) -> FileReader:
        path, what = "/" + version.path, _shown(version)
        try:
            return self._ask(lambda: self._client.read(path), what)
        except (NotFound, IsADirectory) as error:
            raise VersionChanged(f"{what} was deleted while it was open") from error

    def _same(self, version: ObjectVersion) -> None:
        try:
            status = self._status("/" + version.path)
        except NotFound as error:
            raise VersionChanged(f"{_shown(version)} was deleted while it was open") from error
        if status.isdir or (status.length, _tag(status)) != (version.size, version.tag):
            raise VersionChanged(f"{_shown(version)} has changed since it was opened", mend="open it again")

    def _status(self, full: str) -> FileStatus:
        return self._ask(lambda: self._client.get_file_info(full or "/"), self._shown(full))

    def _ask(self, call: Callable[[], T], what: str) -> T:
        try:
            return self._patience.run(call, what)
        except OriginError:
            raise
        except Exception as error:
            raise failure_of(error, what) from None
        except BaseException as error:
            if is_panic(error):
                raise OriginUnavailable(f"{what}: hdfs-native failed") from None
            raise

    def _entry(self, name: str, status: FileStatus) -> Entry:
        uid, gid = self._owners.of(status.owner, status.group)
        return Entry(
            name,
            is_dir=status.isdir,
            size=0 if status.isdir else status.length,
            mtime_ns=status.modification_time * 1_000_000,
            tag="" if status.isdir else _tag(status),
            owner=Owner.of(status.permission & 0o7777, uid, gid),
        )

    def _full(self, path: str) -> str:
        if path and not is_path(path):
            raise NotFound(f"{path!a} does not exist")
        return f"{self._root}/{path}" if path else self._root

    def _shown(self, full: str) -> str:
        return _shown(f"{self._store}{full or '/'}")


def _shown(what: ObjectVersion | str) -> str:
    """For a message: one line whatever the name holds."""
    return f"{str(what)!a}"[1:-1]


def _tag(status: FileStatus) -> str:
    return f"mtime {status.modification_time} block {status.blocksize or 0}"


def open_hdfs(url: str, options: OriginOptions) -> HdfsOrigin:
    """The origin for "hdfs://nameservice/path", "hdfs://host:port/path" or "viewfs://table/path".

    Everything else comes from the files in HADOOP_CONF_DIR. See ``registry.open_origin``.
    """
    if options.endpoint or options.region or options.profile or options.anonymous:
        raise ConfigError(
            "HDFS has no endpoint, region, profile or anonymous access",
            mend="leave them out; settings come from HADOOP_CONF_DIR",
        )
    settings = read_settings()
    store, root = parse_url(url, settings)
    ours = _SETTINGS | missing_fallback(store, settings)
    try:
        client = _client(store, {name: value for name, value in ours.items() if name not in settings})
    except (RuntimeError, OSError, ValueError) as error:
        raise ConfigError(
            f"{store}: hdfs-native cannot use these settings ({_summary(error)})",
            mend="check the URL, and core-site.xml and hdfs-site.xml in HADOOP_CONF_DIR",
        ) from None
    return HdfsOrigin(client, store, root, options.timeout)


def _client(store: str, settings: dict[str, str]) -> Client:
    """For ``store``: a name service or mount table of the configuration, or a NameNode's host."""
    try:
        return Client(store, settings)
    except RuntimeError as error:
        if "No NameNode hosts" not in str(error):
            raise
    return Client(f"{store}:{DEFAULT_PORT}", settings)


def _summary(error: Exception) -> str:
    """The first words of hdfs-native's own, which speak of settings only."""
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
