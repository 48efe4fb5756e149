"""Times as servers write them, in nanoseconds since the epoch. Pure."""

from __future__ import annotations

import calendar
import email.utils
import re

__all__ = ["nanoseconds_of", "nanoseconds_of_http_date"]

_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:?00)")


def nanoseconds_of(text: str) -> int:
    """A time as in RFC 3339, in UTC, with up to nine digits of a second. Raises ValueError."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:40]!r} is no time")
    *parts, fraction = match.groups()
    return calendar.timegm(tuple(map(int, parts))) * 10**9 + int((fraction or "").ljust(9, "0"))


def nanoseconds_of_http_date(text: str) -> int:
    """A time as in Last-Modified (RFC 9110, 5.6.7). Raises ValueError."""
    try:
        return int(email.utils.parsedate_to_datetime(text).timestamp()) * 10**9
    except (TypeError, ValueError) as error:
        raise ValueError(f"{text[:40]!r} is no HTTP date") from error
