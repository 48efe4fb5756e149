"""Azure Blob Storage and Data Lake Storage, both by the Blob API. Versions are told apart by ETag."""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit

import msgspec

from fusestripe.errors import (
    ConfigError,
    CredentialsRefused,
    NotFound,
    OriginError,
    PermissionDenied,
)
from fusestripe.origins.azure_access import AzureAccess, find_access
from fusestripe.origins.azure_listing import parse_blobs
from fusestripe.origins.azure_signing import VERSION
from fusestripe.origins.base import OriginOptions, Progress
from fusestripe.origins.http_client import HttpClient, query_of
from fusestripe.origins.http_errors import Refusal, Wording, error_of
from fusestripe.origins.http_ranges import fill_range, range_headers
from fusestripe.origins.key_listing import ListPage
from fusestripe.origins.keys import PAGE_KEYS, KeyOrigin, parse_key_url
from fusestripe.units import ObjectVersion, printable

__all__ = ["AzureContainer", "open_abfs", "open_azure"]

_LARGEST_PAGE = 64 * 1024 * 1024
_CODE = re.compile(r"<Code>\s*([A-Za-z0-9]{1,100})\s*</Code>")
_WORDING = Wording(
    credentials="check AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or `az login`",
    rights="they need the role Storage Blob Data Reader, or a SAS with read and list",
    foreign="is this an Azure Blob endpoint?",
)
# https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes
_NOT_ACCEPTED = {"AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation"}
_CLOSED = {"PublicAccessNotPermitted", "KeyBasedAuthenticationNotPermitted"}


class AzureContainer:
    """See KeyStore. Requests to the container ``name`` of an account."""

    def __init__(self, name: str, access: AzureAccess, timeout: float) -> None:
        self._name = name
        self._anonymous = access.anonymous
        self._http = HttpClient(
            access.endpoint, authorize=access.authorize, refused=self._refused, timeout=timeout
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
                "restype": "container",
                "comp": "list",
                "prefix": prefix,
                "delimiter": delimiter,
                "marker": token or "",
                "maxresults": str(max_keys),
                "include": "metadata",
            }
        )
        what = self.shown(prefix)
        target = f"/{quote(self._name, safe='$')}?{query}"
        with self._http.answer(target, _VERSIONED, what, timeout=timeout) as answer:
            return parse_blobs(answer.read(_LARGEST_PAGE))

    def read_range(
        self, key: str, version: ObjectVersion, offset: int, into: memoryview, progress: Progress
    ) -> None:
        """See KeyStore."""
        what = self.shown(key)
        headers = {**_VERSIONED, **range_headers(offset, len(into), version.tag)}
        target = f"/{quote(self._name, safe='$')}/{quote(key, safe='/-_.~')}"
        with self._http.answer(target, headers, what) as answer:
            told = answer.headers.get("etag")
            fill_range(answer, what, version, told, offset=offset, into=into, progress=progress)

    def shown(self, key: str) -> str:
        """See KeyStore."""
        return f"az://{self._name}/{printable(key)}"

    def close(self) -> None:
        """See KeyStore."""
        self._http.close()

    def _refused(self, refusal: Refusal, what: str) -> OriginError:
        found = _CODE.search(refusal.body)
        told = msgspec.structs.replace(
            refusal, code=refusal.headers.get("x-ms-error-code") or (found[1] if found else "")
        )
        endpoint = self._http.endpoint
        if told.code == "ContainerNotFound":
            return NotFound(
                f"no container {self._name!r} at {endpoint}", mend="check the name and the account"
            )
        if told.code in _NOT_ACCEPTED:
            return CredentialsRefused(
                f"{what}: the credentials are not accepted ({told.said})", mend=_WORDING.credentials
            )
        if told.code in _CLOSED:
            return PermissionDenied(
                f"{what}: the account does not allow this way in ({told.said})", mend=_WORDING.credentials
            )
        if told.code == "BlobArchived":
            return OriginError(f"{what} lies in the archive tier ({told.said})", mend="rehydrate it first")
        return error_of(told, what, endpoint=endpoint, anonymous=self._anonymous, wording=_WORDING)


_VERSIONED = {"x-ms-version": VERSION}


def open_azure(url: str, options: OriginOptions) -> KeyOrigin:
    """The origin for "az://container/prefix". See ``registry.open_origin``."""
    container, prefix = parse_key_url(url, container="container")
    if "@" in container or ":" in container:
        raise ConfigError(
            "an az:// URL names a container alone", mend="write az://container/prefix or abfss://"
        )
    return _origin(container, prefix, find_access(options), options)


def open_abfs(url: str, options: OriginOptions) -> KeyOrigin:
    """The origin for "abfss://container@account.dfs.core.windows.net/path", as Hadoop writes it.

    https://learn.microsoft.com/azure/storage/blobs/data-lake-storage-introduction-abfs-uri
    """
    authority, prefix = parse_key_url(url, container="container@account.dfs.core.windows.net")
    container, at, host = authority.partition("@")
    account, dot, suffix = host.partition(".")
    if not (container and at and account and dot) or ":" in authority or "/" in container:
        raise ConfigError(
            "this abfss:// URL names no container and account",
            mend="write abfss://container@account.dfs.core.windows.net/path",
        )
    blob_host = f"{account}.{suffix.replace('dfs.', 'blob.', 1)}"
    return _origin(container, prefix, find_access(options, account=account, host=blob_host), options)


def _origin(container: str, prefix: str, access: AzureAccess, options: OriginOptions) -> KeyOrigin:
    """Every way to a blob has one identity: az:// and abfss:// of one account are the same store."""
    parts = urlsplit(access.endpoint)
    where = f"?account={access.account}" if access.is_azure else f"?endpoint={parts.netloc}{parts.path}"
    identity = f"az://{container}"
    return KeyOrigin(
        AzureContainer(container, access, options.timeout),
        url=identity + (f"/{prefix}" if prefix else "") + where,
        identity=identity + where,
        prefix=prefix,
    )
