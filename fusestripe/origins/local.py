"""A directory of this machine: a file server's mount, or a local disk.

A version's identity is its size, ctime and inode, looked at before and after the bytes are read. Symbolic
links are followed as long as they stay inside the root; what leads out of it, in a circle or nowhere is not
shown, and neither are devices, sockets, pipes, and names that are not UTF-8.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote, unquote

from fusestripe.errors import (
    BadAnswer,
    ConfigError,
    IsADirectory,
    NotFound,
    OriginError,
    OriginUnavailable,
    PermissionDenied,
    VersionChanged,
)
from fusestripe.origins.base import Entry, OriginOptions, Owner, Progress, is_path, root_is_a_file
from fusestripe.origins.walking import walk_directories
from fusestripe.units import ObjectVersion

__all__ = ["LocalOrigin", "directory_of", "open_local"]

PAGE = 1000
"""Entries a page."""
CHUNK = 1024 * 1024
"""Bytes between two looks at the file's identity, and two calls of ``progress``."""

_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENXIO}
_FORBIDDEN = {errno.EACCES, errno.EPERM}


class LocalOrigin:
    """The tree below ``root``, an absolute path without symbolic links."""

    lists_trees = False

    def __init__(self, root: str) -> None:
        self._root = root
        self.url = "file://" + quote(root)

    def check(self) -> None:
        """See Origin."""
        try:
            with os.scandir(self._root) as found:
                next(found, None)
        except NotADirectoryError as error:
            raise root_is_a_file(self.url) from error
        except FileNotFoundError as error:
            raise NotFound(f"{self._root} does not exist", mend="check the path") from error
        except OSError as error:
            raise _error_of(error, self._root) from error

    def stat(self, path: str) -> Entry:
        """See Origin."""
        name = path.rpartition("/")[2]
        with self._opened(path, os.O_PATH) as descriptor:
            entry = _entry(name, os.fstat(descriptor))
        if entry is None or (entry.is_dir and self._circles(path)):
            raise NotFound(f"{self._full(path)!a} is neither a file nor a directory")
        return entry

    def list_dir(self, path: str) -> Iterator[list[Entry]]:
        """See Origin."""
        with self._opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor, os.scandir(descriptor) as found:
            entries = self._entries(path, found)
            while page := list(itertools.islice(entries, PAGE)):
                yield page

    def walk(self, path: str) -> Iterator[list[tuple[str, Entry]]]:
        """See Origin. A listing a directory."""
        return walk_directories(
            self.list_dir, path, lambda below: self.stat(f"{path}/{below}" if path else below)
        )

    def version(self, path: str, entry: Entry) -> ObjectVersion:
        """See Origin."""
        return ObjectVersion("file://", self._full(path).lstrip("/"), entry.size, entry.tag)

    def read_range(self, version: ObjectVersion, offset: int, into: memoryview, progress: Progress) -> None:
        """See Origin."""
        if not len(into):
            return
        try:
            inside = os.path.relpath("/" + version.path, self._root)
            with self._opened(inside, os.O_RDONLY | os.O_NONBLOCK) as descriptor:
                self._read(descriptor, version, offset, into, progress)
        except NotFound as error:
            # It was there when it was opened.
            raise VersionChanged(f"{str(version)!a} was deleted while it was open") from error

    def close(self) -> None:
        """See Origin. Nothing is kept open."""

    def _read(
        self, descriptor: int, version: ObjectVersion, offset: int, into: memoryview, progress: Progress
    ) -> None:
        self._same(descriptor, version)
        done = 0
        while done < len(into):
            count = os.preadv(descriptor, [into[done : done + CHUNK]], offset + done)
            self._same(descriptor, version)
            if not count:
                raise BadAnswer(f"{str(version)!a} ends before its size")
            done += count
            progress(done)

    def _same(self, descriptor: int, version: ObjectVersion) -> None:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectory(f"{str(version)!a} is a directory")
        if (found.st_size, _tag(found)) != (version.size, version.tag):
            raise VersionChanged(f"{str(version)!a} has changed since it was opened", mend="open it again")

    def _entries(self, path: str, found: Iterator[os.DirEntry[str]]) -> Iterator[Entry]:
        for item in found:
            if is_path(item.name):
                entry = self._entry_of(path, item)
                if entry is not None:
                    yield entry

    def _entry_of(self, path: str, item: os.DirEntry[str]) -> Entry | None:
        """None for what is not shown, or gone since the directory was read."""
        try:
            if item.is_symlink():
                return self.stat(f"{path}/{item.name}" if path else item.name)
            return _entry(item.name, item.stat(follow_symlinks=False))
        except (NotFound, PermissionDenied, FileNotFoundError):
            return None

    @contextmanager
    def _opened(self, path: str, flags: int) -> Iterator[int]:
        """A descriptor of ``path``. What was opened, not what was asked for, must lie inside the root."""
        if path and not is_path(path):
            raise NotFound(f"{path!a} does not exist")
        full = self._full(path)
        try:
            descriptor = os.open(full, flags | os.O_CLOEXEC | os.O_NOCTTY)
            try:
                real = os.readlink(f"/proc/self/fd/{descriptor}")  # proc(5): where the kernel says it is
                if not _lies_in(real, self._root):
                    raise PermissionDenied(f"{full!a} leads out of {self._root}")
                yield descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _error_of(error, full) from error

    def _circles(self, path: str) -> bool:
        """Whether the directory ``path`` is, by a symbolic link, one of those that lead to it."""
        if os.path.realpath(self._full(path)) == self._full(path):
            return False
        identity = _identity(self._full(path))
        parts = path.split("/")
        return any(_identity(self._full("/".join(parts[:depth]))) == identity for depth in range(len(parts)))

    def _full(self, path: str) -> str:
        return os.path.join(self._root, path) if path else self._root


