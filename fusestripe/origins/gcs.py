"""Google Cloud Storage by its JSON API. Versions are told apart by generation, which no two ever share.

https://cloud.google.com/storage/docs/json_api/v1
"""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit

import msgspec

from fusestripe.errors import BadAnswer, ConfigError, NotFound, OriginError, OriginUnavailable
from fusestripe.origins.base import OriginOptions, Progress
from fusestripe.origins.google_access import ENDPOINT, GoogleAccess, find_access
from fusestripe.origins.http_client import HttpClient, query_of
from fusestripe.origins.http_errors import Refusal, Wording, error_of
from fusestripe.origins.http_ranges import fill_range, range_headers
from fusestripe.origins.key_listing import ListedObject, ListPage, byte_count
from fusestripe.origins.keys import PAGE_KEYS, KeyOrigin, parse_key_url
from fusestripe.origins.timestamps import nanoseconds_of
from fusestripe.units import ObjectVersion, printable

__all__ = ["GcsBucket", "open_gcs", "parse_listing"]

_FIELDS = "items(name,size,generation,updated),prefixes,nextPageToken"
_LARGEST_PAGE = 32 * 1024 * 1024
"""A thousand names of up to 1,024 bytes take a tenth of it."""
_REASON = re.compile(r'"reason":\s*"([A-Za-z ]{1,60})"')
_WORDING = Wording(
    credentials="set GOOGLE_APPLICATION_CREDENTIALS or run `gcloud auth application-default login`",
    rights="they need storage.objects.list and storage.objects.get (roles/storage.objectViewer)",
    foreign="is this a Google Cloud Storage endpoint?",
)
_THROTTLED = {"rateLimitExceeded", "userRateLimitExceeded"}
"""Google says these with 403, too: https://cloud.google.com/storage/docs/json_api/v1/status-codes"""


class GcsBucket:
    """See KeyStore. Requests to the bucket ``name``."""

    def __init__(self, name: str, access: GoogleAccess, timeout: float) -> None:
        self._name = name
        self._anonymous = access.anonymous
        self._http = HttpClient(
            access.endpoint,
            authorize=access.authorize,
            refused=self._refused,
            timeout=timeout,
            again=lambda _error, sent, _told: "the token was renewed" if access.renew(sent) else "",
        )

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
        query = query_of(
            {
                "prefix": prefix,
                "delimiter": delimiter,
                "maxResults": str(max_keys),
                "pageToken": token or "",
                "fields": _FIELDS,
            }
        )
        target = f"/storage/v1/b/{quote(self._name, safe='')}/o?{query}"
        try:
            with self._http.answer(target, {}, self.shown(prefix), timeout=timeout) as answer:
                return parse_listing(answer.read(_LARGEST_PAGE))
        except NotFound as error:  # a listing of nothing is an empty one
            raise NotFound(
                f"no bucket {self._name!r} at {self._http.endpoint}", mend="check the name and the endpoint"
            ) from error

    def read_range(
        self, key: str, version: ObjectVersion, offset: int, into: memoryview, progress: Progress
    ) -> None:
        """See KeyStore."""
        what = self.shown(key)
        # Asked for as it is stored: Google would unpack what is stored as gzip, and ignore the range.
        headers = {**range_headers(offset, len(into), ""), "Accept-Encoding": "gzip"}
        query = query_of({"alt": "media", "ifGenerationMatch": version.tag})
        target = f"/download/storage/v1/b/{quote(self._name, safe='')}/o/{quote(key, safe='')}?{query}"
        with self._http.answer(target, headers, what) as answer:
            told = answer.headers.get("x-goog-generation")
            fill_range(answer, what, version, told, offset=offset, into=into, progress=progress)

    def shown(self, key: str) -> str:
        """See KeyStore."""
        return f"gs://{self._name}/{printable(key)}"

    def close(self) -> None:
        """See KeyStore."""
        self._http.close()

    def _refused(self, refusal: Refusal, what: str) -> OriginError:
        found = _REASON.search(refusal.body)
        told = msgspec.structs.replace(refusal, code=found[1] if found else "")
        if told.code in _THROTTLED:
            return OriginUnavailable(f"{what}: Google asks for fewer requests ({told.said})", throttled=True)
        return error_of(told, what, endpoint=self._http.endpoint, anonymous=self._anonymous, wording=_WORDING)


class _Item(msgspec.Struct, frozen=True):
    name: str
    size: str
    generation: str
    updated: str


class _Listing(msgspec.Struct, frozen=True):
    items: list[_Item] = []
    prefixes: list[str] = []
    nextPageToken: str = ""  # noqa: N815  (its name in the API)


def parse_listing(body: bytes) -> ListPage:
    """The page in ``body``, an answer of Objects: list. Raises BadAnswer where it is none."""
    try:
        found = msgspec.json.decode(body, type=_Listing)
        objects = [_listed(item) for item in found.items]
    except (msgspec.DecodeError, ValueError) as error:
        raise BadAnswer("the server's listing is not Google's", mend=_WORDING.foreign) from error
    return ListPage(objects, found.prefixes, found.nextPageToken or None)


def _listed(item: _Item) -> ListedObject:
    size = byte_count(item.size)
    if not item.generation.isdigit():
        raise ValueError("generation")
    return ListedObject(item.name, size, nanoseconds_of(item.updated), item.generation)


def open_gcs(url: str, options: OriginOptions) -> KeyOrigin:
    """The origin for "gs://bucket/prefix". See ``registry.open_origin``."""
    name, prefix = parse_key_url(url, container="bucket")
    if "@" in name:
        raise ConfigError("a gs:// URL holds no credentials", mend="use GOOGLE_APPLICATION_CREDENTIALS")
    access = find_access(options)
    identity = f"gs://{name}"
    where = ""
    if access.endpoint != ENDPOINT:
        parts = urlsplit(access.endpoint)
        where = f"?endpoint={parts.netloc}{parts.path}"
    return KeyOrigin(
        GcsBucket(name, access, options.timeout),
        url=identity + (f"/{prefix}" if prefix else "") + where,
        identity=identity + where,
        prefix=prefix,
    )
