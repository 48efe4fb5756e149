"""A directory on a web server: files by range request, names from the page that the server makes of it.

Versions are told apart by ETag where that is a strong one, else by Last-Modified and a weak ETag together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, repeat
from urllib.parse import quote, unquote, urlsplit

from fusestripe.errors import (
    ConfigError,
    CredentialsRefused,
    IsADirectory,
    NotFound,
    OriginError,
    PermissionDenied,
    VersionChanged,
)
from fusestripe.origins.base import Entry, OriginOptions, Progress, is_path, root_is_a_file
from fusestripe.origins.http_ranges import fill_range, range_headers
from fusestripe.origins.timestamps import nanoseconds_of_http_date
from fusestripe.origins.walking import walk_directories
from fusestripe.origins.web_access import authorization_for
from fusestripe.origins.web_client import WebClient
from fusestripe.origins.web_index import Link, links_in
from fusestripe.units import ObjectVersion, printable

__all__ = ["WebOrigin", "open_web"]

CHECK_SECONDS = 4.5
"""For each of connecting and answering, so that a dead server is told of within 10 s."""
PAGES = (8, 8, 100)
"""Names of a listing that are looked at together: whoever looks for one name reads the first two pages."""
AT_ONCE = 8
"""Requests for that which are under way at once."""
_LARGEST_INDEX = 64 * 1024 * 1024
DIGITS = 18
"""Of a size in bytes; one with more may not fit into off_t."""
_NO_RANGES = "serve the files as they are, with a server that honours Range (nginx and Apache do)"


class WebOrigin:
    """What lies below ``base`` on ``root`` ("https://host:port"), which ``client`` asks.

    ``base`` is the decoded path of a directory, without slashes around it; it may be "".
    """

    lists_trees = False

    def __init__(self, client: WebClient, root: str, base: str) -> None:
        self.url = f"{root}/{_quoted(base)}"
        self._client = client
        self._root = root
        self._base = base

    def check(self) -> None:
        """See Origin. Reads a byte of the first file, so that a server without ranges is known at once."""
        try:
            links = self._links("", timeout=CHECK_SECONDS)
        except PermissionDenied:
            return  # a directory without an index: its files can be opened by name
        except NotFound as error:
            raise self._no_directory() from error
        first = next((link.name for link in links if not link.is_dir), None)
        if first is not None:
            entry = self.stat(first)
            head = memoryview(bytearray(min(1, entry.size)))
            self.read_range(self.version(first, entry), 0, head, lambda _: None)

    def stat(self, path: str) -> Entry:
        """See Origin. One request."""
        name = path.rpartition("/")[2]
        if not path:
            return Entry("", is_dir=True)
        self._refuse_impossible(path)
        what = self._shown(path)
        try:
            with self._client.answer("HEAD", self._url(path), {}, what) as (_, answer):
                return _entry_of(name, answer.headers, what)
        except IsADirectory:
            return Entry(name, is_dir=True)

    def list_dir(self, path: str) -> Iterator[list[Entry]]:
        """See Origin. A request, and one for each file: what a server's page says is no version.

        A file that the server names and does not give is left out. A directory without a page of its own is
        PermissionDenied after two empty pages: whoever looks for one name only goes on to ask for that.
        """
        if path:
            self._refuse_impossible(path)
        try:
            links = self._links(path)
        except PermissionDenied as error:
            yield []
            yield []
            raise PermissionDenied(
                f"{self._shown(path)} is not listed by the server", mend=error.mend
            ) from error
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="web listing") as threads:
            for page in _paged(links):
                found = threads.map(partial(self._listed, path), page)
                yield [entry for entry in found if entry is not None]

    def walk(self, path: str) -> Iterator[list[tuple[str, Entry]]]:
        """See Origin. A listing a directory."""
        return walk_directories(
            self.list_dir, path, lambda below: Entry(below.rpartition("/")[2], is_dir=True)
        )

    def hides(self, name: str) -> bool:
        """See HidingOrigin: what nginx and others leave out of an index (ngx_http_autoindex_module)."""
        return name.startswith(".")

    def version(self, path: str, entry: Entry) -> ObjectVersion:
        """See Origin."""
        return ObjectVersion(self._root, self._full(path), entry.size, entry.tag)

    def read_range(self, version: ObjectVersion, offset: int, into: memoryview, progress: Progress) -> None:
        """See Origin."""
        if not len(into):
            return
        what = f"{self._root}/{printable(version.path)}"
        headers = {**range_headers(offset, len(into), version.tag), **_unmodified(version.tag)}
        url = f"{self._root}/{_quoted(version.path)}"
        try:
            with self._client.answer("GET", url, headers, what) as (_, answer):
                told = _tag_of(answer.headers, what)
                if answer.status == 200 and told == version.tag:
                    raise OriginError(f"{what}: the server does not honour ranges", mend=_NO_RANGES)
                fill_range(answer, what, version, told, offset=offset, into=into, progress=progress)
        except NotFound as error:
            # It was there when it was opened.
            raise VersionChanged(f"{what} was deleted while it was open") from error

    def close(self) -> None:
        """See Origin."""
        self._client.close()

    def _no_directory(self) -> NotFound:
        """Why the root cannot be one: there is a file, or nothing."""
        try:
            with self._client.answer("HEAD", self._url(""), {}, self._shown(""), timeout=CHECK_SECONDS):
                return root_is_a_file(self.url)
        except OriginError:
            mend = "name a directory; of a single file, the one that it lies in"
            return NotFound(f"{self._shown('')} is no directory", mend=mend)

    def _links(self, path: str, timeout: float | None = None) -> list[Link]:
        url = self._url(path).rstrip("/") + "/"
        headers = {"Accept": "application/json, text/html"}
        with self._client.answer("GET", url, headers, self._shown(path), timeout=timeout) as (final, answer):
            return links_in(answer.read(_LARGEST_INDEX), answer.headers.get("content-type", ""), final)

    def _listed(self, path: str, link: Link) -> Entry | None:
        if link.is_dir:
            return Entry(link.name, is_dir=True)
        try:
            return self.stat(f"{path}/{link.name}" if path else link.name)
        except OriginError as error:
            if error.transient or isinstance(error, CredentialsRefused):
                raise
            return None

    def _refuse_impossible(self, path: str) -> None:
        if not is_path(path):
            raise NotFound(f"{self._shown(path)!a} does not exist")

    def _full(self, path: str) -> str:
        return "/".join(part for part in (self._base, path) if part)

    def _url(self, path: str) -> str:
        return f"{self._root}/{_quoted(self._full(path))}"

    def _shown(self, path: str) -> str:
        return f"{self._root}/{printable(self._full(path))}"


def _paged(links: list[Link]) -> Iterator[list[Link]]:
    start = 0
    for size in chain(PAGES, repeat(PAGES[-1])):
        if start >= len(links):
            return
        yield links[start : start + size]
        start += size


def _entry_of(name: str, headers: Mapping[str, str], what: str) -> Entry:
    """The file that a server's head speaks of."""
    length = headers.get("content-length", "")
    if headers.get("accept-ranges", "").strip().lower() == "none":
        raise OriginError(f"{what}: the server does not honour ranges", mend=_NO_RANGES)
    if not length.isascii() or not length.isdigit() or len(length) > DIGITS:
        raise OriginError(f"{what}: the server does not say how long it is", mend=_NO_RANGES)
    tag = _tag_of(headers, what)
    try:
        mtime = nanoseconds_of_http_date(headers.get("last-modified", ""))
    except ValueError:
        mtime = 0
    return Entry(name, is_dir=False, size=int(length), mtime_ns=mtime, tag=tag)


