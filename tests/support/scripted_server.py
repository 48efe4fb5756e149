"""A web server whose connections are scripts: for what no real server does when it is told to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

__all__ = ["HANG_UP", "SILENCE", "ScriptedServer", "answer", "scripted_server"]

HANG_UP = b""
"""An answer: the connection is closed without one."""
SILENCE = b"SILENCE"
"""An answer: nothing, until the client goes."""


def answer(body: bytes = b"", status: int = 200, **headers: object) -> bytes:
    """The bytes of an answer; ``headers`` with "_" for "-", None to leave out Content-Length."""
    fields = {"Content_Length": len(body), **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items() if value is not None]
    return "\r\n".join([f"HTTP/1.1 {status} Text", *lines, "", ""]).encode("latin-1") + body


class ScriptedServer:
    """Connection number n answers its requests with the items of ``scripts[n]``, then it is closed.

    ``requests`` are (number of the connection, request line); ``ended`` is set once a connection is over.
    """

    def __init__(self, scripts: Sequence[Sequence[bytes]]) -> None:
        self.requests: list[tuple[int, str]] = []
        self.ended = [threading.Event() for _ in scripts]
        self._scripts = scripts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def connections(self) -> list[int]:
        """The number of the connection that each request came on."""
        return [number for number, _ in self.requests]

    def serve(self) -> None:
        """Accept one connection for each script; returns when the listener is shut."""
        threads = []
        with suppress(OSError):
            for number in range(len(self._scripts)):
                client, _ = self._listener.accept()
                threads.append(threading.Thread(target=self._converse, args=(number, client)))
                threads[-1].start()
        for thread in threads:
            thread.join()

    def shut(self) -> None:
        """Accept no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _converse(self, number: int, client: socket.socket) -> None:
        with suppress(OSError), client:
            for item in self._scripts[number]:
                head = _head_from(client)
                if not head:
                    break
                self.requests.append((number, head.partition(b"\r\n")[0].decode()))
                if item == SILENCE:
                    client.recv(1)
                if item in (SILENCE, HANG_UP):
                    break
                client.sendall(item)
        self.ended[number].set()


def _head_from(client: socket.socket) -> bytes:
    """A request's head; b"" where the client goes instead."""
    head = b""
    while b"\r\n\r\n" not in head:
        data = client.recv(64 * 1024)
        if not data:
            return b""
        head += data
    return head


@contextmanager
def scripted_server(*scripts: Sequence[bytes]) -> Iterator[ScriptedServer]:
    """One that runs for the time of the block. The client has to close its connections within it."""
    server = ScriptedServer(scripts)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.shut()
        thread.join()