def open_local(url: str, options: OriginOptions) -> LocalOrigin:
    """The origin for "file:///directory". See ``registry.open_origin``."""
    directory = directory_of(url)
    if options.endpoint or options.region or options.profile or options.anonymous:
        raise ConfigError(
            "a directory has no endpoint, region, profile or credentials", mend="leave them out"
        )
    return LocalOrigin(directory)


def directory_of(url: str) -> str:
    """The directory that ``url`` names (RFC 8089: percent-encoded), without links. Raises ConfigError."""
    host, slash, path = url.partition("://")[2].partition("/")
    if host not in ("", "localhost") or not slash:
        raise ConfigError("a file:// URL holds an absolute path", mend="write file:///directory")
    path = "/" + unquote(path)
    if "\0" in path:
        raise ConfigError("a path holds no NUL", mend="check the URL")
    return os.path.realpath(path)


def _entry(name: str, found: os.stat_result) -> Entry | None:
    """None for what is neither a file nor a directory."""
    is_dir = stat.S_ISDIR(found.st_mode)
    if not is_dir and not stat.S_ISREG(found.st_mode):
        return None
    return Entry(
        name,
        is_dir=is_dir,
        size=0 if is_dir else found.st_size,
        mtime_ns=found.st_mtime_ns,
        tag="" if is_dir else _tag(found),
        owner=Owner.of(stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid),
    )


def _tag(found: os.stat_result) -> str:
    """Not the mtime, which `cp -p` and tar set back to what it was; nobody can set a ctime (inode(7))."""
    return f"{found.st_ctime_ns:x}-{found.st_ino:x}"


def _identity(full: str) -> tuple[int, int]:
    found = os.stat(full)
    return found.st_dev, found.st_ino


def _lies_in(real: str, root: str) -> bool:
    return real == root or real.startswith(root.rstrip("/") + "/")


def _error_of(error: OSError, full: str) -> OriginError:
    said = f"{full!a}: {error.strerror}"
    if error.errno in _ABSENT:
        return NotFound(said)
    if error.errno in _FORBIDDEN:
        return PermissionDenied(said, mend="check its owner and mode")
    return OriginUnavailable(said)
