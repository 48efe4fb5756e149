"""Has torch's metadata read by a process of its own, whose time and memory are limited."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from subprocess import DEVNULL, PIPE

import msgspec
import trio

from fusestripe.checkpoints import Unreadable, pickled

__all__ = ["names_in_pickle"]

PARSE_SECONDS = 150.0
"""After so long the process is ended; the kernel does it after less of its own time."""
ANSWER_MAXIMUM = 64 << 20
"""Bytes of the longest answer: some hundred thousand files."""


class _Answer(msgspec.Struct):
    files: dict[str, int] = {}
    error: str = ""


async def names_in_pickle(pieces: AsyncIterator[bytes]) -> dict[str, int]:
    """The files that the pickle in ``pieces`` names, and how long each is at least. Raises Unreadable.

    See checkpoints/pickled.py for what is read and how. What ``pieces`` raises passes.
    """
    command = [sys.executable, "-I", "-S", pickled.__file__]
    try:
        process = await trio.lowlevel.open_process(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
    except OSError as error:
        raise Unreadable(f"cannot be read: no process for it, {error.strerror or error}") from None
    try:
        answer = await _answer(process, pieces)
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
    if answer is None:
        raise Unreadable("is refused: it takes too much time or memory")
    if answer.error:
        raise Unreadable(answer.error)
    return answer.files


async def _answer(process: trio.Process, pieces: AsyncIterator[bytes]) -> _Answer | None:
    """What it answers; None where it does not, in time."""
    assert process.stdin is not None
    assert process.stdout is not None
    async with process.stdin, process.stdout:
        try:
            async for piece in pieces:
                await process.stdin.send_all(piece)
        except trio.BrokenResourceError:
            return None
        await process.stdin.aclose()
        said = bytearray()
        with trio.move_on_after(PARSE_SECONDS):
            async for some in process.stdout:
                said += some
                if len(said) > ANSWER_MAXIMUM:
                    return None
    try:
        return msgspec.json.decode(said, type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
