"""S3 and everything that speaks its protocol, by way of our own thin client (``s3_client``).

Versions are told apart by ETag, which a listing and a GET write in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from fusestripe.errors import ConfigError, NotFound, VersionChanged
from fusestripe.origins import key_listing
from fusestripe.origins.aws import AwsAccess, find_access
from fusestripe.origins.base import Entry, OriginOptions, Progress, is_path
from fusestripe.origins.s3_client import Bucket, S3Client
from fusestripe.units import ObjectVersion

__all__ = ["S3Origin", "open_s3"]

CHECK_SECONDS = 4.5
"""For each of connecting and answering, so that a dead endpoint is told of within 10 s."""

STAT_KEYS = 16
"""Keys asked for by ``stat``: its own, and those few that sort between "key" and "key/"."""


class S3Origin:
    """The keys of ``client``'s bucket that lie below ``prefix`` (without slashes around it; may be "").

    ``where`` tells this bucket from others of the same name: "?endpoint=..." where it is not AWS's.
    """

    lists_trees = True

    def __init__(self, client: S3Client, prefix: str, where: str) -> None:
        self.url = f"s3://{client.bucket.name}" + (f"/{prefix}" if prefix else "") + where
        self._identity = f"s3://{client.bucket.name}" + where
        self.bucket = client.bucket
        self._client = client
        self._prefix = prefix

    def check(self) -> None:
        """See Origin. One request."""
        where = self._inside("")
        page = self._client.list_page(where, max_keys=1, timeout=CHECK_SECONDS)
        if page.empty and where:
            raise NotFound(f"nothing lies below {self._shown('')}", mend="check the prefix")

    def stat(self, path: str) -> Entry:
        """See Origin. One request, seldom two."""
        name = path.rpartition("/")[2]
        if not path:
            return Entry("", is_dir=True)
        self._refuse_impossible(path)
        key = self._key(path)
        page = self._client.list_page(key, delimiter="/", max_keys=STAT_KEYS)
        inside = key + "/"
        if inside in page.prefixes:
            return Entry(name, is_dir=True)
        undecided = page.next_token is not None and page.last < inside
        if undecided and not self._client.list_page(inside, max_keys=1).empty:
            return Entry(name, is_dir=True)
        for found in page.objects:
            if found.key == key:
                return found.entry(name)
        raise NotFound(f"{self._shown(path)} does not exist")

    def list_dir(self, path: str) -> Iterator[list[Entry]]:
        """See Origin. A request a thousand names."""
        where = self._found(path)
        return key_listing.children(self._pages(path, delimiter="/"), where)

    def walk(self, path: str) -> Iterator[list[tuple[str, Entry]]]:
        """See Origin. A request a thousand keys."""
        where = self._found(path)
        return key_listing.tree(self._pages(path), where)

    def version(self, path: str, entry: Entry) -> ObjectVersion:
        """See Origin."""
        return ObjectVersion(self._identity, self._key(path), entry.size, entry.tag)

    def read_range(self, version: ObjectVersion, offset: int, into: memoryview, progress: Progress) -> None:
        """See Origin."""
        if not len(into):
            return
        try:
            self._client.read_range(version.path, version, offset, into, progress)
        except NotFound as error:
            # It was there when it was opened.
            what = self.bucket.shown(version.path)
            raise VersionChanged(f"{what} was deleted while it was open") from error

    def close(self) -> None:
        """See Origin."""
        self._client.close()

    def _pages(self, path: str, *, delimiter: str = "") -> Iterator[key_listing.ListPage]:
        """Raises NotFound where no key lies in the directory. An empty bucket is an empty directory."""
        where = self._inside(path)
        some = not where
        for page in self._client.pages(where, delimiter=delimiter):
            some = some or bool(page.objects or page.prefixes)
            yield page
        if not some:
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
        return self.bucket.shown(self._key(path))


def open_s3(url: str, options: OriginOptions) -> S3Origin:
    """The origin for "s3://bucket/prefix". See ``registry.open_origin``."""
    name, prefix = _parse(url)
    access = find_access(options)
    bucket = _locate(name, access)
    where = ""
    if access.endpoint is not None:
        parts = urlsplit(bucket.endpoint)
        where = f"?endpoint={parts.netloc}{parts.path}"
    return S3Origin(S3Client(bucket, access, options.timeout), prefix, where)


def _parse(url: str) -> tuple[str, str]:
    """Bucket and prefix. What follows the bucket is taken as it stands: a key may hold "?", "#" and "%"."""
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if "@" in bucket:
        raise ConfigError("an s3:// URL holds no credentials", mend="use the environment or a profile")
    if not bucket:
        raise ConfigError("the URL names no bucket", mend="write s3://bucket/prefix")
    prefix = prefix.strip("/")
    if prefix and not is_path(prefix):
        raise ConfigError(f"{prefix!a} can be no path", mend='leave out "//", "." and ".."')
    return bucket, prefix


def _locate(bucket: str, access: AwsAccess) -> Bucket:
    """Path-style at an endpoint of one's own, else AWS's virtual host, whose certificate allows no dots."""
    if access.endpoint is None:
        suffix = "amazonaws.com.cn" if access.region.startswith("cn-") else "amazonaws.com"
        return Bucket(bucket, f"https://s3.{access.region}.{suffix}", access.region, "." not in bucket)
    try:
        parts = urlsplit(access.endpoint)
        usable = (
            parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
        )
    except ValueError:  # a port that is no number
        usable = False
    if not usable:
        shown = access.endpoint.rpartition("@")[2]
        raise ConfigError(f"{shown!r} is not an endpoint", mend='write it like "https://host:port"')
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(
            "an endpoint holds no credentials, query or fragment", mend='write "https://host:port"'
        )
    return Bucket(bucket, access.endpoint.rstrip("/"), access.region, virtual_hosted=False)