def _tag_of(headers: Mapping[str, str], what: str) -> str:
    """A strong ETag as it is, else all that tells versions apart (RFC 9110, 8.8)."""
    etag, modified = headers.get("etag", ""), headers.get("last-modified", "")
    if etag.startswith('"'):
        return etag
    if not modified:
        mend = "have the server send ETag or Last-Modified"
        raise OriginError(f"{what}: nothing tells its versions apart", mend=mend)
    return f"{modified} {etag}".strip()


def _unmodified(tag: str) -> dict[str, str]:
    """If-Unmodified-Since, for a version that has no strong ETag (RFC 9110, 13.1.4)."""
    return {} if tag.startswith('"') else {"If-Unmodified-Since": tag.partition(" W/")[0]}


def _quoted(path: str) -> str:
    return quote(path, safe="/-_.~")


def open_web(url: str, options: OriginOptions) -> WebOrigin:
    """The origin for "http://host/path" and https://. See ``registry.open_origin``."""
    if options.endpoint or options.region or options.profile:
        raise ConfigError("a web server has no endpoint, region or profile", mend="the URL says it all")
    try:
        parts = urlsplit(url)
        port = parts.port
        base = unquote(parts.path, errors="strict").strip("/")
    except ValueError:
        raise ConfigError("this is no http(s):// URL", mend="write it like https://host/path") from None
    if "@" in parts.netloc:
        raise ConfigError(f"an {parts.scheme}:// URL holds no credentials", mend="use ~/.netrc")
    if not parts.hostname or parts.query or parts.fragment or (base and not is_path(base)):
        raise ConfigError("this URL names no directory", mend="write it like https://host/path")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    usual = {"http": 80, "https": 443}[parts.scheme.lower()]
    root = f"{parts.scheme.lower()}://{host}" + (f":{port}" if port not in (None, usual) else "")
    client = WebClient(root, authorization_for(parts.hostname, options), options.timeout)
    return WebOrigin(client, root, base)
