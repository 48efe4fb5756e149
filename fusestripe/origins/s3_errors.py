"""From what an S3 server says to our errors. One line each, and the mend."""

from __future__ import annotations

import re
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

__all__ = ["Refusal", "error_of", "refusal_in"]

# Codes: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
_CREDENTIALS = {
    "InvalidAccessKeyId": (
        "the server does not know this access key",
        "check AWS_ACCESS_KEY_ID or the profile",
    ),
    "SignatureDoesNotMatch": (
        "the secret key is wrong for this access key",
        "check AWS_SECRET_ACCESS_KEY or the profile",
    ),
    "ExpiredToken": ("the credentials have expired", "get new ones (aws sso login, or a new session token)"),
    "TokenRefreshRequired": ("the credentials have expired", "get new ones"),
    "InvalidToken": ("the session token is not valid", "check AWS_SESSION_TOKEN, or unset it"),
    "RequestTimeTooSkewed": ("this machine's clock is wrong", "set the clock (timedatectl set-ntp true)"),
    "AuthorizationHeaderMalformed": ("the request was signed for another region", "set region"),
    "InvalidSecurity": ("the credentials are not valid", "check them"),
    "AuthFailure": ("the credentials are not valid", "check them"),
    "Unauthorized": ("the credentials are not valid", "check them"),
}
_THROTTLED = {
    "SlowDown",
    "ServiceUnavailable",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "RequestLimitExceeded",
    "BandwidthLimitExceeded",
}
_TRANSIENT = {"InternalError", "RequestTimeout", "OperationAborted", "ServerBusy"}
_CHANGED = {"PreconditionFailed", "InvalidRange"}
_ELSEWHERE = {"PermanentRedirect", "TemporaryRedirect", "Redirect", "IllegalLocationConstraintException"}

_CODE = re.compile(r"<Code>\s*([A-Za-z0-9.]{1,100})\s*</Code>")


class Refusal(msgspec.Struct, frozen=True):
    """An answer that is not the one asked for. ``code`` is S3's, "" where the body has none.

    ``region`` is where the bucket lies, if the server said so; ``retry_after`` is in seconds.
    """

    status: int
    code: str = ""
    region: str = ""
    retry_after: float | None = None


def refusal_in(status: int, body: str, headers: Mapping[str, str] | None = None) -> Refusal:
    """What the error document ``body`` says."""
    told = headers or {}
    match = _CODE.search(body)
    wait = told.get("retry-after", "")
    return Refusal(
        status,
        match[1] if match else "",
        told.get("x-amz-bucket-region", ""),
        float(wait) if wait.isascii() and wait.isdigit() else None,  # its other form, a date, is not in use
    )


def error_of(refusal: Refusal, what: str, *, bucket: str, endpoint: str, anonymous: bool) -> OriginError:
    """The error for ``refusal`` of ``what`` ("s3://bucket/key")."""
    status, code = refusal.status, refusal.code
    said = f"{status} {code}".strip()
    if code == "NoSuchBucket":
        return NotFound(
            f"no bucket {bucket!r} at {endpoint}", mend="check the name, the region and the endpoint"
        )
    if code in _CREDENTIALS:
        reason, mend = _CREDENTIALS[code]
        if code == "AuthorizationHeaderMalformed" and refusal.region:
            mend = f'set region = "{refusal.region}"'
        return CredentialsRefused(f"{what}: {reason} ({said})", mend=mend)
    if code in _THROTTLED or status in (429, 503):
        return OriginUnavailable(
            f"{what}: {endpoint} asks for fewer requests ({said})",
            throttled=True,
            retry_after=refusal.retry_after,
        )
    if code in _TRANSIENT or status >= 500 or status == 408:
        return OriginUnavailable(f"{what}: {endpoint} failed ({said})", retry_after=refusal.retry_after)
    return _by_status(refusal, what, said, endpoint, anonymous)


def _by_status(refusal: Refusal, what: str, said: str, endpoint: str, anonymous: bool) -> OriginError:
    status, code = refusal.status, refusal.code
    if code in _CHANGED or status in (412, 416):
        return VersionChanged(f"{what} has changed since it was opened ({said})", mend="open it again")
    if code in _ELSEWHERE or 300 <= status < 400:
        where = f'set region = "{refusal.region}"' if refusal.region else "set its region and endpoint"
        return OriginError(f"{what}: the bucket lies elsewhere ({said})", mend=where)
    if status == 401:
        return CredentialsRefused(f"{what}: the credentials are not accepted ({said})", mend="check them")
    if status == 403:
        mend = "give credentials" if anonymous else "they need s3:ListBucket and s3:GetObject on it"
        who = "without credentials" if anonymous else "with these credentials"
        return PermissionDenied(f"{what}: no right to read {who} ({said})", mend=mend)
    if status == 404:
        return NotFound(f"{what} does not exist ({said})")
    return OriginError(f"{what}: {endpoint} refused the request ({said})", mend="is this an S3 endpoint?")
