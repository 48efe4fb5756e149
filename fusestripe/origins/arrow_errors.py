"""What pyarrow says of a failure, as one of our errors in one line."""

from __future__ import annotations

import errno
import logging

from fusestripe.errors import (
    CredentialsRefused,
    IsADirectory,
    NotFound,
    OriginError,
    OriginUnavailable,
    PermissionDenied,
)

__all__ = ["failure_of"]

log = logging.getLogger(__name__)

_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
_FORBIDDEN = {errno.EACCES, errno.EPERM}
_CREDENTIALS = ("Kerberos", "GSS", "SIMPLE authentication is not enabled", "credentials")


def failure_of(error: Exception, what: str) -> OriginError:
    """The error for ``error`` of pyarrow's about ``what``. None of its text is passed on."""
    text = str(error)
    log.debug("%s: %s: %s", what, type(error).__name__, text)
    if any(mark in text for mark in _CREDENTIALS):
        return CredentialsRefused(f"{what}: no valid Kerberos ticket", mend="get one with kinit")
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, IsADirectoryError):
        return IsADirectory(f"{what} is a directory")
    if isinstance(error, FileNotFoundError) or number in _ABSENT:
        return NotFound(f"{what} does not exist")
    if isinstance(error, PermissionError) or number in _FORBIDDEN:
        return PermissionDenied(f"{what}: permission denied", mend="check its owner and mode")
    if "HDFS connection failed" in text:
        return OriginUnavailable(f"{what}: no connection", mend="check the URL and HADOOP_CONF_DIR")
    return OriginUnavailable(f"{what}: the request failed")
