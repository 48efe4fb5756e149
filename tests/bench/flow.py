"""How fast bytes pass a proxy once the beginning is over."""

from __future__ import annotations

import subprocess
import time

import msgspec
import psutil

from fusestripe.units import MIB
from tests.support.proxy import Proxy

__all__ = ["Flow", "Window", "watch"]

# A listing is smaller, and stripes come right after it.
BEGUN = MIB
START_SECONDS = 60.0
POLL = 0.01


class Window(msgspec.Struct, frozen=True):
    """From which second to which, counted from the first bytes of the file."""

    since: float
    until: float


class Flow(msgspec.Struct, frozen=True):
    """``bytes`` that passed in ``seconds``; ``unread`` passed before the end and had not reached the reader.

    That is so of a reader of files: what one receives from sockets is not known.
    """

    bytes: int
    seconds: float
    unread: int


def watch(proxy: Proxy, reader: subprocess.Popen[str], window: Window) -> Flow:
    """What passes in ``window`` while ``reader`` reads, which is ended then.

    At the proxy and not at the reader: stripes that are asked for together come together, so that what
    reaches a reader, in order, is a stair of steps as large as all that is in flight. Raises RuntimeError
    where the reader ends before the window is half over: the file is too small.
    """
    with reader:
        try:
            proxy.wait_for(lambda statistics: statistics.bytes_sent > BEGUN, START_SECONDS)
            begun = time.perf_counter()
            _wait(reader, begun + window.since)
            first, start = proxy.statistics().bytes_sent, time.perf_counter()
            _wait(reader, begun + window.until)
            last, end = proxy.statistics().bytes_sent, time.perf_counter()
            had = last if reader.poll() is not None else psutil.Process(reader.pid).io_counters().read_chars
        finally:
            reader.kill()
    if end - start < (window.until - window.since) / 2:
        raise RuntimeError(f"the reader ended after {end - begun:.1f} s: it takes a larger file (--size)")
    return Flow(last - first, end - start, last - had)


def _wait(reader: subprocess.Popen[str], moment: float) -> None:
    """Until then, or the end of ``reader``."""
    while reader.poll() is None and (left := moment - time.perf_counter()) > 0:
        time.sleep(min(POLL, left))
