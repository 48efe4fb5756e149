"""What fusestripe asks of a place where bytes durably are.

An Origin is blocking and safe to call from many threads; the callers bring the threads. Paths are relative
to the origin's root, with "/" between components and none in front or behind; "" is the root itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Protocol, runtime_checkable

import msgspec

from fusestripe.errors import NotFound
from fusestripe.units import ObjectVersion, split_url

__all__ = [
    "Entry",
    "HidingOrigin",
    "Origin",
    "OriginOptions",
    "Owner",
    "Progress",
    "SpreadOrigin",
    "Superseded",
    "is_component",
    "is_path",
    "may_hide",
    "place_below",
    "root_is_a_file",
    "unit_of",
]

Progress = Callable[[int], None]
"""Called from the fetching thread with the number of bytes in place so far, counted from the start.

Raises Superseded where they are not wanted any more."""


class Superseded(Exception):
    """Another request was faster: what called ``progress`` is to end, and lets this pass."""


class OriginOptions(msgspec.Struct, frozen=True):
    """How a route's store is reached, where its URL does not say. None: as the store's own tools find it.

    ``endpoint`` is an http(s) URL without a path to a bucket; ``profile`` names a section of ~/.aws;
    ``anonymous`` sends no credentials; ``client`` is "native" or "libhdfs", for HDFS alone;
    ``timeout`` is the seconds without a byte after which a request fails.
    """

    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False
    client: str | None = None
    timeout: float = 30.0


class Owner(msgspec.Struct, frozen=True, gc=False):
    """To whom a file belongs, and its permission bits. None is a name that this machine does not know."""

    mode: int
    uid: int | None
    gid: int | None

    @classmethod
    @lru_cache(4096)
    def of(cls, mode: int, uid: int | None, gid: int | None) -> Owner:
        """One object for all that are equal: a listing may hold a million."""
        return cls(mode, uid, gid)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A file or a directory as an origin shows it. ``tag`` is "" for a directory.

    ``mtime_ns`` is nanoseconds since the epoch (0: the origin has none, as for a directory that only keys
    imply). ``owner`` is None where the origin has no such thing.
    """

    name: str
    is_dir: bool
    size: int = 0
    mtime_ns: int = 0
    tag: str = ""
    owner: Owner | None = None


class Origin(Protocol):
    """One store: a bucket and prefix, a directory, a cluster's subtree.

    Every method raises only OriginError subclasses: NotFound, PermissionDenied, CredentialsRefused,
    VersionChanged, OriginUnavailable (transient), BadAnswer (transient).
    """

    @property
    def url(self) -> str:
        """What this origin shows, for people. Holds no secret."""
        ...

    @property
    def lists_trees(self) -> bool:
        """Whether walk() costs about one request a thousand files, however many directories they are in."""
        ...

    def check(self) -> None:
        """Raise unless the root exists and can be listed with these credentials.

        The error's message and mend are what `fusestripe mount` prints.
        """
        ...

    def stat(self, path: str) -> Entry:
        """The file or directory at ``path``. Where both exist, the directory. Raises NotFound."""
        ...

    def list_dir(self, path: str) -> Iterator[list[Entry]]:
        """The direct children of the directory ``path``, page by page, each page one request or less.

        A name appears once: where a file and a directory share it, the directory. A name that cannot be a
        path component (see ``is_component``) is left out. Raises NotFound where there is no such directory.
        """
        ...

    def walk(self, path: str) -> Iterator[list[tuple[str, Entry]]]:
        """Every file below the directory ``path`` with its path relative to it, page by page, in key order.

        Only called where ``lists_trees``. A directory that holds nothing appears as an Entry of its own.
        """
        ...

    def version(self, path: str, entry: Entry) -> ObjectVersion:
        """The version that ``entry`` speaks of.

        ``path`` is relative to this origin's root; the version's own path and origin are those of the whole
        store, the same from every route that shows the object.
        """
        ...

    def read_range(self, version: ObjectVersion, offset: int, into: memoryview, progress: Progress) -> None:
        """Fill ``into`` with the bytes of ``version`` from ``offset`` on, in one request.

        ``offset + len(into) <= version.size``. Bytes are put in order, and ``progress`` is called as they
        arrive. Returns only when every byte is in place and the origin has vouched that they are of
        ``version``; raises VersionChanged where they are of another, BadAnswer where the answer's range or
        length is not the one asked for. What ``progress`` has reported is of ``version`` even if it raises.
        Superseded passes.
        """
        ...

    def close(self) -> None:
        """Let go of connections. Nothing is called afterwards."""
        ...


@runtime_checkable
class SpreadOrigin(Protocol):
    """An Origin whose files lie in pieces on many servers, so that it matters which are read at once."""

    def spread(self, version: ObjectVersion) -> int:
        """How many bytes, from each multiple of it on, lie on one server. Asks nothing."""
        ...


def root_is_a_file(url: str) -> NotFound:
    """What ``check`` raises where ``url``, the root, names a file: only a directory can be one."""
    return NotFound(f"{url} is a file", mend=f"name the directory that it lies in, {split_url(url)[0]}")


@runtime_checkable
class HidingOrigin(Protocol):
    """An Origin with names that no listing shows, and that are there for whoever knows them."""

    def hides(self, name: str) -> bool:
        """Whether ``name`` may be in a directory although its listing does not show it. Asks nothing."""
        ...


def may_hide(origin: Origin, name: str) -> bool:
    """Whether a listing of ``origin``'s says nothing of whether ``name`` is there."""
    return isinstance(origin, HidingOrigin) and origin.hides(name)


def place_below(origin: Origin, version: ObjectVersion) -> str | None:
    """The path of ``version`` below the root of ``origin``; None where it is not there. Asks nothing."""
    root = origin.version("", Entry("", is_dir=True))
    if version.origin != root.origin:
        return None
    if not root.path:
        return version.path
    inside = version.path.removeprefix(f"{root.path}/")
    return inside if inside != version.path else None


def unit_of(origin: Origin, version: ObjectVersion) -> int:
    """Bytes of ``version`` that lie on one server; 0 where the origin does not say."""
    return origin.spread(version) if isinstance(origin, SpreadOrigin) else 0


def is_component(name: str) -> bool:
    """Whether ``name`` can be one component of a path: not "", ".", "..", no "/" or NUL, at most 255 bytes.

    255 bytes is NAME_MAX of Linux (limits.h), and FUSE_NAME_MAX is more.
    """
    return (
        name not in ("", ".", "..")
        and "/" not in name
        and "\0" not in name
        and len(name.encode("utf-8", "surrogateescape")) <= 255
    )


def is_path(path: str) -> bool:
    """Whether ``path`` can name something below a root: components with "/" between, and UTF-8 all over.

    A name that is not UTF-8 (Python shows it with surrogates) can be no part of an ObjectVersion.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return all(map(is_component, path.split("/")))
