"""Which stripes of a version are present, and the checksum of each: on disk and in memory.

A ledger file is a header, padded to a multiple of 512 bytes (one sector), and then one record of 16 bytes a
stripe: the xxh3_64 of the stripe's bytes, and a check that binds it to the version, the stripe size and the
index. A record whose check does not fit is absent. So zeros, a torn write, or a record copied from another
file or index never make a stripe present. Integers are little-endian.

Pure: no I/O.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator

import msgspec
import xxhash

from fusestripe.stripes.plan import stripe_count
from fusestripe.units import ObjectVersion

__all__ = [
    "FORMAT",
    "LONGEST_HEADER",
    "RECORD_SIZE",
    "Header",
    "StripeTable",
    "count_filled",
    "decode_header",
    "decode_record",
    "decode_records",
    "encode_header",
    "encode_record",
]

FORMAT = 1
"""Format of the cache directory and of its ledgers."""

RECORD_SIZE = 16

_MAGIC = b"\x89FStrip\n"
_PREFIX = struct.Struct("<8sII")  # magic, format, length of the encoded body
_CHECK = struct.Struct("<Q")
_RECORD = struct.Struct("<QQ")
_BOUND = struct.Struct("<16sQQQ")  # version key, stripe size, index, checksum
_SECTOR = 512
LONGEST_HEADER = 1 << 20
"""Bytes within which a header is, however long its path."""
_ABSENT = bytes(RECORD_SIZE)


class _Body(msgspec.Struct, frozen=True, array_like=True):
    version: ObjectVersion
    stripe_size: int


class Header(msgspec.Struct, frozen=True):
    """What a ledger is of. ``records_at`` is the offset of the first record in bytes."""

    version: ObjectVersion
    stripe_size: int
    records_at: int

    @property
    def stripes(self) -> int:
        """How many records the ledger has."""
        return stripe_count(self.version.size, self.stripe_size)

    @property
    def length(self) -> int:
        """Length of the whole ledger in bytes."""
        return self.records_at + self.stripes * RECORD_SIZE


def encode_header(version: ObjectVersion, stripe_size: int) -> bytes:
    """The header of a ledger, padded: the records follow at its end."""
    body = msgspec.msgpack.encode(_Body(version, stripe_size))
    head = _PREFIX.pack(_MAGIC, FORMAT, len(body)) + body
    head += _CHECK.pack(xxhash.xxh3_64_intdigest(head))
    return head + bytes(-len(head) % _SECTOR)


def decode_header(content: bytes) -> Header | None:
    """The header at the start of ``content``; None where there is none of this format, whole and checked."""
    if len(content) < _PREFIX.size:
        return None
    magic, number, length = _PREFIX.unpack_from(content)
    end = _PREFIX.size + length
    if magic != _MAGIC or number != FORMAT or len(content) < end + _CHECK.size:
        return None
    if _CHECK.unpack_from(content, end)[0] != xxhash.xxh3_64_intdigest(content[:end]):
        return None
    try:
        body = msgspec.msgpack.decode(content[_PREFIX.size : end], type=_Body)
    except msgspec.MsgspecError:
        return None
    if body.stripe_size <= 0 or body.version.size < 0:
        return None
    records_at = -(-(end + _CHECK.size) // _SECTOR) * _SECTOR
    return Header(body.version, body.stripe_size, records_at)


def encode_record(key: bytes, stripe_size: int, index: int, checksum: int) -> bytes:
    """The record that makes stripe ``index`` present with ``checksum``. ``key``: 16 bytes of the version."""
    bound = xxhash.xxh3_64_intdigest(_BOUND.pack(key, stripe_size, index, checksum))
    return _RECORD.pack(checksum, bound)


def decode_record(key: bytes, stripe_size: int, index: int, record: bytes) -> int | None:
    """The checksum that ``record`` vouches for, or None where the stripe is absent."""
    if len(record) != RECORD_SIZE or record == _ABSENT:
        return None
    checksum, bound = _RECORD.unpack(record)
    fits = bound == xxhash.xxh3_64_intdigest(_BOUND.pack(key, stripe_size, index, checksum))
    return int(checksum) if fits else None


def decode_records(header: Header, content: bytes) -> Iterator[tuple[int, int]]:
    """Index and checksum of each stripe that the whole ledger ``content`` says is present, in order."""
    key = bytes.fromhex(header.version.key)
    stop = min(len(content), header.length)
    for index, at in enumerate(range(header.records_at, stop, RECORD_SIZE)):
        checksum = decode_record(key, header.stripe_size, index, content[at : at + RECORD_SIZE])
        if checksum is not None:
            yield index, checksum


def count_filled(header: Header, content: bytes) -> int:
    """How many records the whole ledger ``content`` has that were ever written, right or not."""
    stop = min(len(content), header.length)
    records = (content[at : at + RECORD_SIZE] for at in range(header.records_at, stop, RECORD_SIZE))
    return sum(any(record) for record in records)


class StripeTable:
    """The ledger in memory, 9 bytes a stripe. Readers need no lock; writers hold the object's lock.

    A stripe's flag is set after its checksum and is one byte, so a reader that sees the flag sees the
    checksum.
    """

    _PRESENT = 1
    _VERIFIED = 2

    def __init__(self, stripes: int) -> None:
        self._checksums = array("Q", bytes(8 * stripes))
        self._flags = bytearray(stripes)
        self.count = 0
        """How many stripes are present."""

    def __len__(self) -> int:
        return len(self._flags)

    def present(self, index: int) -> bool:
        """Whether the stripe is there, by the ledger."""
        return bool(self._flags[index])

    def verified(self, index: int) -> bool:
        """Whether the stripe is there and its bytes have been checked."""
        return bool(self._flags[index] & self._VERIFIED)

    def checksum(self, index: int) -> int:
        """The xxh3_64 of a present stripe."""
        return self._checksums[index]

    def put(self, index: int, checksum: int) -> None:
        """The stripe is present with ``checksum``. It stays verified only if it was with the same one."""
        if self._flags[index]:
            if self._checksums[index] == checksum:
                return
            self._flags[index] = 0
        else:
            self.count += 1
        self._checksums[index] = checksum
        self._flags[index] = self._PRESENT

    def clear(self, index: int) -> None:
        """The stripe is absent."""
        if self._flags[index]:
            self._flags[index] = 0
            self.count -= 1

    def mark_verified(self, index: int, checksum: int) -> None:
        """The bytes of the stripe fit ``checksum``; nothing happens where the table no longer says that."""
        if self._flags[index] and self._checksums[index] == checksum:
            self._flags[index] = self._PRESENT | self._VERIFIED

    def forget_verified(self) -> None:
        """What was checked may have changed: check it again."""
        present = bytes([0, self._PRESENT, 0, self._PRESENT]) + bytes(252)
        self._flags[:] = self._flags.translate(present)

    @property
    def all_verified(self) -> bool:
        """Whether every stripe is present and checked. One pass over the flags."""
        return self._flags.count(self._PRESENT | self._VERIFIED) == len(self._flags)

    def verify_all(self) -> None:
        """Every present stripe has been checked."""
        checked = bytes([0, self._PRESENT | self._VERIFIED, 0, self._PRESENT | self._VERIFIED]) + bytes(252)
        self._flags[:] = self._flags.translate(checked)

    def digest(self) -> int:
        """The xxh3_64 of all checksums together."""
        return xxhash.xxh3_64_intdigest(self._checksums.tobytes())

    def present_bytes(self, size: int, stripe_size: int) -> int:
        """Bytes of the present stripes, of a file of ``size`` bytes."""
        last = len(self._flags) - 1
        missing_tail = (last + 1) * stripe_size - size if last >= 0 and self._flags[last] else 0
        return self.count * stripe_size - missing_tail

    def indices(self) -> list[int]:
        """The present stripes, in order."""
        return [index for index, flag in enumerate(self._flags) if flag]

    def verified_indices(self) -> list[int]:
        """The present and checked stripes, in order."""
        return [index for index, flag in enumerate(self._flags) if flag & self._VERIFIED]
