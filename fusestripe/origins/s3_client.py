"""A thin S3 client: pages of a listing, ranges of an object, with any key and every kind of credentials.

Requests are signed by botocore. Each call is one request: asking again is the caller's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from urllib.parse import quote, urlsplit

import msgspec
from botocore.auth import SIGV4_TIMESTAMP, S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from fusestripe.errors import CredentialsRefused, OriginError
from fusestripe.origins.aws import AwsAccess
from fusestripe.origins.base import Progress
from fusestripe.origins.http_client import HttpClient, checked_endpoint, query_of
from fusestripe.origins.http_errors import Refusal
from fusestripe.origins.http_ranges import fill_range, range_headers
from fusestripe.origins.key_listing import ListPage
from fusestripe.origins.keys import PAGE_KEYS
from fusestripe.origins.s3_errors import error_of
from fusestripe.origins.s3_listing import parse_page
from fusestripe.units import ObjectVersion, printable

__all__ = ["Bucket", "S3Client", "locate"]

log = logging.getLogger(__name__)

_LARGEST_PAGE = 32 * 1024 * 1024
"""A thousand keys of 1,024 bytes, each byte escaped, take a tenth of it."""
_SAME_TIME = 60.0
"""Seconds. Servers take times a quarter of an hour apart for the same, so this is not what they refuse."""
_UNSIGNED = {"accept-encoding", "user-agent"}
"""Headers that servers in between may change, which would spoil the signature."""


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


def locate(name: str, access: AwsAccess) -> Bucket:
    """Path-style at an endpoint of one's own, else AWS's virtual host, whose certificate allows no dots.

    Raises ConfigError where the endpoint cannot be used.
    """
    if access.endpoint is None:
        suffix = "amazonaws.com.cn" if access.region.startswith("cn-") else "amazonaws.com"
        return Bucket(name, f"https://s3.{access.region}.{suffix}", access.region, "." not in name)
    return Bucket(name, checked_endpoint(access.endpoint), access.region, virtual_hosted=False)


class ServerClock:
    """The time for signatures: this machine's, until a server has said that it has another."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._lock = threading.Lock()

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time() + self._ahead

    def set_by(self, date: str, signed: str, endpoint: str) -> str:
        """What was wrong, where the header ``date`` of ``endpoint`` is not the time ``signed``; else "".

        Of several requests that were signed by the old clock the first sets it, and all may be sent again.
        """
        try:
            told = parsedate_to_datetime(date).timestamp()
            sent = datetime.strptime(signed, SIGV4_TIMESTAMP).replace(tzinfo=timezone.utc).timestamp()
        except (ValueError, TypeError):
            return ""
        if abs(told - sent) < _SAME_TIME:
            return ""
        with self._lock:
            if abs(told - self.now()) >= _SAME_TIME:
                self._ahead = told - time.time()
                off = f"{abs(self._ahead):.0f} s {'behind' if self._ahead > 0 else 'ahead of'}"
                log.warning(
                    "this machine's clock is %s that of %s: requests carry the time there",
                    off,
                    endpoint,
                    extra={"mend": "timedatectl set-ntp true"},
                )
        return "this machine's clock was not the server's"


class _Signature(S3SigV4Auth):  # type: ignore[misc]
    """SigV4 with the time of ``clock``."""

    def __init__(self, credentials: Credentials, service: str, region: str, clock: ServerClock) -> None:
        super().__init__(credentials, service, region)
        self._clock = clock

    def _modify_request_before_signing(self, request: AWSRequest) -> None:
        """Called by add_auth once ``timestamp`` is this machine's, and before anything is made of it."""
        now = datetime.fromtimestamp(self._clock.now(), timezone.utc)
        request.context["timestamp"] = now.strftime(SIGV4_TIMESTAMP)
        super()._modify_request_before_signing(request)


class S3Client:
    """See KeyStore. Requests to one bucket."""

    def __init__(self, bucket: Bucket, access: AwsAccess, timeout: float) -> None:
        """``timeout``: seconds without a byte after which a request has failed.

        Raises ConfigError where the CA bundle or the proxy of the environment cannot be used.
        """
        self._bucket = bucket
        self._access = access
        self._server = urlsplit(bucket.url)._replace(path="").geturl()
        self._http = HttpClient(
            bucket.url,
            authorize=self._sign,
            refused=self._refused,
            timeout=timeout,
            ca_bundle=access.ca_bundle,
            again=self._again,
        )
        self._clock = ServerClock()

    def list_page(
        self,
        prefix: str,
        *,
        delimiter: str = "",
        token: str | None = None,
        max_keys: int = PAGE_KEYS,
        timeout: float | None = None,
    ) -> ListPage:
        """See KeyStore."""
        # In the order of their names: the form that is signed (SigV4, canonical query string).
        query = query_of(
            {
                "continuation-token": token or "",
                "delimiter": delimiter,
                "encoding-type": "url",
                "list-type": "2",
                "max-keys": str(max_keys),
                "prefix": prefix,
            }
        )
        with self._http.answer(f"/?{query}", {}, self.shown(prefix), timeout=timeout) as answer:
            body = answer.read(_LARGEST_PAGE)
        return parse_page(body)

    def read_range(
        self, key: str, version: ObjectVersion, offset: int, into: memoryview, progress: Progress
    ) -> None:
        """See KeyStore."""
        what = self.shown(key)
        headers = range_headers(offset, len(into), version.tag)
        with self._http.answer("/" + quote(key, safe="/-_.~"), headers, what) as answer:
            told = answer.headers.get("etag")
            fill_range(answer, what, version, told, offset=offset, into=into, progress=progress)

    def shown(self, key: str) -> str:
        """See KeyStore."""
        return f"s3://{self._bucket.name}/{printable(key)}"

    def close(self) -> None:
        """See KeyStore."""
        self._http.close()

    def _sign(self, method: str, target: str, headers: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
        """See Authorize. Unsigned where the access is anonymous."""
        keys = self._access.keys()
        if keys is None:
            return target, headers
        signed = {name: value for name, value in headers.items() if name.lower() not in _UNSIGNED}
        request = AWSRequest(method, self._server + target, headers=signed)
        _Signature(Credentials(*keys), "s3", self._bucket.region, self._clock).add_auth(request)
        return target, {**headers, **dict(request.headers.items())}

    def _again(self, error: OriginError, sent: Mapping[str, str], told: Mapping[str, str]) -> str:
        """See Again: the server's clock is known now, or there are other credentials."""
        if isinstance(error, CredentialsRefused) and error.is_skewed:
            date, signed = told.get("date", ""), sent.get("X-Amz-Date", "")
            return self._clock.set_by(date, signed, self._bucket.endpoint)
        used = sent.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
        renewed = self._access.renew(used, sent.get("X-Amz-Security-Token"))
        return "the credentials were renewed" if renewed else ""

    def _refused(self, refusal: Refusal, what: str) -> OriginError:
        return error_of(
            refusal,
            what,
            bucket=self._bucket.name,
            endpoint=self._bucket.endpoint,
            anonymous=self._access.anonymous,
        )
