"""A store of keys as files and directories: what is the same for S3-like stores, whatever they speak."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from fusestripe.errors import BadAnswer, ConfigError, NotFound, VersionChanged
from fusestripe.origins import key_listing
from fusestripe.origins.base import Entry, Progress, is_path, root_is_a_file
from fusestripe.origins.key_listing import ListPage
from fusestripe.units import ObjectVersion

__all__ = ["CHECK_SECONDS", "PAGE_KEYS", "KeyOrigin", "KeyStore", "parse_key_url"]

CHECK_SECONDS = 4.5
"""For each of connecting and answering, so that a dead endpoint is told of within 10 s."""

PAGE_KEYS = 1000
"""Keys asked for at once: the most that S3 and Google give, and a fifth of what Azure would."""

STAT_KEYS = 16
"""Keys asked for by ``stat``: its own, and those few that sort between "key" and "key/"."""


class KeyStore(Protocol):
    """Requests to one bucket or container. Blocking; safe to use from many threads. A call is one request."""

    def list_page(
        self,
        prefix: str,
        *,
        delimiter: str = "",
        token: str | None = None,
        max_keys: int = PAGE_KEYS,
        timeout: float | None = None,
    ) -> ListPage:
        """One page of the keys that start with ``prefix``. ``timeout``: seconds without a byte."""
        ...

    def read_range(
        self, key: str, version: ObjectVersion, offset: int, into: memoryview, progress: Progress
    ) -> None:
        """Like ``Origin.read_range``, for the object at ``key``; ``into`` is not empty."""
        ...

    def shown(self, key: str) -> str:
        """``key`` for a message, on one line."""
        ...

    def close(self) -> None:
        """Close the idle connections."""
        ...


class KeyOrigin:
    """The keys of ``store`` that lie below ``prefix`` (without slashes around it; may be "").

    ``url`` is what it shows, for people; ``identity`` names the whole bucket among all others.
    """

    lists_trees = True

    def __init__(self, store: KeyStore, *, url: str, identity: str, prefix: str) -> None:
        self.url = url
        self._identity = identity
        self._store = store
        self._prefix = prefix

    def check(self) -> None:
        """See Origin. One request where all is well."""
        where = self._inside("")
        page = self._store.list_page(where, max_keys=1, timeout=CHECK_SECONDS)
        if not page.empty or not where:
            return
        siblings = self._siblings(self._prefix)
        if self._is_directory(self._prefix, siblings):
            return
        if any(found.key == self._prefix for found in siblings.objects):
            raise root_is_a_file(self._shown(""))
        raise NotFound(f"nothing lies below {self._shown('')}", mend="check the prefix")

    def stat(self, path: str) -> Entry:
        """See Origin. One request, seldom two."""
        name = path.rpartition("/")[2]
        if not path:
            return Entry("", is_dir=True)
        self._refuse_impossible(path)
        key = self._key(path)
        page = self._siblings(key)
        if self._is_directory(key, page):
            return Entry(name, is_dir=True)
        for found in page.objects:
            if found.key == key:
                return found.entry(name)
        raise NotFound(f"{self._shown(path)} does not exist")

    def list_dir(self, path: str) -> Iterator[list[Entry]]:
        """See Origin. A request a thousand names."""
        where = self._found(path)
        return key_listing.children(self._listed(where, path, delimiter="/"), where)

    def walk(self, path: str) -> Iterator[list[tuple[str, Entry]]]:
        """See Origin. A request a thousand keys."""
        where = self._found(path)
        return key_listing.tree(self._listed(where, path), where)

    def version(self, path: str, entry: Entry) -> ObjectVersion:
        """See Origin."""
        return ObjectVersion(self._identity, self._key(path), entry.size, entry.tag)

    def read_range(self, version: ObjectVersion, offset: int, into: memoryview, progress: Progress) -> None:
        """See Origin."""
        if not len(into):
            return
        try:
            self._store.read_range(version.path, version, offset, into, progress)
        except NotFound as error:
            # It was there when it was opened.
            what = self._store.shown(version.path)
            raise VersionChanged(f"{what} was deleted while it was open") from error

    def close(self) -> None:
        """See Origin."""
        self._store.close()

    def _siblings(self, key: str) -> ListPage:
        """The first keys that begin with ``key``, and so itself and maybe what makes it a directory."""
        return self._first_page(key, delimiter="/", max_keys=STAT_KEYS)

    def _is_directory(self, key: str, page: ListPage | None = None) -> bool:
        """Whether ``key`` is one, by ``page`` of its siblings or by what has to be asked beyond."""
        page = page or self._siblings(key)
        inside = key + "/"
        if inside in page.prefixes:
            return True
        undecided = page.next_token is not None and page.last < inside
        return undecided and bool(self._first_page(inside, max_keys=1).objects)

    def _first_page(self, prefix: str, *, delimiter: str = "", max_keys: int) -> ListPage:
        """The first page that holds anything; a store may give empty ones before it."""
        pages = self._pages(prefix, delimiter=delimiter, max_keys=max_keys)
        return next((page for page in pages if page.objects or page.prefixes), ListPage([], [], None))

    def _pages(self, prefix: str, *, delimiter: str = "", max_keys: int = PAGE_KEYS) -> Iterator[ListPage]:
        """All pages, each asked for when it is needed."""
        token: str | None = None
        while True:
            page = self._store.list_page(prefix, delimiter=delimiter, token=token, max_keys=max_keys)
            yield page
            if page.next_token is None:
                return
            if page.next_token == token:
                raise BadAnswer(f"{self._store.shown(prefix)}: the listing comes back to the same page")
            token = page.next_token

    def _listed(self, where: str, path: str, *, delimiter: str = "") -> Iterator[ListPage]:
        """Raises NotFound where no key lies in the directory. An empty bucket is an empty directory."""
        some = not where
        for page in self._pages(where, delimiter=delimiter):
            some = some or bool(page.objects or page.prefixes)
            yield page
        if not some and not self._is_directory(self._key(path)):
            raise NotFound(f"{self._shown(path)} is no directory")

    def _found(self, path: str) -> str:
        self._refuse_impossible(path)
        return self._inside(path)

    def _refuse_impossible(self, path: str) -> None:
        """A path with a component that is hidden, or that is no UTF-8 and so can be no key."""
        if path and not is_path(path):
            raise NotFound(f"{self._shown(path)!a} does not exist")

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    def _inside(self, path: str) -> str:
        """What the keys in the directory ``path`` start with."""
        key = self._key(path)
        return key + "/" if key else ""

    def _shown(self, path: str) -> str:
        return self._store.shown(self._key(path))


def parse_key_url(url: str, *, container: str) -> tuple[str, str]:
    """The authority and the prefix in "scheme://authority/prefix"; ``container`` is what the former names.

    What follows the authority is taken as it stands: a key may hold "?", "#" and "%". Raises ConfigError.
    """
    scheme, _, rest = url.partition("://")
    name, _, prefix = rest.partition("/")
    if not name:
        raise ConfigError(f"the URL names no {container}", mend=f"write {scheme}://{container}/prefix")
    prefix = prefix.strip("/")
    if prefix and not is_path(prefix):
        raise ConfigError(f"{prefix!a} can be no path", mend='leave out "//", "." and ".."')
    return name, prefix
