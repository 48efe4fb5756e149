"""From a URL to its origin. A store's libraries are imported only when a URL asks for them."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Mapping
from types import MappingProxyType

from fusestripe.errors import ConfigError
from fusestripe.origins.base import Origin, OriginOptions

__all__ = ["FACTORIES", "open_origin", "scheme_of"]

FACTORIES: Mapping[str, str] = MappingProxyType(
    {
        "abfs": "fusestripe.origins.azure:open_abfs",
        "abfss": "fusestripe.origins.azure:open_abfs",
        "az": "fusestripe.origins.azure:open_azure",
        "file": "fusestripe.origins.local:open_local",
        "gs": "fusestripe.origins.gcs:open_gcs",
        "hdfs": "fusestripe.origins.hdfs:open_hdfs",
        "hdfs+libhdfs": "fusestripe.origins.arrow:open_libhdfs",
        "http": "fusestripe.origins.web:open_web",
        "https": "fusestripe.origins.web:open_web",
        "s3": "fusestripe.origins.s3:open_s3",
        "viewfs": "fusestripe.origins.hdfs:open_hdfs",
    }
)
"""URL scheme -> "module:function"; the function takes (url, OriginOptions) and returns the Origin."""

EXTRAS: Mapping[str, str] = MappingProxyType({"hdfs_native": "hdfs", "pyarrow": "arrow"})
"""Package that an origin's module imports -> the extra that brings it."""

_CLIENTS = {("native", "hdfs"), ("native", "viewfs"), ("libhdfs", "hdfs+libhdfs")}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")  # RFC 3986, section 3.1


def scheme_of(url: str) -> str:
    """The scheme of ``url`` in lower case. Raises ConfigError where there is none or nobody knows it."""
    match = _SCHEME.match(url)
    known = ", ".join(f"{scheme}://" for scheme in sorted(FACTORIES))
    if match is None:
        raise ConfigError(f"{_shown(url)!r} is not an origin URL", mend=f"it starts with one of {known}")
    scheme = match[1].lower()
    if scheme not in FACTORIES:
        near = difflib.get_close_matches(scheme, FACTORIES, n=1)
        hint = f" (did you mean {near[0]}://?)" if near else ""
        raise ConfigError(f"unknown scheme {scheme}://", mend=f"known are {known}{hint}")
    return scheme


def open_origin(url: str, options: OriginOptions | None = None) -> Origin:
    """The origin that ``url`` names. Finds credentials, and asks the store nothing: see ``Origin.check``.

    Raises ConfigError where the URL or the options cannot be used, CredentialsRefused where there are none.
    """
    options = options or OriginOptions()
    url = _for_client(url, options.client)
    scheme = scheme_of(url)
    module, _, function = FACTORIES[scheme].partition(":")
    try:
        factory = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(error.name or "")
        if extra is None:
            raise
        mend = f"pip install 'fusestripe[{extra}]'"
        raise ConfigError(f"{scheme}:// needs the package {error.name}", mend=mend) from None
    origin: Origin = factory(url, options)
    return origin


def _for_client(url: str, client: str | None) -> str:
    """``url`` with the scheme that stands for ``client``. Raises ConfigError where it has no such client."""
    scheme = scheme_of(url)
    if client is None or (client, scheme) in _CLIENTS:
        return url
    if (client, scheme) == ("libhdfs", "hdfs"):
        return "hdfs+libhdfs" + url[len(scheme) :]
    raise ConfigError(f"{scheme}:// has no client {client!r}", mend='"native" and "libhdfs" are for hdfs://')


def _shown(url: str) -> str:
    """``url`` without what may be a password."""
    return re.sub(r"^.*@", "***@", url)
