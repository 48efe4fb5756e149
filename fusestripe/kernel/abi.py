"""Messages of the FUSE device as far as the channel reads or writes them: include/uapi/linux/fuse.h, 7.40.

Numbers and layouts stand here and not in a header file's binding: the headers of Debian 12 are older than
passthrough. Pure.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

__all__ = [
    "IN_HEADER",
    "OUT_HEADER",
    "READ_IN",
    "InitOut",
    "Opcode",
    "OpenOut",
    "ReadRequest",
    "clear",
    "error_reply",
    "header_of_reply",
    "interrupted_by",
    "length_of",
    "limit_listing",
    "opcode_of",
    "parse_read",
    "released_by",
    "requested_flags",
    "resend_notice",
    "unique_of",
]


class Opcode:
    """enum fuse_opcode, those that the channel looks at."""

    FORGET = 2
    OPEN = 14
    READ = 15
    RELEASE = 18
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    INTERRUPT = 36
    BATCH_FORGET = 42
    READDIRPLUS = 44


ANSWERLESS = (Opcode.FORGET, Opcode.INTERRUPT, Opcode.BATCH_FORGET)
"""For which nobody waits: the kernel knows of no answer to them, or can do without."""

FUSE_INIT_EXT = 1 << 30
FUSE_PASSTHROUGH = 1 << 37
"""Bit 5 of flags2: with FUSE_INIT_EXT, flags2 holds bits 32 to 63."""
FUSE_HAS_RESEND = 1 << 39
FUSE_UNIQUE_RESEND = 1 << 63
"""In the ``unique`` of a request that comes for the second time."""
_NOTIFY_RESEND = 7

FOPEN_DIRECT_IO = 1 << 0
FOPEN_KEEP_CACHE = 1 << 1
FOPEN_PASSTHROUGH = 1 << 7

IN_HEADER = struct.Struct("=IIQQIIIHH")
"""struct fuse_in_header: len, opcode, unique, nodeid, uid, gid, pid, total_extlen, padding."""
OUT_HEADER = struct.Struct("=IiQ")
"""struct fuse_out_header: len, error (0 or -errno), unique (0: a notification)."""
READ_IN = struct.Struct("=QQI")
"""The beginning of struct fuse_read_in: fh, offset, size."""

_INTERRUPT_IN = struct.Struct("=Q")
_OPEN_IN = struct.Struct("=I")  # its flags alone
_RELEASE_IN = struct.Struct("=Q")
_OPEN_OUT = struct.Struct("=QIi")
_INIT_OUT = struct.Struct("=IIIIHHIIHHII")
_INIT_IN = struct.Struct("=IIIII")
_HEADER = IN_HEADER.size
_BODY = OUT_HEADER.size


Message = bytes | bytearray | memoryview


class ReadRequest(NamedTuple):
    """A READ: ``size`` bytes at ``offset`` of the handle ``fh``, for the thread ``pid`` (0: the kernel's)."""

    unique: int
    pid: int
    fh: int
    offset: int
    size: int


def parse_read(message: Message) -> ReadRequest:
    """``message`` is a whole READ as it came from the device."""
    _length, _opcode, unique, _node, _uid, _gid, pid, _extra, _padding = IN_HEADER.unpack_from(message)
    return ReadRequest(unique, pid, *READ_IN.unpack_from(message, _HEADER))


def length_of(message: Message) -> int:
    """How long a request is; 0 where none begins."""
    length, *_rest = IN_HEADER.unpack_from(message)
    return int(length)


def clear(message: bytearray | memoryview) -> None:
    """No request begins here any more, as ``length_of`` sees it."""
    message[:4] = bytes(4)


def opcode_of(message: Message) -> int:
    """What is asked for: see Opcode."""
    _length, opcode, *_rest = IN_HEADER.unpack_from(message)
    return int(opcode)


def unique_of(message: Message) -> int:
    """The number of a request."""
    _length, _opcode, unique, *_rest = IN_HEADER.unpack_from(message)
    return int(unique)


def interrupted_by(message: Message) -> int:
    """The ``unique`` of the request that an INTERRUPT is about."""
    (unique,) = _INTERRUPT_IN.unpack_from(message, _HEADER)
    return int(unique)


def is_direct(message: Message) -> bool:
    """Whether an OPEN has O_DIRECT among its flags."""
    (flags,) = _OPEN_IN.unpack_from(message, _HEADER)
    return bool(flags & os.O_DIRECT)


def released_by(message: Message) -> int:
    """The handle that a RELEASE or RELEASEDIR is about."""
    (fh,) = _RELEASE_IN.unpack_from(message, _HEADER)
    return int(fh)


def limit_listing(message: bytearray | memoryview, size: int) -> None:
    """Have a READDIR or READDIRPLUS in ``message`` ask for no more than ``size`` bytes.

    Its body begins like that of a READ. A listing may always be shorter than what was asked for.
    """
    fh, offset, asked = READ_IN.unpack_from(message, _HEADER)
    READ_IN.pack_into(message, _HEADER, fh, offset, min(asked, size))


def requested_flags(message: Message) -> int:
    """What an INIT says the kernel can do: FUSE_* flags, 64 of them where it knows FUSE_INIT_EXT."""
    _major, _minor, _readahead, flags, flags2 = _INIT_IN.unpack_from(message, _HEADER)
    return int(flags | flags2 << 32) if flags & FUSE_INIT_EXT else int(flags)


def header_of_reply(length: int, unique: int) -> bytes:
    """What goes before ``length`` bytes that answer request ``unique``."""
    return OUT_HEADER.pack(_BODY + length, 0, unique)


def resend_notice() -> bytes:
    """Asks the kernel to send again what was asked of it and not answered (enum fuse_notify_code)."""
    return OUT_HEADER.pack(_BODY, _NOTIFY_RESEND, 0)


def error_reply(number: int, unique: int) -> bytes:
    """The whole answer to request ``unique`` that failed with errno ``number``."""
    return OUT_HEADER.pack(_BODY, -number, unique)


class OpenOut(NamedTuple):
    """struct fuse_open_out behind its header."""

    fh: int
    open_flags: int
    backing_id: int

    @classmethod
    def read(cls, reply: bytearray) -> OpenOut:
        """From a whole reply to OPEN."""
        return cls(*_OPEN_OUT.unpack_from(reply, _BODY))

    def write(self, reply: bytearray) -> None:
        """Over the one that stands in ``reply``."""
        _OPEN_OUT.pack_into(reply, _BODY, *self)


class InitOut(NamedTuple):
    """struct fuse_init_out behind its header, up to max_stack_depth."""

    major: int
    minor: int
    max_readahead: int
    flags: int
    max_background: int
    congestion_threshold: int
    max_write: int
    time_gran: int
    max_pages: int
    map_alignment: int
    flags2: int
    max_stack_depth: int

    @classmethod
    def read(cls, reply: bytearray) -> InitOut:
        """From a whole reply to INIT."""
        return cls(*_INIT_OUT.unpack_from(reply, _BODY))

    def write(self, reply: bytearray) -> None:
        """Over the one that stands in ``reply``."""
        _INIT_OUT.pack_into(reply, _BODY, *self)

    def with_background(self, requests: int) -> InitOut:
        """Allows the kernel ``requests`` of its own (read-ahead) under way at once; 12 is its default."""
        return self._replace(max_background=requests, congestion_threshold=requests * 3 // 4)

    def with_longest_write(self, size: int) -> InitOut:
        """The kernel then takes buffers of ``size`` bytes and a header for its requests (fs/fuse/dev.c)."""
        return self._replace(max_write=min(self.max_write, size))

    def with_resend(self) -> InitOut:
        """Will send FUSE_NOTIFY_RESEND (kernel 6.9)."""
        return self._replace(flags=self.flags | FUSE_INIT_EXT, flags2=self.flags2 | FUSE_HAS_RESEND >> 32)

    def with_passthrough(self) -> InitOut:
        """Asks for passthrough to files on filesystems that are no stack themselves (kernel 6.9)."""
        return self._replace(
            flags=self.flags | FUSE_INIT_EXT,
            flags2=self.flags2 | FUSE_PASSTHROUGH >> 32,
            max_stack_depth=1,
        )
