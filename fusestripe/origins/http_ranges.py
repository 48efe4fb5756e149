"""A range of an object by HTTP (RFC 9110, 14): how to ask for it, and that the answer is just that."""

from __future__ import annotations

import re

from fusestripe.errors import BadAnswer
from fusestripe.origins.base import Progress
from fusestripe.origins.http_connections import Answer

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
    answer: Answer, what: str, *, offset: int, size: int, into: memoryview, progress: Progress
) -> None:
    """Receive the bytes of ``answer`` into ``into``, if they are those of the range that was asked for.

    ``size`` is that of the whole object, ``what`` names it in messages. Whose version it is has to be checked
    before. Raises BadAnswer before the first byte where the head says anything else than that range and that
    length; OriginUnavailable where the body breaks off. A Content-Encoding is what the object is stored in,
    since its version, its size and this range are those of the bytes as they are stored.
    """
    told = answer.headers
    span = f"bytes {offset}-{offset + len(into) - 1}/{size}"
    if answer.status != 206 or told.get("content-range") != span:
        raise BadAnswer(f"{what}: the server sent another range than the one asked for")
    if "transfer-encoding" in told or told.get("content-length") != str(len(into)):
        raise BadAnswer(f"{what}: the server sent another length than the one asked for")
    answer.fill(into, progress)
