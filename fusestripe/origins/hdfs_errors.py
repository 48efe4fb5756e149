"""What hdfs-native says of a failure, as one of our errors in one line.

Its exceptions are Python's own where one fits, and else RuntimeError with the Rust error's debug form, which
may hold the stack trace of a server: it is looked through for names and goes no further.
"""

from __future__ import annotations

import logging
import re

from fusestripe.errors import (
    CredentialsRefused,
    IsADirectory,
    NotFound,
    OriginError,
    OriginUnavailable,
    PermissionDenied,
)
from fusestripe.packages import install_command

__all__ = ["failure_of", "is_panic"]

log = logging.getLogger(__name__)

KERBEROS_MEND = "get a ticket with kinit, or name a keytab in KRB5_CLIENT_KTNAME"

_MISSING_LIBRARY = f"as root: {install_command('libgssapi_krb5')}"
_OTHER_CLIENT = "read it through hdfs+libhdfs://"
_EXPIRED = re.compile(r"expired|No (Kerberos )?credentials|cache file .* not found", re.IGNORECASE)

_TICKET = "the cluster does not accept the Kerberos ticket"
_NETWORK = "check the address and the network between"

# The first mark that the text holds counts.
_MARKS: tuple[tuple[str, type[OriginError], str, str], ...] = (
    ("Failed to load libgssapi", CredentialsRefused, "Kerberos needs a library", _MISSING_LIBRARY),
    (
        "SafeModeException",
        OriginUnavailable,
        "the NameNode is in safe mode",
        "see hdfs dfsadmin -safemode get",
    ),
    ("StandbyException", OriginUnavailable, "no NameNode is active", "see hdfs haadmin -getAllServiceState"),
    ("RetriableException", OriginUnavailable, "the NameNode is starting or busy", ""),
    ("RpcServerException", OriginUnavailable, "the NameNode refused the request", ""),
    ("Permission denied", PermissionDenied, "permission denied", "check owner, mode and ACL in HDFS"),
    ("AuthorizationException", PermissionDenied, "not allowed", "check the cluster's service ACL"),
    ("AccessControlException", CredentialsRefused, "the cluster wants other credentials", KERBEROS_MEND),
    ("InvalidToken", CredentialsRefused, "the token is not accepted any more", "get a new one"),
    ("NoSASLMechanism", CredentialsRefused, "no way to log in that both sides know", KERBEROS_MEND),
    ("SaslException", CredentialsRefused, _TICKET, KERBEROS_MEND),
    ("GSSException", CredentialsRefused, _TICKET, KERBEROS_MEND),
    ("GSSAPIError", CredentialsRefused, "no valid Kerberos ticket", KERBEROS_MEND),
    ("SASLError", CredentialsRefused, "the cluster does not accept the credentials", KERBEROS_MEND),
    ("InvalidPathException", NotFound, "HDFS has no such name", ""),
    ("Invalid path", NotFound, "HDFS has no such name", ""),
    ("UnresolvedPathException", NotFound, "a symbolic link of HDFS is not followed", ""),
    ("UnsupportedErasureCodingPolicy", OriginError, "hdfs-native lacks its erasure code", _OTHER_CLIENT),
    ("encryption zone", OriginError, "its key cannot be had", "set hadoop.security.key.provider.path"),
    ("All DataNodes failed", OriginUnavailable, "no DataNode gives its bytes", "check the DataNodes"),
    ("BlocksNotFound", OriginUnavailable, "the NameNode knows no place of its blocks", "see hdfs fsck"),
    ("Not enough data", OriginUnavailable, "a DataNode sent too few bytes", ""),
    ("ChecksumError", OriginUnavailable, "a DataNode sent bytes that its checksums do not fit", ""),
    ("refused", OriginUnavailable, "connection refused", "check the address, and that the NameNode runs"),
    ("lookup address", OriginUnavailable, "no such host name", "check the URL and HADOOP_CONF_DIR"),
    ("imed out", OriginUnavailable, "no answer in time", _NETWORK),
    ("No route", OriginUnavailable, "no route to the host", _NETWORK),
)


def failure_of(error: BaseException, what: str) -> OriginError:
    """The error for ``error`` of hdfs-native's about ``what``."""
    text = str(error)
    log.debug("%s: %s: %s", what, type(error).__name__, text)
    if isinstance(error, FileNotFoundError):
        if "not a file" in text:
            return IsADirectory(f"{what} is a directory")
        return NotFound(f"{what} does not exist")
    if isinstance(error, IsADirectoryError):
        return IsADirectory(f"{what} is a directory")
    for mark, kind, said, mend in _MARKS:
        if mark in text:
            if kind is CredentialsRefused and _EXPIRED.search(text):
                return CredentialsRefused(f"{what}: the Kerberos ticket is missing or has expired", mend=mend)
            return kind(f"{what}: {said}", mend=mend)
    if isinstance(error, NotImplementedError):
        return OriginError(f"{what}: hdfs-native cannot read it", mend=_OTHER_CLIENT)
    return OriginUnavailable(f"{what}: the request failed")


def is_panic(error: BaseException) -> bool:
    """Whether ``error`` is a failed assertion inside hdfs-native, which is no Exception (pyo3)."""
    return type(error).__name__ == "PanicException"
