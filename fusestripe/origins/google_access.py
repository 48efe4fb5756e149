"""Google credentials and endpoint as Google's own tools find them, by way of google-auth.

In its order: the file that GOOGLE_APPLICATION_CREDENTIALS names (a service account, or the identity of a
workload), what `gcloud auth application-default login` left, the metadata server of a machine or pod.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Mapping
from typing import Any

import urllib3

from fusestripe.errors import ConfigError, CredentialsRefused, OriginUnavailable
from fusestripe.origins.base import OriginOptions
from fusestripe.origins.http_client import checked_endpoint

__all__ = ["GoogleAccess", "find_access"]

ENDPOINT = "https://storage.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
"""https://cloud.google.com/storage/docs/oauth-scopes"""


class GoogleAccess:
    """How one store is reached: ``endpoint`` (a URL), and a token where ``credentials`` are not None."""

    def __init__(self, endpoint: str, credentials: Any, timeout: float) -> None:
        self.endpoint = endpoint
        self._credentials = credentials
        self._timeout = timeout
        self._lock = threading.Lock()

    @property
    def anonymous(self) -> bool:
        """Whether requests go without credentials."""
        return self._credentials is None

    def authorize(
        self, method: str, target: str, headers: Mapping[str, str]
    ) -> tuple[str, Mapping[str, str]]:
        """See ``http_client.Authorize``. The token is got anew where it is about to expire."""
        if self._credentials is None:
            return target, headers
        signed = dict(headers)
        with self._lock:  # one asks for a new token, and the others would only wait for the same
            self._before_request(method, target, signed)
        return target, signed

    def renew(self, sent: Mapping[str, str]) -> bool:
        """Whether there is another token than the one ``sent``, which is not accepted."""
        if self._credentials is None:
            return False
        import google.auth.exceptions

        with self._lock:
            used = sent.get("authorization", "").removeprefix("Bearer ")
            if self._credentials.token == used:
                try:
                    self._credentials.refresh(_transport(self._timeout))
                except google.auth.exceptions.GoogleAuthError:
                    return False
            return bool(self._credentials.token != used)

    def _before_request(self, method: str, target: str, headers: dict[str, str]) -> None:
        import google.auth.exceptions

        try:
            request = _transport(self._timeout)
            self._credentials.before_request(request, method, self.endpoint + target, headers)
        except google.auth.exceptions.TransportError as error:
            raise OriginUnavailable("the source of the Google credentials does not answer") from error
        except google.auth.exceptions.GoogleAuthError as error:
            if getattr(error, "retryable", False):
                raise OriginUnavailable("the source of the Google credentials failed") from error
            raise CredentialsRefused(
                "the Google credentials are not accepted", mend="see `gcloud auth application-default login`"
            ) from error


def find_access(options: OriginOptions) -> GoogleAccess:
    """What ``options`` say, and for the rest what the environment says.

    STORAGE_EMULATOR_HOST names an emulator, which is asked without credentials, as Google's libraries do.
    Raises ConfigError (google-auth is not there, a broken file) and CredentialsRefused (none found).
    """
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if emulator and "://" not in emulator:
        emulator = f"http://{emulator}"
    endpoint = checked_endpoint(options.endpoint or emulator or ENDPOINT)
    anonymous = options.anonymous or (bool(emulator) and not options.endpoint)
    return GoogleAccess(endpoint, None if anonymous else _credentials(options.timeout), options.timeout)


def _credentials(timeout: float) -> Any:
    try:
        import google.auth
        import google.auth.exceptions
    except ImportError as error:
        raise ConfigError(
            "gs:// with credentials needs the package google-auth", mend="pip install 'fusestripe[gcs]'"
        ) from error
    # It warns of every attempt to reach a metadata server; the error below says it once.
    logging.getLogger("google.auth").setLevel(logging.ERROR)
    try:
        found, _project = google.auth.default(scopes=[SCOPE], request=_transport(timeout))
    except google.auth.exceptions.DefaultCredentialsError as error:
        file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        if file:
            raise ConfigError(
                f"{file} holds no Google credentials", mend="check GOOGLE_APPLICATION_CREDENTIALS"
            ) from error
        raise CredentialsRefused(
            "no Google credentials found",
            mend="set GOOGLE_APPLICATION_CREDENTIALS, run `gcloud auth application-default login`, "
            "or set anonymous for a public bucket",
        ) from error
    except google.auth.exceptions.GoogleAuthError as error:
        raise CredentialsRefused("the Google credentials cannot be used", mend="get new ones") from error
    return found


def _transport(timeout: float) -> Any:
    import google.auth.transport.urllib3

    request: Any = google.auth.transport.urllib3.Request(  # type: ignore[no-untyped-call]
        urllib3.PoolManager(retries=False)
    )
    return functools.partial(request, timeout=timeout)
