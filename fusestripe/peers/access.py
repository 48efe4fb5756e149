"""Who may talk to whom: the token that all members share, and TLS where certificates are given."""

from __future__ import annotations

import hmac
import os
import stat
from pathlib import Path

import msgspec

from fusestripe.config import PeerSettings
from fusestripe.errors import ConfigError, reason_of

__all__ = ["Access", "read_access"]

TOKEN_MINIMUM = 16
"""Bytes; a token is not to be guessed."""


class Access(msgspec.Struct, frozen=True):
    """What a member shows and asks to be shown. PEM as bytes, b"" where there is none.

    With ``authority`` every member has to have a certificate of it (mutual TLS).
    """

    token: bytes
    certificate: bytes = b""
    key: bytes = b""
    authority: bytes = b""

    def __repr__(self) -> str:
        return "<Access>"  # holds secrets

    @property
    def scheme(self) -> str:
        """Of the addresses of members, as Flight writes them."""
        return "grpc+tls" if self.certificate else "grpc"

    @property
    def header(self) -> tuple[bytes, bytes]:
        """What a call brings along (RFC 6750)."""
        return b"authorization", b"Bearer " + self.token

    def admits(self, shown: str) -> bool:
        """Whether ``shown``, the value of that header, has the token."""
        return hmac.compare_digest(shown.encode(), self.header[1])


def read_access(settings: PeerSettings) -> Access:
    """Read the files that the settings name. Raises ConfigError."""
    if not settings.token_file:
        raise ConfigError(
            "peers have no token: anybody who reaches this port could read the files",
            mend='head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE; token_file = "FILE" in [peers]',
        )
    token = _read(settings.token_file, "token_file", is_secret=True).strip()
    if len(token) < TOKEN_MINIMUM or any(not 0x20 <= byte <= 0x7E for byte in token):
        raise ConfigError(
            f"the token in {settings.token_file} is not {TOKEN_MINIMUM} or more printable characters",
            mend=f"head -c 32 /dev/urandom | base64 > {settings.token_file}",
        )
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise ConfigError("peers have a tls_cert or a tls_key without the other", mend="give both or none")
    if settings.tls_ca and not settings.tls_cert:
        raise ConfigError("peers have a tls_ca without a tls_cert", mend="give tls_cert and tls_key as well")
    return Access(
        token,
        certificate=_read(settings.tls_cert, "tls_cert"),
        key=_read(settings.tls_key, "tls_key", is_secret=True),
        authority=_read(settings.tls_ca, "tls_ca"),
    )


def _read(path: str, key: str, *, is_secret: bool = False) -> bytes:
    if not path:
        return b""
    try:
        mode = os.stat(path).st_mode
        content = Path(path).read_bytes()
    except OSError as error:
        what = reason_of(error)
        mend = f"{key} in [peers] names it"
        if key == "token_file" and isinstance(error, FileNotFoundError):
            mend += (
                f"; head -c 32 /dev/urandom | base64 > {path}; chmod 600 {path}; and the same on all nodes"
            )
        raise ConfigError(f"{path}: {what}", mend=mend) from None
    if is_secret and stat.S_ISREG(mode) and mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise ConfigError(f"{path} is open to others", mend=f"chmod 600 {path}")
    return content
