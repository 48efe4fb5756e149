"""Content that tells of every block whose it is: a wrong byte, or two versions in one read, shows."""

from __future__ import annotations

import struct

__all__ = ["BLOCK", "check", "content"]

BLOCK = 4096
_MARK = struct.Struct("<QQQQ")


def content(number: int, version: int, size: int) -> bytes:
    """``size`` bytes of ``version`` of file ``number``."""
    whole = b"".join(_block(number, version, index) for index in range(-(-size // BLOCK)))
    return whole[:size]


def check(data: bytes | bytearray, number: int, first: int) -> None:
    """``data``, from block ``first`` of file ``number`` on, is of one version. Raises RuntimeError."""
    if not data:
        return
    version = _MARK.unpack_from(data)[1] if len(data) >= _MARK.size else None
    for index, start in enumerate(range(0, len(data), BLOCK), start=first):
        block = data[start : start + BLOCK]
        if version is not None and block != _block(number, version, index)[: len(block)]:
            raise RuntimeError(f"file {number}, block {index}: not the bytes of version {version}")


def _block(number: int, version: int, index: int) -> bytes:
    return _MARK.pack(number, version, index, number ^ version ^ index) * (BLOCK // _MARK.size)
