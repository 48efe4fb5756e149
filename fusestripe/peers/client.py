"""The client that gets stripes from other members, over Arrow Flight. Blocking."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import flight

from fusestripe.peers.access import Access
from fusestripe.peers.batches import bytes_of
from fusestripe.peers.messages import HELLO, Ask, Hello, Note, checksum
from fusestripe.units import printable

__all__ = ["Download", "PeerClient", "PeerFailed", "PeerTroubled", "WrongBytes"]

# A channel of its own for each client: one that was made anew must not inherit the pauses of the last one
# (https://grpc.github.io/grpc/core/group__grpc__arg__keys.html).
_CHANNEL = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
]


Came = Callable[[int, Note], None]
"""Called from a download's thread: with how many bytes of the stripe are here and right, and a note."""


class PeerFailed(Exception):
    """No answer, or none that can be used. ``is_stranger``: it does not take us in."""

    def __init__(self, why: str, *, is_stranger: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.is_stranger = is_stranger


class PeerTroubled(PeerFailed):
    """It answers, and cannot have the bytes itself."""


class WrongBytes(PeerFailed):
    """What came is not what was asked for."""


class PeerClient:
    """Calls to other members, each by its name ("host:port"). For many threads."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}

    def greet(self, member: str, hello: Hello, *, timeout: float) -> Hello:
        """Say hello. ``timeout``: seconds. Raises PeerFailed."""
        options = flight.FlightCallOptions(timeout=timeout, headers=[self._access.header])
        with _failures():
            action = flight.Action(HELLO, msgspec.json.encode(hello))
            answers = [result.body.to_pybytes() for result in self._client(member).do_action(action, options)]
        try:
            return msgspec.json.decode(answers[0], type=Hello)
        except (IndexError, msgspec.MsgspecError, RecursionError):
            raise PeerFailed("it speaks another protocol", is_stranger=True) from None

    def download(self, member: str, ask: Ask, into: memoryview, came: Came, *, timeout: float) -> Download:
        """What ``ask`` wants, to be run. ``timeout``: seconds until it ends in any case.

        ``into`` is the whole stripe. What ``came`` raises ends the download.
        """
        return Download(partial(self._client, member), self._access, ask, into, came, timeout)

    def forget(self, member: str) -> None:
        """Its connection is of no use any more."""
        with self._lock:
            self._clients.pop(member, None)  # closed with its last call

    def close(self) -> None:
        """Let go of all connections."""
        with self._lock:
            self._clients.clear()

    def _client(self, member: str) -> Any:
        with self._lock:
            if member not in self._clients:
                self._clients[member] = flight.FlightClient(
                    f"{self._access.scheme}://{member}", generic_options=_CHANNEL, **self._tls()
                )
            return self._clients[member]

    def _tls(self) -> dict[str, object]:
        access = self._access
        options: dict[str, object] = {}
        if access.certificate:
            options |= {"cert_chain": access.certificate, "private_key": access.key}
            options["tls_root_certs"] = access.authority or access.certificate
        return options


class Download:
    """One call for a stripe. ``run`` in a thread, once; ``cancel`` from any other."""

    def __init__(
        self,
        client: Callable[[], Any],
        access: Access,
        ask: Ask,
        into: memoryview,
        came: Came,
        timeout: float,
    ) -> None:
        self._client = client
        self._access = access
        self._ask = ask
        self._into: memoryview | None = into  # None once it is cancelled: a thread that hangs keeps no memory
        self._length = len(into)
        self._came = came
        self._timeout = timeout
        self._lock = threading.Lock()
        self._reader: Any = None

    def run(self) -> Note | None:
        """Get it: None once the stripe is whole, or a Note that says why it does not come from there.

        Raises PeerFailed, WrongBytes.
        """
        options = flight.FlightCallOptions(timeout=self._timeout, headers=[self._access.header])
        with _failures():
            reader = self._client().do_get(flight.Ticket(msgspec.json.encode(self._ask)), options)
            with self._lock:
                self._reader = reader
                if self._into is None:
                    reader.cancel()
            try:
                return self._read(reader)
            finally:
                with self._lock:
                    self._reader = None
                reader.cancel()

    def cancel(self) -> None:
        """Have ``run`` end soon. Nothing is written, and nothing told, once this has returned."""
        with self._lock:
            self._into = None
            if self._reader is not None:
                self._reader.cancel()

    def _read(self, reader: Any) -> Note | None:
        at = self._ask.start
        while at < self._length:
            try:
                message = reader.read_chunk()
            except StopIteration:
                raise PeerFailed(f"its answer ends after {at - self._ask.start} bytes") from None
            note = _note(message.app_metadata)
            if note.ask or note.missing:
                return note
            data = bytes_of(message.data)
            if data is None:
                raise WrongBytes("it sent a message that is none of ours")
            if len(data) > self._length - at:
                raise WrongBytes("it sent more than the stripe has")
            where = self._ask.index * self._ask.stripe_size + at
            if len(data) and checksum(data, self._ask.version, where) != note.checksum:
                raise WrongBytes(
                    f"it sent wrong bytes of stripe {self._ask.index} of {printable(str(self._ask.version))}"
                )
            with self._lock:
                if self._into is None:
                    raise PeerFailed("cancelled")
                self._into[at : at + len(data)] = data
                at += len(data)
                self._came(at, note)
        return None


@contextmanager
def _failures() -> Iterator[None]:
    """Turns what pyarrow raises into PeerFailed."""
    try:
        yield
    except (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError):
        raise PeerFailed("it does not take our token", is_stranger=True) from None
    except (flight.FlightServerError, flight.FlightTimedOutError) as error:
        raise PeerTroubled(_first_line(error)) from None
    except (pa.ArrowException, OSError) as error:
        raise PeerFailed(_first_line(error)) from None


def _first_line(error: BaseException) -> str:
    """What gRPC says of it, without where in its code."""
    line = printable(str(error).split("\n", 1)[0])
    line = line.split(". gRPC client debug context", 1)[0].split(". Client context", 1)[0]
    line = line.rpartition("with message: ")[2].rpartition("Failed to connect to remote host: ")[2]
    return (line[:1].lower() + line[1:])[:200]


def _note(metadata: Any) -> Note:
    try:
        return msgspec.json.decode(metadata.to_pybytes() if metadata is not None else b"", type=Note)
    except (msgspec.MsgspecError, RecursionError):
        raise WrongBytes("it sent a message that is none of ours") from None
