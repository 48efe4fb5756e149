"""A proxy of our own before a real server: delay, limits, counts, and faults given as data.

It runs in a process of its own (``proxy_process.py``), so that its CPU and its GIL are not the test's.
The Host header passes as the client signed it (SigV4 signs it), keep-alive works, and a body is relayed
without being looked at.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tests.support.seaweed import aws_environment

__all__ = ["Fault", "Proxy", "Request", "Statistics"]

_PROGRAM = "tests.support.proxy_process"
_ROOT = Path(__file__).resolve().parents[2]


class Fault(msgspec.Struct, frozen=True):
    """What happens to some requests.

    ``match`` is a regular expression searched for in "KIND path?query range" as on the wire, for example
    "GET /bucket/key bytes=0-99" or "LIST /bucket?list-type=2&prefix=a%2F". Of the requests that match, those
    numbered ``nth`` (from 1) to ``nth + times - 1`` are hit; ``times`` 0 means all from ``nth`` on. Where
    several faults fit a request, the first of the list acts; the others count it all the same.

    ``action``:

    - "status:503", "status:503:SlowDown": answered by the proxy with that status and S3 error code, or
      with ``body`` where one is given ("status:200" with a body is a listing made up by the test);
    - "reset", "close": the connection is reset, or closed, without an answer;
    - "cut:N", "reset:N": the head and N bytes of the body, then the end, or a reset;
    - "stall:S", "stall:S:N": S seconds pass before the head, or after N bytes of the body;
    - "hold", "hold:N": the same until ``Proxy.release()``;
    - "cut-head:N", "reset-head:N", "hold-head:N": that after N bytes of the head;
    - "drip:S", "drip:S:N": a byte every S seconds, from the head on, or after N bytes of the body;
    - "long:N": N bytes more than promised follow the body;
    - "pass": only ``headers`` are changed.

    ``headers`` replace those of the answer, as (("ETag", '"other"'),). ``key``: only requests that are signed
    with this access key.
    """

    action: str
    match: str = ""
    nth: int = 1
    times: int = 1
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""
    key: str = ""


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One request as it passed. ``kind`` is its method, or LIST; ``range`` is the Range header or "".

    ``path`` has its query and is percent-encoded. ``status`` is 0 where there is no answer (yet).
    """

    kind: str
    path: str
    range: str
    status: int


class Statistics(msgspec.Struct, frozen=True):
    """What has passed since the last ``reset``.

    ``counts`` holds the number of requests of each kind, ``ranges`` how many GETs had a Range,
    ``bytes_sent`` the bytes of the bodies sent to clients, ``max_concurrent`` the most requests in flight.
    """

    counts: dict[str, int]
    ranges: int
    bytes_sent: int
    connections: int
    active: int
    max_concurrent: int
    held: int

    @property
    def requests(self) -> int:
        """The number of requests of all kinds."""
        return sum(self.counts.values())

    def count(self, kind: str) -> int:
        """The number of requests of ``kind``: "GET", "LIST", "HEAD", "PUT" ..."""
        return self.counts.get(kind, 0)


class Proxy:
    """A running proxy before ``server`` (a URL, "http://127.0.0.1:8333"). Use as a context manager.

    ``rate`` limits each connection and ``total_rate`` all together, in bytes per second (0: no limit);
    ``delay`` is the seconds from a request to the first byte of its response, at least.
    """

    def __init__(
        self,
        server: str,
        *,
        rate: float = 0,
        total_rate: float = 0,
        delay: float = 0,
        faults: Sequence[Fault] = (),
    ) -> None:
        netloc = urlsplit(server).netloc
        ours, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._socket = ours
        self._lines = ours.makefile("rwb")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-m", _PROGRAM, netloc, str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        try:
            self.port = msgspec.json.decode(self._lines.readline(), type=int)
            self.endpoint = f"http://127.0.0.1:{self.port}"
            self.shape(rate=rate, total_rate=total_rate, delay=delay)
            self.set_faults(faults)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the proxy, for measuring its share of the CPU."""
        return self._process.pid

    @property
    def environment(self) -> dict[str, str]:
        """The ``AWS_*`` variables that reach the test server by way of this proxy."""
        return aws_environment(self.endpoint)

    def shape(self, *, rate: float = 0, total_rate: float = 0, delay: float = 0) -> None:
        """Set all three limits, from the next response on."""
        self._call("shape", rate=rate, total_rate=total_rate, delay=delay)

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """Replace the faults; those given start to count from now."""
        self._call("faults", faults=list(faults))

    def reset(self) -> None:
        """Set all counts to zero and empty the log. Limits and faults stay."""
        self._call("reset")

    def release(self) -> None:
        """Let every response go on that is held, or on its way to be."""
        self._call("release")

    def refuse(self) -> None:
        """Be an origin that is down: sever all connections and refuse new ones, until ``accept``."""
        self._call("refuse")

    def ignore(self) -> None:
        """The same, but connecting to it comes to no end, until ``accept``."""
        self._call("ignore")

    def accept(self) -> None:
        """Listen again, on the same port."""
        self._call("open")

    def statistics(self) -> Statistics:
        """The counts so far."""
        return msgspec.convert(self._call("statistics"), Statistics)

    def log(self) -> list[Request]:
        """Every request since the last ``reset``, in the order of their arrival."""
        return msgspec.convert(self._call("log"), list[Request])

    def wait_for(self, condition: Callable[[Statistics], bool], timeout: float = 10.0) -> Statistics:
        """The first statistics for which ``condition`` holds; TimeoutError after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not condition(found := self.statistics()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {timeout} s: {found}")
            time.sleep(0.005)
        return found

    def wait_held(self, count: int = 1, timeout: float = 10.0) -> None:
        """Return when at least ``count`` responses are being held."""
        self.wait_for(lambda statistics: statistics.held >= count, timeout)

    def close(self) -> None:
        """End the process and reap it. A second call does nothing."""
        self._lines.close()
        self._socket.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _call(self, name: str, **values: object) -> Any:
        with self._lock:
            self._lines.write(msgspec.json.encode([name, values]) + b"\n")
            self._lines.flush()
            answer = self._lines.readline()
        if not answer:
            raise RuntimeError("the proxy's process has ended")
        return msgspec.json.decode(answer)
