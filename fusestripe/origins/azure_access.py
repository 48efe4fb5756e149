"""Account, endpoint and credentials of Azure Blob Storage as Azure's own tools find them.

The account and its key or SAS come from the environment, a connection string among it; where there are
neither, azure-identity finds a client secret, a certificate, a workload's or a managed identity, or asks the
command line tool `az`.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fusestripe.errors import ConfigError, CredentialsRefused
from fusestripe.origins.azure_signing import SharedKey, with_sas
from fusestripe.origins.base import OriginOptions
from fusestripe.origins.http_client import Authorize, checked_endpoint

__all__ = ["AzureAccess", "find_access"]

SCOPE = "https://storage.azure.com/.default"
_TOKEN_MARGIN = 300.0
"""A token is asked for anew this many seconds before it expires."""

# As the command line tool, Azure's documentation and the libraries of others call them.
_ACCOUNT = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
_KEY = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCESS_KEY")
_SAS = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
_ENDPOINT = ("AZURE_STORAGE_SERVICE_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
_MEND = (
    "set AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, log in with `az login`, "
    "or set anonymous for a public container"
)


class AzureAccess(msgspec.Struct, frozen=True):
    """How one account is reached: ``endpoint`` is the URL that containers are appended to, after a slash.

    ``is_azure``: it is Azure's own. ``authorize`` adds the credentials to a request; see ``http_client``.
    """

    account: str
    endpoint: str
    is_azure: bool
    anonymous: bool
    authorize: Authorize


class _Found(msgspec.Struct, frozen=True):
    """What the environment says of one account. Never printed."""

    account: str
    key: str
    sas: str
    endpoint: str

    def __repr__(self) -> str:
        return "_Found(...)"


def find_access(options: OriginOptions, *, account: str = "", host: str = "") -> AzureAccess:
    """What the URL (``account`` and its blob ``host``) and ``options`` say; for the rest the environment.

    A key or SAS of the environment is only used for the account that it is said to be of. Raises ConfigError
    and CredentialsRefused.
    """
    found = _in_environment(os.environ)
    name = account or found.account
    if not name and not options.endpoint:
        raise ConfigError(
            "no Azure storage account is named",
            mend="set AZURE_STORAGE_ACCOUNT, or write abfss://container@account.dfs.core.windows.net/path",
        )
    own = found if not account or account == found.account else _Found(account, "", "", "")
    given = options.endpoint or (f"https://{host}" if host else own.endpoint)
    endpoint = checked_endpoint(given or f"https://{name}.blob.core.windows.net")
    authorize = _anonymous if options.anonymous else _authorizer(own, name, options.timeout)
    return AzureAccess(
        name, endpoint, not options.endpoint and not own.endpoint, options.anonymous, authorize
    )


def _in_environment(environ: Mapping[str, str]) -> _Found:
    def first(names: tuple[str, ...]) -> str:
        return next((environ[name] for name in names if environ.get(name)), "")

    said = _connection_string(environ.get("AZURE_STORAGE_CONNECTION_STRING", ""))
    return _Found(
        first(_ACCOUNT) or said.get("AccountName", ""),
        first(_KEY) or said.get("AccountKey", ""),
        first(_SAS) or said.get("SharedAccessSignature", ""),
        first(_ENDPOINT) or said.get("BlobEndpoint", "") or _endpoint_in(said),
    )


def _connection_string(text: str) -> dict[str, str]:
    """https://learn.microsoft.com/azure/storage/common/storage-configure-connection-string"""
    pairs = (item.partition("=") for item in text.split(";") if "=" in item)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _endpoint_in(said: Mapping[str, str]) -> str:
    suffix = said.get("EndpointSuffix", "core.windows.net")
    if not said.get("AccountName") or suffix == "core.windows.net":
        return ""
    return f"{said.get('DefaultEndpointsProtocol', 'https')}://{said['AccountName']}.blob.{suffix}"


def _authorizer(found: _Found, account: str, timeout: float) -> Authorize:
    if found.key:
        try:
            return SharedKey(account, base64.b64decode(found.key, validate=True)).authorize
        except binascii.Error as error:
            raise ConfigError(
                "the Azure account key is not base64", mend="check AZURE_STORAGE_KEY"
            ) from error
    if found.sas:
        return with_sas(found.sas)
    return _Tokens(_identity(timeout)).authorize


def _anonymous(method: str, target: str, headers: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    return target, headers


class _Tokens:
    """Bearer tokens from ``get``, which returns one and when it expires (seconds since the epoch)."""

    def __init__(self, get: Callable[[], tuple[str, float]]) -> None:
        self._get = get
        self._lock = threading.Lock()
        self._token = ""
        self._good_until = 0.0

    def authorize(
        self, method: str, target: str, headers: Mapping[str, str]
    ) -> tuple[str, Mapping[str, str]]:
        """See ``http_client.Authorize``. Raises CredentialsRefused."""
        with self._lock:  # one asks for a new token, and the others would only wait for the same
            if time.time() > self._good_until:
                self._token, expires = self._get()
                self._good_until = expires - _TOKEN_MARGIN
            token = self._token
        return target, {**headers, "Authorization": f"Bearer {token}"}


def _identity(timeout: float) -> Callable[[], tuple[str, float]]:
    try:
        import azure.core.exceptions
        import azure.identity
    except ImportError as error:
        raise CredentialsRefused(
            "no Azure key or SAS found, and azure-identity is not there to find other credentials",
            mend=f"{_MEND}; pip install 'fusestripe[azure]' for identities",
        ) from error
    # It warns in many lines of what the error below says in one.
    logging.getLogger("azure.identity").setLevel(logging.CRITICAL)
    credential: Any = azure.identity.DefaultAzureCredential(process_timeout=int(max(1, timeout)))

    def token() -> tuple[str, float]:
        try:
            found = credential.get_token(SCOPE)
        except azure.core.exceptions.AzureError as error:
            raise CredentialsRefused("no Azure credentials found", mend=_MEND) from error
        return found.token, found.expires_on

    return token
