"""What members say to each other: JSON in the tickets, actions and metadata of Arrow Flight.

https://arrow.apache.org/docs/format/Flight.html has the calls. A DoGet ticket is an ``Ask``; the answer is a
stream of record batches of one column of bytes, each with a ``Note`` as its app_metadata.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import xxhash

from fusestripe.units import ObjectVersion

__all__ = [
    "CHUNK",
    "HEARTBEAT_SECONDS",
    "HELLO",
    "PROTOCOL",
    "Ask",
    "Hello",
    "Note",
    "SentOn",
    "Want",
    "checksum",
]

PROTOCOL = 1
"""Members of another one are left alone."""
CHUNK = 1 << 20
"""Bytes of one message at most."""
HEARTBEAT_SECONDS = 0.25
"""A sender that waits for bytes itself says so as often."""

HELLO = "hello"
"""The action that takes a Hello."""

Want = Literal["any", "arriving", "whole"]
"""any: fetch it from the origin if need be; arriving: it may be on its way; whole: only what is there."""


class Ask(msgspec.Struct, frozen=True):
    """``asker`` wants stripe ``index``, of at most ``stripe_size`` bytes, from its byte ``start`` on.

    ``avoid`` are members that it was sent on to and that did not have it; ``hops``: how often it was sent on.
    """

    asker: str
    version: ObjectVersion
    stripe_size: int
    index: int
    start: int = 0
    want: Want = "any"
    avoid: tuple[str, ...] = ()
    hops: int = 0


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """What goes with the bytes of a message: their checksum, and the seconds waited for bytes until now.

    One without bytes says that the sender waits; for whom, and for whom that one waits, is in ``via``. The
    first may say instead: ``ask`` that member; or it is ``missing`` here.
    """

    checksum: int = 0
    waited: float = 0.0
    via: tuple[str, ...] = ()
    ask: str = ""
    missing: bool = False


class SentOn(msgspec.Struct, frozen=True):
    """Not from here: ask ``member``."""

    member: str


class Hello(msgspec.Struct, frozen=True):
    """Who one is, to a member that it has not heard of for a while; and the answer.

    ``identity`` is of one process: who is answered with its own has reached itself.
    """

    name: str
    identity: str
    stripe_size: int
    protocol: int = PROTOCOL


def checksum(data: memoryview, version: ObjectVersion, offset: int) -> int:
    """xxh3 of 64 bits of ``data``, seeded with where it belongs: ``offset`` bytes into ``version``."""
    return xxhash.xxh3_64_intdigest(data, seed=(int(version.key[:16], 16) + offset) % (1 << 64))
