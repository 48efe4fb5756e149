"""From what an S3 server says to our errors. One line each, and the mend."""

from __future__ import annotations

import re

import msgspec

from fusestripe.errors import CredentialsRefused, NotFound, OriginError, OriginUnavailable, VersionChanged
from fusestripe.origins import http_errors
from fusestripe.origins.http_errors import Refusal, Wording, retry_after

__all__ = ["error_of"]

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

_WORDING = Wording(
    credentials="give credentials that it accepts",
    rights="they need s3:ListBucket and s3:GetObject on it",
    foreign="is this an S3 endpoint?",
)
_CODE = re.compile(r"<Code>\s*([A-Za-z0-9.]{1,100})\s*</Code>")


def error_of(refusal: Refusal, what: str, *, bucket: str, endpoint: str, anonymous: bool) -> OriginError:
    """The error for ``refusal`` of ``what`` ("s3://bucket/key"), by its code and else by its status."""
    found = _CODE.search(refusal.body)
    told = msgspec.structs.replace(refusal, code=found[1] if found else "")
    if told.code == "NoSuchBucket":
        return NotFound(
            f"no bucket {bucket!r} at {endpoint}", mend="check the name, the region and the endpoint"
        )
    if told.code in _CHANGED:
        return VersionChanged(f"{what} has changed since it was opened ({told.said})", mend="open it again")
    if told.code in _CREDENTIALS or told.code in _ELSEWHERE or 300 <= told.status < 400:
        return _misdirected(told, what)
    if told.code in _THROTTLED or told.code in _TRANSIENT:
        throttled = told.code in _THROTTLED
        did = "asks for fewer requests" if throttled else "failed"
        return OriginUnavailable(
            f"{what}: {endpoint} {did} ({told.said})",
            throttled=throttled,
            retry_after=retry_after(told.headers.get("retry-after", "")),
        )
    return http_errors.error_of(told, what, endpoint=endpoint, anonymous=anonymous, wording=_WORDING)


def _misdirected(told: Refusal, what: str) -> OriginError:
    """Sent with credentials or to a place that are not this bucket's."""
    region = told.headers.get("x-amz-bucket-region", "")
    there = f'set region = "{region}"' if region else ""
    if told.code not in _CREDENTIALS:
        mend = there or "set its region and endpoint"
        return OriginError(f"{what}: the bucket lies elsewhere ({told.said})", mend=mend)
    reason, mend = _CREDENTIALS[told.code]
    if told.code == "AuthorizationHeaderMalformed":
        mend = there or mend
    skewed = told.code == "RequestTimeTooSkewed"
    return CredentialsRefused(f"{what}: {reason} ({told.said})", mend=mend, is_skewed=skewed)
