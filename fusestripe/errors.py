"""The exceptions of fusestripe, and the one table that turns them into errno.

Every error carries one line that says what is wrong and, where a person can do something about it, one
that says how to mend it. Nothing here ever holds a secret: messages are written to logs and to terminals.
"""

from __future__ import annotations

import errno

__all__ = [
    "BadAnswer",
    "CacheError",
    "ConfigError",
    "CredentialsRefused",
    "FusestripeError",
    "IsADirectory",
    "MountError",
    "NotFound",
    "OriginError",
    "OriginUnavailable",
    "PermissionDenied",
    "VersionChanged",
    "errno_of",
    "let_go",
    "reason_of",
]


class FusestripeError(Exception):
    """Base of all errors raised on purpose.

    ``message`` is one line that says what is wrong; ``mend`` one that says what to do, or "".
    """

    def __init__(self, message: str, *, mend: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.mend = mend

    def __str__(self) -> str:
        return f"{self.message}: {self.mend}" if self.mend else self.message


def let_go(error: BaseException | None) -> None:
    """Have ``error`` hold none of what the code that raised it worked on: the frames of its traceback do.

    They are not cleared: an error may be that of several callers, and clearing would close what waits there.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def reason_of(error: OSError) -> str:
    """What the system says went wrong, as it stands within a line: "permission denied"."""
    return (error.strerror or str(error)).lower()


class ConfigError(FusestripeError):
    """The settings cannot be used: an unknown key, a value out of range, routes that overlap."""


class MountError(FusestripeError):
    """The tree cannot be mounted or unmounted."""


class CacheError(FusestripeError):
    """The cache directory cannot be used. Reads go on from the origin."""


class OriginError(FusestripeError):
    """An origin gave no bytes. ``transient`` says whether asking again may help."""

    transient = False


class NotFound(OriginError):
    """No such object, directory or bucket."""


class IsADirectory(OriginError):
    """A file was asked for and a directory is there."""


class PermissionDenied(OriginError):
    """The origin knows who asks and says no."""


class CredentialsRefused(OriginError):
    """There are no credentials, or the origin does not accept them.

    ``is_skewed``: since the time in the request is not the server's.
    """

    def __init__(self, message: str, *, mend: str = "", is_skewed: bool = False) -> None:
        super().__init__(message, mend=mend)
        self.is_skewed = is_skewed


class VersionChanged(OriginError):
    """The object is no longer the version that was opened."""


class OriginUnavailable(OriginError):
    """No answer, or one that says "not now": refused, reset, timed out, 5xx, 429.

    ``throttled`` is true where the origin asked for less; ``retry_after`` (seconds) where it said how long.
    """

    transient = True

    def __init__(
        self, message: str, *, mend: str = "", throttled: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message, mend=mend)
        self.throttled = throttled
        self.retry_after = retry_after


class BadAnswer(OriginError):
    """An answer that is not what was asked for: a body too short or too long, another range."""

    transient = True


# The first row that fits counts, so a class stands before its bases.
_ERRNO: tuple[tuple[type[BaseException], int], ...] = (
    (NotFound, errno.ENOENT),
    (IsADirectory, errno.EISDIR),
    (PermissionDenied, errno.EACCES),
    (CredentialsRefused, errno.EACCES),
    (VersionChanged, errno.ESTALE),
    (OriginError, errno.EIO),
    (CacheError, errno.EIO),
    (FusestripeError, errno.EIO),
)


def errno_of(error: BaseException) -> int:
    """The errno a reader gets for ``error``; EIO for what no row names."""
    for kind, number in _ERRNO:
        if isinstance(error, kind):
            return number
    return errno.EIO
