"""Messages of the FUSE device: what is read is what was written, and nothing beside it is touched."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from fusestripe.kernel import abi

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)


def message(opcode: int, unique: int, body: bytes, pid: int = 7) -> bytes:
    """As the device gives it (struct fuse_in_header)."""
    return struct.pack("=IIQQIIIHH", 40 + len(body), opcode, unique, 1, 0, 0, pid, 0, 0) + body


@given(unique=U64, pid=U32, fh=U64, offset=U64, size=U32)
def test_a_read(unique: int, pid: int, fh: int, offset: int, size: int) -> None:
    body = struct.pack("=QQIIQII", fh, offset, size, 0, 0, 0, 0)
    request = abi.parse_read(message(abi.Opcode.READ, unique, body, pid))
    assert request == abi.ReadRequest(unique, pid, fh, offset, size)


@given(unique=U64)
def test_an_interrupt(unique: int) -> None:
    assert abi.interrupted_by(message(abi.Opcode.INTERRUPT, 3, struct.pack("=Q", unique))) == unique


@given(flags=U32, flags2=U32)
def test_what_the_kernel_offers(flags: int, flags2: int) -> None:
    offered = abi.requested_flags(message(abi.Opcode.INIT, 1, struct.pack("=IIIII", 7, 45, 0, flags, flags2)))
    assert offered & 0xFFFFFFFF == flags
    assert offered >> 32 == (flags2 if flags & abi.FUSE_INIT_EXT else 0)


@given(length=st.integers(0, 2**20), unique=U64, number=st.integers(1, 133))
def test_replies(length: int, unique: int, number: int) -> None:
    assert struct.unpack("=IiQ", abi.header_of_reply(length, unique)) == (16 + length, 0, unique)
    assert struct.unpack("=IiQ", abi.error_reply(number, unique)) == (16, -number, unique)


@given(fh=U64, flags=U32, backing=st.integers(0, 2**31 - 1), rest=st.binary(max_size=64))
def test_an_open_reply_is_changed_in_place(fh: int, flags: int, backing: int, rest: bytes) -> None:
    reply = bytearray(struct.pack("=IiQ", 32, 0, 5) + struct.pack("=QIi", fh, flags, 0) + rest)
    assert abi.OpenOut.read(reply) == (fh, flags, 0)
    abi.OpenOut(fh, flags, backing).write(reply)
    assert abi.OpenOut.read(reply) == (fh, flags, backing)
    assert reply[:16] == struct.pack("=IiQ", 32, 0, 5)
    assert reply[32:] == rest


@given(values=st.tuples(U32, U32, U32, U32, U32, U32), rest=st.binary(min_size=24, max_size=24))
def test_an_init_reply_keeps_what_it_does_not_change(values: tuple[int, ...], rest: bytes) -> None:
    major, minor, readahead, flags, write, gran = values
    body = struct.pack("=IIIIHHIIHH", major, minor, readahead, flags, 12, 9, write, gran, 256, 0)
    reply = bytearray(struct.pack("=IiQ", 80, 0, 1) + body + bytes(8) + rest)
    before = abi.InitOut.read(reply)
    before.with_background(64).with_passthrough().write(reply)
    after = abi.InitOut.read(reply)
    assert (after.max_background, after.congestion_threshold) == (64, 48)
    assert after.flags == flags | abi.FUSE_INIT_EXT
    assert after.flags2 << 32 == abi.FUSE_PASSTHROUGH
    assert after.max_stack_depth == 1
    kept = {"major", "minor", "max_readahead", "max_write", "time_gran", "max_pages", "map_alignment"}
    assert all(getattr(after, name) == getattr(before, name) for name in kept)
    assert reply[56:] == rest
