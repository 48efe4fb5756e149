"""A private certificate authority and a certificate of this machine, made by openssl(1)."""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

__all__ = ["Certificates", "make_certificates"]

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Certificates(msgspec.Struct, frozen=True):
    """Files in PEM: the authority's certificate, and a server's with its key."""

    authority: Path
    certificate: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        """For the server's side of TLS connections."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def make_certificates(
    directory: Path,
    names: str = "DNS:localhost,IP:127.0.0.1,IP:::1",
    *,
    environment: Mapping[str, str] | None = None,
) -> Certificates:
    """A certificate for ``names`` (as in openssl's subjectAltName), good for two days.

    ``environment`` is added to that of openssl.
    """
    directory.mkdir(exist_ok=True)
    openssl = partial(_openssl, {**os.environ, **(environment or {})})
    made = Certificates(directory / "ca.pem", directory / "server.pem", directory / "server.key")
    authority_key, request, settings = directory / "ca.key", directory / "request", directory / "settings"
    # The key usage is what Python 3.13 asks of an authority (VERIFY_X509_STRICT).
    settings.write_text(
        "[req]\ndistinguished_name = name\n[name]\n"
        "[authority]\nbasicConstraints = critical, CA:TRUE\nkeyUsage = critical, keyCertSign, cRLSign\n"
        "subjectKeyIdentifier = hash\n"
        f"[server]\nsubjectAltName = {names}\nauthorityKeyIdentifier = keyid\n"
    )
    openssl("req", "-x509", *_KEY, "-config", settings, "-extensions", "authority", "-days", "2",
            "-subj", "/CN=authority of a test", "-keyout", authority_key,
            "-out", made.authority)  # fmt: skip
    openssl("req", "-new", *_KEY, "-config", settings, "-subj", "/CN=server of a test",
            "-keyout", made.key, "-out", request)  # fmt: skip
    openssl("x509", "-req", "-in", request, "-CA", made.authority, "-CAkey", authority_key,
            "-CAcreateserial", "-days", "2", "-extfile", settings, "-extensions", "server",
            "-out", made.certificate)  # fmt: skip
    return made


def _openssl(environment: Mapping[str, str], *arguments: str | Path) -> None:
    command = ["openssl", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, env=dict(environment))
