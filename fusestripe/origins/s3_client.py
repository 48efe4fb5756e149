"""A thin S3 client: pages of a listing, ranges of an object, with any key and every kind of credentials.

Requests are signed by botocore. Each call is one request: asking again is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote, urlsplit

import msgspec
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from fusestripe.errors import BadAnswer, OriginError, VersionChanged
from fusestripe.origins.aws import AwsAccess
from fusestripe.origins.base import Progress
from fusestripe.origins.http_connections import Answer, HttpConnections
from fusestripe.origins.http_ranges import fill_range, range_headers
from fusestripe.origins.key_listing import ListPage
from fusestripe.origins.s3_errors import error_of, refusal_in
from fusestripe.origins.s3_listing import parse_page
from fusestripe.units import ObjectVersion, printable

__all__ = ["Bucket", "S3Client"]

PAGE_KEYS = 1000
"""The most keys a page can have (ListObjectsV2)."""
_PAGE_BODY = 64 * 1024 * 1024
"""Far more than a page of the longest keys, each byte of them escaped."""
_ERROR_BODY = 64 * 1024


class Bucket(msgspec.Struct, frozen=True):
    """Where a bucket is. ``endpoint`` is a URL without the bucket, without a slash at its end."""

    name: str
    endpoint: str
    region: str
    virtual_hosted: bool

    @property
    def url(self) -> str:
        """The http(s) URL that keys are appended to, after a slash."""
        if not self.virtual_hosted:
            return f"{self.endpoint}/{self.name}"
        scheme, _, host = self.endpoint.partition("://")
        return f"{scheme}://{self.name}.{host}"

    def shown(self, key: str) -> str:
        """``key`` for a message: on one line, whatever characters it has."""
        return f"s3://{self.name}/{printable(key)}"


class S3Client:
    """Requests to one bucket. Blocking; safe to use from many threads."""

    def __init__(self, bucket: Bucket, access: AwsAccess, timeout: float) -> None:
        """``timeout``: seconds without a byte after which a request has failed.

        Raises ConfigError where the CA bundle or the proxy of the environment cannot be used.
        """
        self.bucket = bucket
        self._access = access
        self._timeout = timeout
        self._base = urlsplit(bucket.url).path
        self._connections = HttpConnections(bucket.url, ca_bundle=access.ca_bundle)

    def list_page(
        self,
        prefix: str,
        *,
        delimiter: str = "",
        token: str | None = None,
        max_keys: int = PAGE_KEYS,
        timeout: float | None = None,
    ) -> ListPage:
        """One page of the keys that start with ``prefix``. Raises OriginError subclasses."""
        query = {"list-type": "2", "prefix": prefix, "max-keys": str(max_keys), "encoding-type": "url"}
        if delimiter:
            query["delimiter"] = delimiter
        if token is not None:
            query["continuation-token"] = token
        # Sorted and with %20 for a blank: the form that is signed (SigV4, canonical query string).
        text = "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in sorted(query.items()))
        what = self.bucket.shown(prefix)
        limit = min(timeout or self._timeout, self._timeout)
        with self._answer(f"/?{text}", {}, what, limit) as answer:
            body = answer.read(_PAGE_BODY)
        return parse_page(body)

    def pages(self, prefix: str, *, delimiter: str = "") -> Iterator[ListPage]:
        """All pages, each asked for when it is needed."""
        token: str | None = None
        while True:
            page = self.list_page(prefix, delimiter=delimiter, token=token)
            yield page
            if page.next_token is None:
                return
            if page.next_token == token:
                raise BadAnswer(f"{self.bucket.shown(prefix)}: the listing comes back to the same page")
            token = page.next_token

    def read_range(
        self, key: str, version: ObjectVersion, offset: int, into: memoryview, progress: Progress
    ) -> None:
        """Like ``Origin.read_range``, for the object at ``key``; NotFound where there is none any more."""
        what = self.bucket.shown(key)
        headers = range_headers(offset, len(into), version.tag)
        with self._answer("/" + quote(key, safe="/-_.~"), headers, what, self._timeout) as answer:
            if answer.headers.get("etag") != version.tag:
                raise VersionChanged(f"{what} has changed since it was opened", mend="open it again")
            fill_range(answer, what, offset=offset, size=version.size, into=into, progress=progress)

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    @contextmanager
    def _answer(self, path: str, headers: Mapping[str, str], what: str, timeout: float) -> Iterator[Answer]:
        """The answer to a signed GET of ``path`` in the bucket, where it is 200 or 206."""
        signed = self._signed(self.bucket.url + path, headers)
        with self._connections.request("GET", self._base + path, signed, timeout=timeout) as answer:
            if answer.status not in (200, 206):
                raise self._refusal(answer, what)
            yield answer

    def _refusal(self, answer: Answer, what: str) -> OriginError:
        body = answer.read_some(_ERROR_BODY).decode("utf-8", "replace")
        return error_of(
            refusal_in(answer.status, body, answer.headers),
            what,
            bucket=self.bucket.name,
            endpoint=self.bucket.endpoint,
            anonymous=self._access.anonymous,
        )

    def _signed(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        """``headers`` with the signature of a GET of ``url`` (unsigned where the access is anonymous)."""
        keys = self._access.keys()
        if keys is None:
            return {"User-Agent": "fusestripe", **headers}
        request = AWSRequest("GET", url, headers=dict(headers))
        S3SigV4Auth(Credentials(*keys), "s3", self.bucket.region).add_auth(request)
        return {"User-Agent": "fusestripe", **dict(request.headers.items())}
