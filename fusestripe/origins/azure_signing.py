"""How requests to Azure Storage carry an account's key or a shared access signature.

https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import unquote

from fusestripe.origins.http_client import Authorize

__all__ = ["VERSION", "SharedKey", "with_sas"]

VERSION = "2021-12-02"
"""Of the protocol (x-ms-version): the first ones to write names that XML cannot hold came in 2021."""

_SIGNED = (
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
)


class SharedKey:
    """Signs requests with the ``key`` of ``account``. Never printed."""

    def __init__(self, account: str, key: bytes) -> None:
        self._account = account
        self._key = key

    def authorize(
        self, method: str, target: str, headers: Mapping[str, str]
    ) -> tuple[str, Mapping[str, str]]:
        """See ``http_client.Authorize``."""
        signed = {**headers, "x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": VERSION}
        text = string_to_sign(self._account, method, target, signed)
        digest = hmac.new(self._key, text.encode(), hashlib.sha256).digest()
        signature = base64.b64encode(digest).decode()
        return target, {**signed, "Authorization": f"SharedKey {self._account}:{signature}"}


def string_to_sign(account: str, method: str, target: str, headers: Mapping[str, str]) -> str:
    """What the signature of a request without a body is of."""
    given = {name.lower(): value for name, value in headers.items()}
    path, _, query = target.partition("?")
    lines = [method, *(given.get(name, "") for name in _SIGNED)]
    lines += [f"{name}:{given[name]}" for name in sorted(given) if name.startswith("x-ms-")]
    lines.append(f"/{account}{path}")
    parameters = (item.partition("=") for item in query.split("&") if item)
    lines += sorted(f"{unquote(name).lower()}:{unquote(value)}" for name, _, value in parameters)
    return "\n".join(lines)


def with_sas(token: str) -> Authorize:
    """Requests that carry the shared access signature ``token``, with or without its "?"."""
    query = token.strip().lstrip("?")

    def authorize(method: str, target: str, headers: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
        return f"{target}{'&' if '?' in target else '?'}{query}", {**headers, "x-ms-version": VERSION}

    return authorize
