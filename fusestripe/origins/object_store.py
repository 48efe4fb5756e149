"""Ranges of objects through obstore, which streams and releases the GIL; the same for every store it knows.

What obstore says about a failure is told in one line: its own messages carry a dump of several more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import obstore
import obstore.exceptions

from fusestripe.errors import BadAnswer, CredentialsRefused, OriginError, OriginUnavailable, VersionChanged
from fusestripe.origins.base import Progress
from fusestripe.units import ObjectVersion

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore

__all__ = ["expressible", "failure_of", "read_object", "status_in"]

CHUNK = 64 * 1024
"""Least bytes between two calls of ``progress``: a reader waits for its own bytes, not for the stripe."""

_STATUS = re.compile(r"status code: (\d{3})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def expressible(key: str) -> bool:
    """Whether obstore's paths can hold ``key``: no control characters, no empty, "." or ".." component."""
    return _CONTROL.search(key) is None and not {"", ".", ".."} & set(key.split("/"))


def read_object(
    store: ObjectStore, key: str, version: ObjectVersion, offset: int, into: memoryview, progress: Progress
) -> None:
    """Like ``Origin.read_range``, for the object at ``key`` of ``store``, but for the exceptions.

    Raises VersionChanged, BadAnswer, and whatever obstore raises (``failure_of`` says what that is).
    """
    end = offset + len(into)
    options: GetOptions = {"range": (offset, end)}
    if not version.tag.startswith("W/"):  # a weak tag never satisfies If-Match (RFC 9110, 13.1.1)
        options["if_match"] = version.tag
    result = obstore.get(store, key, options=options)
    meta = result.meta
    if meta["e_tag"] != version.tag or meta["size"] != version.size:
        raise VersionChanged(f"{key} has changed since it was opened", mend="open it again")
    if tuple(result.range) != (offset, end):
        raise BadAnswer(f"{key}: the server sent another range than the one asked for")
    done = 0
    for chunk in result.stream(min_chunk_size=CHUNK):
        count = len(chunk)
        if done + count > len(into):
            raise BadAnswer(f"{key}: the server sent more than was asked for")
        into[done : done + count] = memoryview(chunk)
        done += count
        progress(done)
    if done != len(into):
        raise BadAnswer(f"{key}: the server sent {done} of {len(into)} bytes")


def status_in(error: Exception) -> int | None:
    """The HTTP status that obstore's ``error`` reports, or None where there was no answer."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


def failure_of(error: Exception, what: str) -> OriginError:
    """The error for a failure of obstore's that has no HTTP status. None of its text is passed on."""
    text = str(error)
    if isinstance(error, obstore.exceptions.PreconditionError):
        return VersionChanged(f"{what} has changed since it was opened", mend="open it again")
    if "CredentialsRefused" in text:  # raised by the credential provider, on the other side of obstore
        return CredentialsRefused(f"{what}: the credentials cannot be had any more", mend="get new ones")
    if "artial" in text or "range" in text.lower().partition("error performing")[0]:
        return BadAnswer(f"{what}: the server sent another range than the one asked for")
    for mark, said in _NETWORK:
        if mark in text:
            return OriginUnavailable(f"{what}: {said}")
    return OriginUnavailable(f"{what}: the request failed")


_NETWORK = (
    ("ConnectionRefused", "connection refused"),
    ("Connection refused", "connection refused"),
    ("TimedOut", "no answer in time"),
    ("timed out", "no answer in time"),
    ("dns error", "no such host name"),
    ("ConnectionReset", "the connection broke"),
    ("IncompleteMessage", "the connection broke"),
    ("error decoding response body", "the connection broke"),
    ("UnexpectedEof", "the connection broke"),
)
