"""The server that sends stripes to other members, over Arrow Flight.

Its calls run in gRPC's threads and reach the event loop by its token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgspec
import pyarrow as pa
import trio
from pyarrow import flight

from fusestripe.errors import FusestripeError
from fusestripe.peers.access import Access
from fusestripe.peers.batches import EMPTY, SCHEMA, batch_of
from fusestripe.peers.messages import CHUNK, HEARTBEAT_SECONDS, HELLO, Ask, Hello, Note, SentOn, checksum

__all__ = ["PeerServer", "Shelf", "Supply"]

T = TypeVar("T")


class Supply(Protocol):
    """One stripe on its way to an asker. All but ``wait`` are for any thread."""

    @property
    def length(self) -> int:
        """Bytes of the whole stripe."""
        ...

    @property
    def filled(self) -> int:
        """Bytes from its start that are here."""
        ...

    @property
    def via(self) -> tuple[str, ...]:
        """The members that the rest comes from, the nearest first; none where it is the origin."""
        ...

    def view(self, start: int, stop: int) -> memoryview:
        """Those bytes, of the ones that are here."""
        ...

    async def wait(self, stop: int) -> None:
        """Until ``stop`` bytes are here, on the event loop. Raises what keeps them from coming."""
        ...

    def ended(self, sent: int) -> None:
        """Nothing more is sent; ``sent`` bytes were."""
        ...


class Shelf(Protocol):
    """What a server has to give. On the event loop."""

    async def take(self, ask: Ask) -> Supply | SentOn | None:
        """What is asked for; None: it is not here. Raises FusestripeError where it cannot be had."""
        ...

    def greet(self, hello: Hello) -> Hello:
        """A member says hello."""
        ...


class PeerServer:
    """Listens at ``address`` ("host:port", port 0: any) as soon as it is made. Raises OSError."""

    def __init__(self, address: str, access: Access, shelf: Shelf) -> None:
        self._shelf = shelf
        self._token = trio.lowlevel.current_trio_token()
        self._waits: set[trio.CancelScope] = set()
        self._is_closed = False
        try:
            self._flight = _Flight(self, f"{access.scheme}://{address}", **_server_options(access))
        except pa.ArrowException as error:
            raise OSError(str(error)) from None

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._flight.port)

    def close(self) -> None:
        """End what is under way; nobody is answered any more. On the event loop; a thread has to ``join``."""
        self._is_closed = True
        for scope in self._waits:
            scope.cancel()

    def join(self) -> None:
        """Return once nothing is under way. In a thread."""
        self._flight.shutdown()

    def answer(self, ask: Ask) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """The messages for ``ask``. In one of gRPC's threads."""
        found = self._on_loop(self._shelf.take, ask)
        if found is None:
            yield EMPTY, msgspec.json.encode(Note(missing=True))
        elif isinstance(found, SentOn):
            yield EMPTY, msgspec.json.encode(Note(ask=found.member))
        else:
            yield from self._send(ask, found)

    def greet(self, hello: Hello) -> Hello:
        """The answer to ``hello``. In one of gRPC's threads."""

        async def greet() -> Hello:
            return self._shelf.greet(hello)

        answer: Hello = self._on_loop(greet)
        return answer

    def _send(self, ask: Ask, supply: Supply) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        at, waited = ask.start, 0.0
        try:
            while at < supply.length:
                began = time.monotonic()
                self._wait_for(supply, min(at + CHUNK, supply.length))
                waited += time.monotonic() - began
                stop = min(supply.filled, at + CHUNK)
                if stop <= at:
                    yield EMPTY, msgspec.json.encode(Note(waited=waited, via=supply.via))
                    continue
                data = supply.view(at, stop)
                said = checksum(data, ask.version, ask.index * ask.stripe_size + at)
                yield batch_of(data), msgspec.json.encode(Note(checksum=said, waited=waited))
                at = stop
        finally:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(supply.ended, at - ask.start)

    def _wait_for(self, supply: Supply, stop: int) -> None:
        async def wait() -> None:
            with trio.move_on_after(HEARTBEAT_SECONDS):
                await supply.wait(stop)

        if supply.filled < stop:
            self._on_loop(wait)

    def _on_loop(self, call: Callable[..., Any], *args: object) -> Any:
        async def run() -> Any:
            with trio.CancelScope() as scope:
                self._waits.add(scope)
                try:
                    if self._is_closed:
                        raise flight.FlightUnavailableError("this member is leaving")
                    return await call(*args)
                finally:
                    self._waits.discard(scope)
            raise flight.FlightUnavailableError("this member is leaving")

        try:
            return trio.from_thread.run(run, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise flight.FlightUnavailableError("this member is leaving") from None
        except FusestripeError as error:
            raise flight.FlightServerError(error.message) from None
        except OSError as error:  # no memory
            raise flight.FlightServerError(error.strerror or str(error)) from None


class _Flight(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """The calls as pyarrow makes them."""

    def __init__(self, server: PeerServer, location: str, **options: object) -> None:
        self._server = server
        super().__init__(location, **options)

    def do_get(self, context: object, ticket: Any) -> Any:
        """An Ask; the answer's messages."""
        ask = _decode(bytes(ticket.ticket), Ask)
        return flight.GeneratorStream(SCHEMA, self._server.answer(ask))

    def do_action(self, context: object, action: Any) -> list[bytes]:
        """A Hello; another."""
        if action.type != HELLO:
            raise flight.FlightServerError("not understood: no such action")
        hello = _decode(action.body.to_pybytes(), Hello)
        return [msgspec.json.encode(self._server.greet(hello))]


class _Door(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Lets nobody in who does not show the token."""

    def __init__(self, access: Access) -> None:
        super().__init__()
        self._access = access

    def start_call(self, info: object, headers: dict[str, list[str]]) -> None:
        """Before each call."""
        shown = headers.get("authorization", [""])[0]
        if not self._access.admits(shown if isinstance(shown, str) else ""):
            raise flight.FlightUnauthenticatedError("this member has another token")


def _server_options(access: Access) -> dict[str, object]:
    options: dict[str, object] = {"middleware": {"door": _Door(access)}}
    if access.certificate:
        options["tls_certificates"] = [(access.certificate, access.key)]
    if access.authority:
        options |= {"verify_client": True, "root_certificates": access.authority}
    return options


def _decode(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise flight.FlightServerError(f"not understood: {error}") from None
