"""The daemon's control socket: commands in, answers out, one JSON value a line.

A request is ``{"command": name, "args": {...}}``. Answers are lines ``{"value": ...}``, any number, then one
``{"done": true}`` or ``{"error": message, "mend": mend}``. An empty line says "still at it". A
daemon whose mount is taken away in the middle of an answer says so in its last line, as an error. The socket
is open to its user alone (mode 0600 in a directory of mode 0700).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec
import trio

from fusestripe.errors import FusestripeError

__all__ = ["ALIVE_SECONDS", "LONGEST_REQUEST", "Handler", "Request", "Send", "serve"]

Send = Callable[[object], Awaitable[None]]
"""Sends one value (anything msgspec writes as JSON) to the client."""
Handler = Callable[[Mapping[str, Any], Send], Awaitable[None]]
"""Answers a command, given its arguments. It is cancelled when the client hangs up."""

ALIVE_SECONDS = 5.0
"""A daemon at work is never silent for longer."""
LEAVE_SECONDS = 1.0
"""For so long a daemon that ends waits for a client to take its last line."""
TAKEN_AWAY = {"error": "the mount was taken away meanwhile", "mend": "mount it again"}
LONGEST_REQUEST = 1 << 20
"""Bytes. What is longer is hung up on."""

log = logging.getLogger(__name__)


class Request(msgspec.Struct, frozen=True):
    """What a client wants of the daemon."""

    command: str
    args: dict[str, Any] = {}


async def serve(
    path: str,
    handlers: Mapping[str, Handler],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer at ``path`` until cancelled; started once clients can connect.

    A socket file that is there already is replaced: whoever made it is dead, or no longer wanted.
    """
    with _bound(path) as listening:

        async def answer(stream: trio.SocketStream) -> None:
            async with stream:
                await _Conversation(stream, handlers).run()

        task_status.started()
        await trio.serve_listeners(answer, [trio.SocketListener(listening)])


@contextlib.contextmanager
def _bound(path: str) -> Iterator[trio.socket.SocketType]:
    """A listening socket that appears at ``path`` complete: connectable, and with its mode."""
    fresh = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mine = None
    try:
        listening.bind(fresh)
        os.chmod(fresh, 0o600)
        listening.listen()
        os.rename(fresh, path)
        mine = os.stat(path).st_ino
        yield trio.socket.from_stdlib_socket(listening)
    finally:
        listening.close()
        with contextlib.suppress(OSError):  # gone, or another daemon's by now
            if os.stat(path).st_ino == mine:
                os.unlink(path)


class _Conversation:
    """One client: a request, its answers, and the end of both when it hangs up.

    Invariant: whole lines are sent, one at a time, and nothing after one that was broken off. A client that
    is gone cancels everything here, wherever it is noticed, so handlers never see the stream's errors.
    """

    def __init__(self, stream: trio.SocketStream, handlers: Mapping[str, Handler]) -> None:
        self._stream = stream
        self._handlers = handlers
        self._sending = trio.Lock()
        self._scope = trio.CancelScope()
        self._is_whole = True

    async def run(self) -> None:
        with self._scope:
            line = await self._read_line()
            if line is None:
                return
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._say_alive)
                    nursery.start_soon(self._await_hangup)
                    await self._send_line(msgspec.json.encode(await self._answer(line)))
                    self._scope.cancel()
            finally:
                if not self._scope.cancel_called:  # neither answered nor hung up: the daemon ends
                    await self._take_leave()

    async def _answer(self, line: bytes) -> dict[str, object]:
        """Let the handler send its values; the last line of the conversation."""
        try:
            request = msgspec.json.decode(line, type=Request)
            handler = self._handlers.get(request.command)
            if handler is None:
                return {"error": f'this daemon does not know "{request.command}"', "mend": "mount it again"}
            await handler(request.args, self._send_value)
        except msgspec.DecodeError as error:
            return {"error": f"not a request: {error}"}
        except FusestripeError as error:
            return {"error": error.message, "mend": error.mend}
        except Exception as error:
            # A bug in one answer is no reason to take the mount from its readers.
            log.exception("control command failed")
            return {
                "error": f"{type(error).__name__}: {error}",
                "mend": "fusestripe status names its log",
            }
        return {"done": True}

    async def _send_value(self, value: object) -> None:
        await self._send_line(msgspec.json.encode({"value": value}))

    async def _send_line(self, line: bytes) -> None:
        async with self._sending:
            try:
                self._is_whole = False
                await self._stream.send_all(line + b"\n")
                self._is_whole = True
            except trio.BrokenResourceError:
                self._scope.cancel()
                await trio.lowlevel.checkpoint()

    async def _take_leave(self) -> None:
        """Tell the client that it is no fault of the daemon's, as far as it still listens."""
        with trio.move_on_after(LEAVE_SECONDS) as scope:
            scope.shield = True
            if self._is_whole:
                await self._send_line(msgspec.json.encode(TAKEN_AWAY))

    async def _say_alive(self) -> None:
        while True:
            await trio.sleep(ALIVE_SECONDS)
            await self._send_line(b"")

    async def _await_hangup(self) -> None:
        while await self._receive():
            pass
        self._scope.cancel()

    async def _read_line(self) -> bytes | None:
        line = bytearray()
        while not line.endswith(b"\n"):
            part = await self._receive()
            if not part or len(line) > LONGEST_REQUEST:
                return None
            line += part
        return bytes(line)

    async def _receive(self) -> bytes:
        """What came; b"" once the client is gone."""
        try:
            return await self._stream.receive_some()
        except trio.BrokenResourceError:
            return b""
