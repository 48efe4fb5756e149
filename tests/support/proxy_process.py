"""The proxy's own process: relays HTTP/1.1 between clients and one server, and shapes, counts and breaks it.

Started by ``tests.support.proxy`` with the standard library alone, which keeps its start quick. A thread a
connection; only heads are parsed, bodies go from socket to socket by splice(2) without entering Python.
Argument 1: host:port of the server. Argument 2: the file descriptor of the control channel, on which a line
of JSON is a command and is answered by a line of JSON; its end is the end of the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import sys
import threading
import time
from typing import Any

from tests.support.proxy_links import Link
from tests.support.proxy_messages import Gone, Head, Reader
from tests.support.proxy_state import Rule, State

UNSHAPED_CHUNK = 1024 * 1024
SHAPED_BUFFER = 256 * 1024
"""Receive buffer towards the server of a shaped connection: with the kernel's own 6 MiB the server would
send a whole stripe in one burst, and sixteen bursts at once take the CPU that everything else runs on."""


class Connection(threading.Thread):
    """One client and, while it stays, one connection to the server."""

    def __init__(self, client: socket.socket, server: tuple[str, int], state: State) -> None:
        super().__init__(daemon=True)
        self._client, self._server, self._state = client, server, state
        self._upstream: Reader | None = None
        self._shaped = False
        self._releases = 0
        self._link: Link | None = None
        self._pipe = os.pipe()
        with contextlib.suppress(OSError):  # over the user's limit of pipe pages: a small pipe does too
            fcntl.fcntl(self._pipe[1], 1031, UNSHAPED_CHUNK)  # F_SETPIPE_SZ, linux/fcntl.h

    def run(self) -> None:
        reader = Reader(self._client)
        try:
            while (raw := reader.until(b"\r\n\r\n")) and self._exchange(reader, Head(raw)):
                pass
        except (Gone, OSError, ValueError):
            pass  # either side went away: so does the connection
        finally:
            self._client.close()
            if self._upstream:
                self._upstream.socket.close()
            for end in self._pipe:
                os.close(end)

    def sever(self) -> None:
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)

    def _exchange(self, reader: Reader, request: Head) -> bool:
        """One request and its response; whether another may follow."""
        method, path, _ = request.first.split(" ", 2)
        kind = "LIST" if method == "GET" and "list-type=" in path else method
        self._releases = self._state.releases  # before the rule: a release after it is for this one too
        entry, rule = self._state.begin(kind, path, request.get("range"), request.get("authorization"))
        received = time.monotonic()
        try:
            if rule and rule.action in ("reset", "close") and rule.after is None:
                return self._abort(rule.action == "reset")
            if rule and rule.action == "status":
                return self._invent(request, method, rule, received, entry)
            return self._relay(reader, request, method, rule, received, entry)
        finally:
            self._state.end()

    def _relay(
        self, reader: Reader, request: Head, method: str, rule: Rule | None, received: float, entry: list[Any]
    ) -> bool:
        upstream = self._connected()
        upstream.socket.sendall(request.encode())
        response = Head(b"")
        if request.get("expect"):
            response = self._answer(upstream)
        if not response.first or response.first.split(" ")[1] == "100":
            if response.first:
                self._client.sendall(response.encode())
            self._body(reader, upstream.socket, request, request.length if request.length > 0 else 0)
            response = self._answer(upstream)
        status = int(response.first.split(" ")[1])
        entry[3] = status
        if rule and rule.headers:
            response.replace(rule.headers)
        if rule and rule.pauses and rule.after is None:
            self._pause(rule)
        self._await_first_byte(received)
        if not self._sent_head(response.encode(), rule):
            return False
        empty = method == "HEAD" or status in (204, 304)
        if not self._shaped_body(upstream, response, 0 if empty else response.length, empty, rule):
            return False
        return "close" not in (request.get("connection").lower(), response.get("connection").lower())

    def _sent_head(self, head: bytes, rule: Rule | None) -> bool:
        """Whether the body is to follow."""
        if rule and rule.is_in_head:
            self._client.sendall(head[: rule.after])
            if not rule.action.startswith("hold"):
                return self._abort(rule.action.startswith("reset"))
            self._state.hold(self._releases)
            head = head[rule.after :]
        elif rule and rule.action == "drip" and rule.after is None:
            for place in range(len(head)):
                self._client.sendall(head[place : place + 1])
                time.sleep(rule.seconds)
            return True
        self._client.sendall(head)
        return True

    def _shaped_body(self, upstream: Reader, head: Head, length: int, empty: bool, rule: Rule | None) -> bool:
        self._begin_pacing()
        if empty:
            return True
        breaks = rule and not rule.is_in_head and rule.action != "long"
        if rule and breaks and rule.after is not None and not head.chunked and rule.after <= length:
            self._copy(upstream, self._client, rule.after, paced=True)
            length -= rule.after
            if rule.action in ("cut", "reset"):
                return self._abort(rule.action == "reset")
            if rule.action == "drip":
                return self._drip(upstream, length, rule.seconds)
            self._pause(rule)
        self._body(upstream, self._client, head, length, paced=True)
        if rule and rule.action == "long":
            self._client.sendall(b"x" * (rule.after or 1))
        return head.chunked or length >= 0

    def _drip(self, upstream: Reader, length: int, seconds: float) -> bool:
        for _ in range(length):
            time.sleep(seconds)
            self._copy(upstream, self._client, 1, paced=True)
        return True

    def _pause(self, rule: Rule) -> None:
        if rule.action == "stall":
            time.sleep(rule.seconds)
        else:
            self._state.hold(self._releases)

    def _invent(self, request: Head, method: str, rule: Rule, received: float, entry: list[Any]) -> bool:
        """An answer the server knows nothing of. The connection goes on where the request had no body."""
        status, body = rule.answer
        entry[3] = status
        head = Head(f"HTTP/1.1 {status} Fault\r\nContent-Type: application/xml".encode())
        head.replace([("Content-Length", str(len(body))), *rule.headers])
        self._await_first_byte(received)
        self._client.sendall(head.encode() + (b"" if method == "HEAD" else body))
        return request.length <= 0 and not request.chunked

    def _abort(self, reset: bool) -> bool:
        if reset:  # linger of 0 s: close sends RST (socket(7))
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    def _await_first_byte(self, received: float) -> None:
        wait = received + self._state.delay - time.monotonic()
        if wait > 0:
            time.sleep(wait)

    def _begin_pacing(self) -> None:
        rate = self._state.rate
        if not rate:
            self._link = None
        elif self._link is None or self._link.rate != rate:
            self._link = Link(rate)
        if self._link:
            self._link.begin()

    def _answer(self, upstream: Reader) -> Head:
        raw = upstream.until(b"\r\n\r\n")
        if not raw:
            raise Gone
        return Head(raw)

    def _connected(self) -> Reader:
        shaped = bool(self._state.rate or self._state.total)
        if self._upstream and (shaped != self._shaped or not _alive(self._upstream.socket)):
            self._upstream.socket.close()
            self._upstream = None
        if self._upstream is None:
            upstream = socket.socket()
            self._upstream, self._shaped = Reader(upstream), shaped
            if shaped:
                upstream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SHAPED_BUFFER)
            upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            upstream.connect(self._server)
        return self._upstream

    def _body(
        self, source: Reader, target: socket.socket, head: Head, length: int, paced: bool = False
    ) -> None:
        if not head.chunked:
            self._copy(source, target, length, paced)
            return
        size = -1
        while size:
            line = source.until(b"\r\n")
            target.sendall(line)
            size = int(line.split(b";")[0], 16)
            self._copy(source, target, size, paced)
            target.sendall(source.until(b"\r\n"))

    def _copy(self, source: Reader, target: socket.socket, length: int, paced: bool = False) -> None:
        """``length`` bytes (all there are where it is negative); raises Gone where there are fewer."""
        left = length if length >= 0 else sys.maxsize
        link, shared = (self._link, self._state.total) if paced else (None, None)
        while left:
            most = min(left, shared.chunk if shared else UNSHAPED_CHUNK)
            most = link.grant(most) if link else most
            data = source.take(most)
            count = len(data) or os.splice(source.socket.fileno(), self._pipe[1], most)
            if not count:
                if length < 0:
                    return
                raise Gone
            if link:
                link.passed(count)
            if shared:
                shared.wait(count)
            if data:
                target.sendall(data)
            else:
                self._drain(target, count)
            if paced:
                self._state.sent(count)
            left -= count

    def _drain(self, target: socket.socket, count: int) -> None:
        while count:
            count -= os.splice(self._pipe[0], target.fileno(), count)


def _alive(idle: socket.socket) -> bool:
    """Whether a connection on which nothing is expected is still open."""
    try:
        idle.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False  # end of stream, or bytes that nobody asked for


class Gate:
    """The listening port. Refusing, it stays bound (nobody else gets it) and no longer listens."""

    def __init__(self, server: tuple[str, int], state: State) -> None:
        self._server, self._state = server, state
        self._keeper = self._bound(0)
        self.port: int = self._keeper.getsockname()[1]
        self._listener: socket.socket | None = None
        self._connections: list[Connection] = []
        self._crowd: list[socket.socket] = []
        self.open()

    def _bound(self, port: int) -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(("127.0.0.1", port))
        return made

    def open(self) -> None:
        while self._crowd:
            self._crowd.pop().close()
        if self._listener is None:
            self._listener = self._bound(self.port)
            self._listener.listen(1024)
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def refuse(self) -> None:
        """Refuse new connections and sever those that are there."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
            self._listener.close()
            self._listener = None
        for connection in self._connections:
            connection.sever()

    def ignore(self) -> None:
        """Sever all connections, and let no new one come about: a full queue that nobody accepts from."""
        self.refuse()
        deaf = self._bound(self.port)
        deaf.listen(0)
        self._crowd.append(deaf)
        for _ in range(2):  # one more than the queue holds (listen(2)): the kernel drops what comes then
            waiting = socket.socket()
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(("127.0.0.1", self.port))
            self._crowd.append(waiting)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._state.lock:
                self._state.connections += 1
            connection = Connection(client, self._server, self._state)
            self._connections = [*(one for one in self._connections if one.is_alive()), connection]
            connection.start()


def command(gate: Gate, state: State, name: str, values: dict[str, Any]) -> Any:
    if name == "shape":
        state.shape(**values)
    elif name == "faults":
        with state.lock:
            state.rules = [Rule(data) for data in values["faults"]]
    elif name == "statistics":
        return state.statistics()
    elif name == "log":
        return state.log
    else:
        {
            "reset": state.reset,
            "release": state.release,
            "refuse": gate.refuse,
            "ignore": gate.ignore,
            "open": gate.open,
        }[name]()
    return None


def main() -> None:
    host, _, port = sys.argv[1].rpartition(":")
    state = State()
    gate = Gate((host, int(port)), state)
    with socket.socket(fileno=int(sys.argv[2])) as channel, channel.makefile("rw") as lines:
        lines.write(json.dumps(gate.port) + "\n")
        lines.flush()
        for line in lines:
            name, values = json.loads(line)
            lines.write(json.dumps(command(gate, state, name, values)) + "\n")
            lines.flush()
    os._exit(0)  # threads may be held for ever: that is what some tests ask for


if __name__ == "__main__":
    main()
