"""From a web server's refusal to our errors. One line each, and the mend."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping

import msgspec

from fusestripe.errors import (
    CredentialsRefused,
    NotFound,
    OriginError,
    OriginUnavailable,
    PermissionDenied,
    VersionChanged,
)

__all__ = ["Refusal", "Wording", "error_of", "retry_after"]


class Refusal(msgspec.Struct, frozen=True):
    """An answer that is not the one asked for; ``headers`` have names in lower case.

    ``body`` is its text, or the beginning of it; ``code`` the store's own word for what is wrong, or "".
    """

    status: int
    headers: Mapping[str, str]
    body: str = ""
    code: str = ""

    @property
    def said(self) -> str:
        """Status and code, for a message."""
        return f"{self.status} {self.code}".strip()


class Wording(msgspec.Struct, frozen=True):
    """What people can do about a refusal at one kind of store.

    ``credentials`` where they are not accepted, ``rights`` where they do not reach, ``foreign`` where the
    server seems to be of another kind.
    """

    credentials: str
    rights: str
    foreign: str


def error_of(refusal: Refusal, what: str, *, endpoint: str, anonymous: bool, wording: Wording) -> OriginError:
    """The error for ``refusal`` of ``what``, by its status (RFC 9110, section 15)."""
    status, said = refusal.status, refusal.said
    if status in (429, 503):
        return OriginUnavailable(
            f"{what}: {endpoint} asks for fewer requests ({said})",
            throttled=True,
            retry_after=retry_after(refusal.headers.get("retry-after", "")),
        )
    if status >= 500 or status == 408:
        wait = retry_after(refusal.headers.get("retry-after", ""))
        return OriginUnavailable(f"{what}: {endpoint} failed ({said})", retry_after=wait)
    if status in (412, 416):
        return VersionChanged(f"{what} has changed since it was opened ({said})", mend="open it again")
    if status in (401, 407):
        reason = "credentials are asked for" if anonymous else "the credentials are not accepted"
        return CredentialsRefused(f"{what}: {reason} ({said})", mend=wording.credentials)
    if status == 403:
        who = "without credentials" if anonymous else "with these credentials"
        mend = wording.credentials if anonymous else wording.rights
        return PermissionDenied(f"{what}: no right to read {who} ({said})", mend=mend)
    if status in (404, 410):
        return NotFound(f"{what} does not exist ({said})")
    return OriginError(f"{what}: {endpoint} refused the request ({said})", mend=wording.foreign)


def retry_after(value: str) -> float | None:
    """Seconds that a Retry-After of ``value`` asks to wait: a number or a date (RFC 9110, 10.2.3)."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None
