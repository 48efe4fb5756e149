"""A thin S3 client for what obstore cannot do: one page of a listing, any key, every kind of credentials.

Requests are signed by botocore and sent by urllib3. Each call is one request: asking again is the caller's.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import msgspec
import urllib3
import urllib3.exceptions
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from fusestripe.errors import BadAnswer, OriginError, VersionChanged
from fusestripe.origins.aws import AwsAccess
from fusestripe.origins.base import Progress
from fusestripe.origins.key_listing import ListPage
from fusestripe.origins.s3_errors import Refusal, error_of, network_error, refusal_in
from fusestripe.origins.s3_listing import parse_page
from fusestripe.units import ObjectVersion

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Bucket", "S3Client"]

CONNECT_SECONDS = 5.0
PAGE_KEYS = 1000
"""The most keys a page can have (ListObjectsV2)."""
_ERROR_BODY = 64 * 1024
_CHUNK = 256 * 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


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
        return f"s3://{self.name}/" + _CONTROL.sub(lambda found: repr(found[0])[1:-1], key)


class S3Client:
    """Requests to one bucket. Blocking; safe to use from many threads."""

    def __init__(self, bucket: Bucket, access: AwsAccess, timeout: float) -> None:
        """``timeout``: seconds without a byte after which a request has failed."""
        self.bucket = bucket
        self._access = access
        self._timeout = timeout
        self._pool = _pool(bucket.url, access.ca_bundle)

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
        with self._answer(f"/?{text}", {}, what, timeout or self._timeout) as response:
            return parse_page(response.read())

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
        """Like ``Origin.read_range``, for the object at ``key``."""
        end = offset + len(into)
        headers = {"Range": f"bytes={offset}-{end - 1}"}
        if not version.tag.startswith("W/"):  # a weak tag never satisfies If-Match (RFC 9110, 13.1.1)
            headers["If-Match"] = version.tag
        what = self.bucket.shown(key)
        with self._answer("/" + quote(key, safe="/-_.~"), headers, what, self._timeout) as response:
            if response.headers.get("etag") != version.tag:
                raise VersionChanged(f"{what} has changed since it was opened", mend="open it again")
            if response.headers.get("content-range") != f"bytes {offset}-{end - 1}/{version.size}":
                raise BadAnswer(f"{what}: the server sent another range than the one asked for")
            done = 0
            for chunk in response.stream(_CHUNK, decode_content=False):
                if done + len(chunk) > len(into):
                    raise BadAnswer(f"{what}: the server sent more than was asked for")
                into[done : done + len(chunk)] = chunk
                done += len(chunk)
                progress(done)
            if done != len(into):
                raise BadAnswer(f"{what}: the server sent {done} of {len(into)} bytes")

    def error(self, refusal: Refusal, what: str) -> OriginError:
        """The error that ``refusal`` of ``what`` means at this bucket."""
        return error_of(
            refusal,
            what,
            bucket=self.bucket.name,
            endpoint=self.bucket.endpoint,
            anonymous=self._access.anonymous,
        )

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.clear()

    @contextmanager
    def _answer(
        self, path: str, headers: Mapping[str, str], what: str, timeout: float
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """The answer to a signed GET, where it is 200 or 206; its connection is kept if it was read whole."""
        url = self.bucket.url + path
        try:
            response = self._pool.request(
                "GET",
                url,
                headers=self._signed(url, headers),
                timeout=urllib3.Timeout(connect=min(CONNECT_SECONDS, timeout), read=timeout),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            try:
                self._accept(response, what)
                yield response
            except BaseException:
                response.close()  # what is left of the body must not meet the next request
                raise
            response.release_conn()
        except urllib3.exceptions.HTTPError as error:
            raise network_error(error, self.bucket.endpoint) from error

    def _accept(self, response: urllib3.BaseHTTPResponse, what: str) -> None:
        if response.status not in (200, 206):
            body = response.read(_ERROR_BODY).decode("utf-8", "replace")
            raise self.error(refusal_in(response.status, body, response.headers), what)

    def _signed(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        """``headers`` with the signature of a GET of ``url`` (unsigned where the access is anonymous)."""
        plain = {"Accept-Encoding": "identity", "User-Agent": "fusestripe"}
        keys = self._access.keys()
        if keys is None:
            return {**plain, **headers}
        request = AWSRequest("GET", url, headers=dict(headers))
        S3SigV4Auth(Credentials(*keys), "s3", self.bucket.region).add_auth(request)
        return {**plain, **dict(request.headers.items())}


def _pool(url: str, ca_bundle: str | None) -> urllib3.PoolManager:
    """Connections to ``url``, through the proxy that the environment names (HTTPS_PROXY, NO_PROXY)."""
    parts = urlsplit(url)
    settings: dict[str, Any] = {"maxsize": 16, "ca_certs": ca_bundle}
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.netloc):
        return urllib3.ProxyManager(proxy, **settings)
    return urllib3.PoolManager(**settings)
