"""A range of an object by HTTP (RFC 9110, 14): how to ask for it, and that the answer is just that."""

from __future__ import annotations

import re

from fusestripe.errors import BadAnswer, VersionChanged
from fusestripe.origins.base import Progress
from fusestripe.origins.http_connections import Answer
from fusestripe.units import ObjectVersion

__all__ = ["fill_range", "range_headers"]

_STRONG = re.compile(r'"[\x21\x23-\x7e]*"')
"""An entity tag that a header can carry and that can satisfy If-Match: a weak one never does (13.1.1)."""


def range_headers(offset: int, length: int, tag: str) -> dict[str, str]:
    """The headers that ask for ``length`` bytes from ``offset`` on of the version with the ETag ``tag``.

    Without If-Match where ``tag`` cannot stand there: the ETag of the answer decides in any case.
    """
    headers = {"Range": f"bytes={offset}-{offset + length - 1}", "Accept-Encoding": "identity"}
    if _STRONG.fullmatch(tag):
        headers["If-Match"] = tag
    return headers


def fill_range(
    answer: Answer,
    what: str,
    version: ObjectVersion,
    told: str | None,
    *,
    offset: int,
    into: memoryview,
    progress: Progress,
) -> None:
    """Receive the bytes of ``answer`` into ``into``, if they are the range of ``version`` that was asked for.

    ``told`` is the tag that the answer gives its version, ``what`` names the object in messages. Raises
    VersionChanged before the first byte where that is another, BadAnswer where the head says anything else
    than that range and that length; OriginUnavailable where the body breaks off. A Content-Encoding is what
    the object is stored in: its version, its size and this range are those of the bytes as they are stored.
    """
    if told != version.tag:
        raise VersionChanged(f"{what} has changed since it was opened", mend="open it again")
    headers = answer.headers
    span = f"bytes {offset}-{offset + len(into) - 1}/{version.size}"
    if answer.status != 206 or headers.get("content-range") != span:
        raise BadAnswer(f"{what}: the server sent another range than the one asked for")
    if "transfer-encoding" in headers or headers.get("content-length") != str(len(into)):
        raise BadAnswer(f"{what}: the server sent another length than the one asked for")
    answer.fill(into, progress)
