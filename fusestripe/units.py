"""Small frozen values that every part speaks of: sizes in bytes and object versions."""

from __future__ import annotations

import re

import msgspec
import xxhash

from fusestripe.errors import ConfigError

__all__ = ["ObjectVersion", "format_size", "join_url", "parse_size", "printable"]

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)(b?)\s*", re.IGNORECASE)
_PREFIXES = "kmgtp"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def parse_size(text: str) -> int:
    """Bytes in ``text``: "8MiB", "8M" (the same: binary, as in dd and rclone), "8MB" (decimal), "4096".

    Raises ConfigError where ``text`` is no size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is not a size", mend='write it like "8MiB", "500GiB" or 4096')
    number, prefix, binary, byte = match.groups()
    base = 1000 if byte and not binary else 1024
    scale = base ** (_PREFIXES.index(prefix.lower()) + 1) if prefix else 1
    size = float(number) * scale if "." in number else int(number) * scale
    return int(size)


def format_size(size: float) -> str:
    """``size`` bytes for people, in binary units and three figures or so: "8 MiB", "1.5 GiB"."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = 0
    while abs(size) >= 1024 and power < len(units) - 1:
        size /= 1024
        power += 1
    return f"{size:.1f}".removesuffix(".0") + f" {units[power]}"


def join_url(url: str, path: str) -> str:
    """``path`` below what ``url`` shows, for people; what follows a "?" stays at the end."""
    where, mark, query = url.partition("?")
    where = where.rstrip("/")
    slashes = "///" if where.endswith(":") else "/"  # "file://" has no more than its scheme
    return f"{where}{slashes}{printable(path)}{mark}{query}" if path else url


def split_url(url: str) -> tuple[str, str]:
    """The directory that ``url`` lies in, and its name there; "" for a store's root or a "/" at the end."""
    scheme, separator, rest = url.partition("://")
    parent, slash, name = rest.rpartition("/")
    if not slash or not name:
        return url, ""
    return f"{scheme}{separator}{parent or '/'}", name


def printable(name: str) -> str:
    """``name`` for a message: on one line, whatever characters it has."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], name)


class ObjectVersion(msgspec.Struct, frozen=True, order=True):
    """One immutable content of one origin path.

    ``origin`` names the whole store without secrets (a bucket and its endpoint, a cluster, "file://"), not
    the part of it that a route shows, so that every way to one object leads to one version. ``path`` is the
    object's full path in the store, without a leading slash. ``tag`` is what the origin vouches for: an ETag
    or version id, and where there is none, a word made of the mtime. Two equal versions have equal bytes.
    """

    origin: str
    path: str
    size: int
    tag: str

    def __str__(self) -> str:
        return join_url(self.origin, self.path)

    @property
    def key(self) -> str:
        """32 hex digits that name this version in the cache and among peers (xxh3, 128 bits)."""
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode([self.origin, self.path, self.size, self.tag]))
