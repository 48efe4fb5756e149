"""A member of a job that does not do as it should, in a process of its own: faults given as data.

    python -m tests.support.false_peer MEMBER FILE STRIPE_SIZE FAULT

It owns stripes like any member and has the bytes of FILE, whatever version it is asked for. FAULT is what it
does to each answer: "none", "flip" (one byte is another, the checksum that of the right ones), "other" (the
bytes of another stripe, with their checksum), "short", "long", "garbage" (a message that is none), "silent",
"drip" (a byte now and then), "sends-on" (always to a member that nobody knows), "missing", "fails".
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec
from pyarrow import flight

from fusestripe.peers.batches import EMPTY, SCHEMA, batch_of
from fusestripe.peers.messages import CHUNK, Ask, Hello, Note, checksum

__all__ = ["FAULTS", "false_peer"]

FAULTS = ("flip", "other", "short", "long", "garbage", "silent", "drip", "sends-on", "missing", "fails")
Message: TypeAlias = "tuple[object, bytes]"
_ROOT = Path(__file__).resolve().parents[2]


class FalsePeer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Of any version it has ``content``."""

    def __init__(self, location: str, content: bytes, stripe_size: int, fault: str) -> None:
        self._content = content
        self._stripe_size = stripe_size
        self._fault = fault
        super().__init__(location)

    def do_action(self, context: object, action: object) -> list[bytes]:
        """Hello."""
        return [msgspec.json.encode(Hello("false", "an identity", self._stripe_size))]

    def do_get(self, context: object, ticket: flight.Ticket) -> object:
        """A stripe, or what passes for it."""
        ask = msgspec.json.decode(bytes(ticket.ticket), type=Ask)
        if self._fault == "fails":
            raise flight.FlightServerError("no memory")
        if ask.want == "whole":
            return flight.GeneratorStream(SCHEMA, iter([(EMPTY, msgspec.json.encode(Note(missing=True)))]))
        return flight.GeneratorStream(SCHEMA, self._answer(ask))

    def _answer(self, ask: Ask) -> Iterator[Message]:
        if self._fault == "silent":
            time.sleep(60)
        elif self._fault == "missing":
            yield EMPTY, msgspec.json.encode(Note(missing=True))
        elif self._fault == "sends-on":
            yield EMPTY, msgspec.json.encode(Note(ask="127.0.0.1:9"))
        else:
            yield from self._bytes(ask)

    def _bytes(self, ask: Ask) -> Iterator[Message]:
        begin = ask.index * ask.stripe_size
        end = min(begin + ask.stripe_size, len(self._content))
        for at in range(begin + ask.start, end, CHUNK):
            data = self._content[at : min(at + CHUNK, end)]
            if self._fault == "drip":
                for byte in range(len(data)):
                    yield _message(ask, data[byte : byte + 1], at + byte)
                    time.sleep(0.2)
            yield self._one(ask, data, at)
            if self._fault == "short":
                return

    def _one(self, ask: Ask, data: bytes, at: int) -> Message:
        batch, note = _message(ask, data, at)
        if self._fault == "flip":
            wrong = bytearray(data)
            wrong[len(data) // 2] ^= 1
            return batch_of(memoryview(wrong)), note
        if self._fault == "other":
            return _message(ask, self._content[: len(data)], 0)
        if self._fault == "short":
            return _message(ask, data[: len(data) // 2], at)
        if self._fault == "long":
            return _message(ask, bytes(2 * ask.stripe_size), at)
        return batch, b"\xff not a note" if self._fault == "garbage" else note


def _message(ask: Ask, data: bytes, at: int) -> Message:
    view = memoryview(data)
    return batch_of(view), msgspec.json.encode(Note(checksum=checksum(view, ask.version, at)))


@contextmanager
def false_peer(
    member: str, file: Path, stripe_size: int, fault: str, prefix: Sequence[str] = ()
) -> Iterator[None]:
    """One at ``member`` ("host:port") for the time of the block, run by ``prefix``."""
    command = [*prefix, sys.executable, "-m", __name__, member, str(file), str(stripe_size), fault]
    process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def main() -> None:
    """See the module."""
    member, file, stripe_size, fault = sys.argv[1:]
    server = FalsePeer(f"grpc://{member}", Path(file).read_bytes(), int(stripe_size), fault)
    print("ready", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
