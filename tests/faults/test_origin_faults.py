"""What goes wrong between a mount and its origin: right bytes after what passes, one error for what stays.

Each fault is a row of a table. All happen to one mount of the real S3 server by way of the proxy, each to a
file or a directory of its own.
"""

from __future__ import annotations

import errno
import os
import random
import re
import string
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.support.mounted import Mounted, until
from tests.support.mounted_store import KIB, MountedStore, content, ranges_of
from tests.support.proxy import Fault, Proxy, Request
from tests.support.seaweed import SeaweedServer

STRIPE = 64 * KIB
STRIPES = 4
SIZE = STRIPES * STRIPE - 77
HIT = 2
"""The stripe that the faults happen to: neither the first nor the last."""
TIMEOUT = 2.0
MOST = 2 * TIMEOUT + 3
"""Seconds within which an error has to come: the time-out, one more answer waited for, a busy machine."""
MOST_REQUESTS = 16
"""For one stripe: the waits double from 0.1 s on, and a connection that hangs up is tried once more."""


WHOLE = "the whole file"


def text(name: str) -> str:
    """The file ``name``, whose bytes can stand in a made-up answer."""
    return "".join(random.Random(name).choices(string.ascii_letters, k=SIZE))


class World:
    """The mount and what is behind it."""

    def __init__(self, store: MountedStore, mount: Mounted) -> None:
        self.store, self.proxy, self.mount = store, store.proxy, mount
        self._seen = 0

    def complaints(self) -> list[str]:
        """What was logged since the last call."""
        lines = self.mount.complaints()
        new, self._seen = lines[self._seen :], len(lines)
        return new

    def requests(self, name: str) -> list[Request]:
        """Those for the data of ``name``."""
        return [one for one in self.store.requests("GET") if one.path.endswith(f"/{name}")]

    def count_for_stripe(self, name: str, index: int) -> int:
        """How many of them are for bytes of that stripe."""
        return sum(first // STRIPE == index for first, _ in ranges_of(self.requests(name)))

    def fill_in(self, fault: Fault, name: str, match: str, times: int) -> Fault:
        """``fault`` for requests that ``match``; WHOLE is all of ``name``, with the ETag it has."""
        if fault.body != WHOLE:
            return Fault(fault.action, match, 1, times, fault.headers, fault.body)
        head = self.store.server.client.head_object(Bucket=self.store.bucket, Key=name)
        return Fault(fault.action, match, 1, times, (("ETag", head["ETag"]),), text(name))


def stripe_of(name: str, index: int = HIT) -> str:
    """What a request for that stripe looks like to the proxy."""
    return f"GET /[^ ]*/{name} bytes={index * STRIPE}-"


PASSES = {
    "500": Fault("status:500:InternalError", times=2),
    "502": Fault("status:502", times=2),
    "503": Fault("status:503:SlowDown", times=2),
    "503 without a word": Fault("status:503", times=2),
    "503 and Retry-After": Fault("status:503:SlowDown", headers=(("Retry-After", "1"),)),
    "429": Fault("status:429", times=2),
    "429 and Retry-After": Fault("status:429", headers=(("Retry-After", "1"),)),
    "429 and a Retry-After beyond the time-out": Fault("status:429", headers=(("Retry-After", "3600"),)),
    "reset before the answer": Fault("reset", times=3),
    "closed before the answer": Fault("close", times=3),
    "reset in the head": Fault("reset-head:20"),
    "closed in the head": Fault("cut-head:20"),
    "no body": Fault("cut:0"),
    "closed in the body": Fault("cut:30000", times=2),
    "reset in the body": Fault("reset:30000", times=2),
    "closed before the last byte": Fault(f"cut:{STRIPE - 1}"),
    "closed after the body": Fault(f"cut:{STRIPE}"),
    "reset after the body": Fault(f"reset:{STRIPE}"),
    "one byte more than promised": Fault("long:1", times=2),
    "many bytes more than promised": Fault("long:5000", times=2),
    "a shorter range": Fault("pass", headers=(("Content-Length", str(STRIPE - 1)),)),
    "a longer range": Fault("pass", headers=(("Content-Length", str(STRIPE + 1)),)),
    "another range": Fault("pass", headers=(("Content-Range", f"bytes 0-{STRIPE - 1}/{SIZE}"),)),
    "a range of a longer file": Fault(
        "pass", headers=(("Content-Range", f"bytes {HIT * STRIPE}-{(HIT + 1) * STRIPE - 1}/{SIZE + 1}"),)
    ),
    "no Content-Range": Fault("pass", headers=(("Content-Range", ""),)),
    "the whole file": Fault("status:200", body=WHOLE),
    "a stall before the head": Fault("hold"),
    "a stall in the head": Fault("hold-head:20"),
    "a stall before the body": Fault("hold:0"),
    "a stall in the body": Fault("hold:30000"),
    "a head byte by byte": Fault("drip:0.5"),
    "a body byte by byte": Fault("drip:0.5:30000"),
}

STAYS = {
    "500": (Fault("status:500:InternalError"), r"failed \(500 InternalError\)"),
    "502": (Fault("status:502"), r"failed \(502\)"),
    "503": (Fault("status:503:SlowDown"), r"asks for fewer requests \(503 SlowDown\)"),
    "503 and Retry-After": (Fault("status:503", headers=(("Retry-After", "1"),)), r"\(503\)"),
    "429": (Fault("status:429"), r"asks for fewer requests \(429\)"),
    "429 for longer": (Fault("status:429", headers=(("Retry-After", "3600"),)), r"\(429\)"),
    "reset before the answer": (Fault("reset"), "the connection broke"),
    "closed before the answer": (Fault("close"), "the connection broke"),
    "reset in the head": (Fault("reset-head:20"), "the connection broke"),
    "closed in the head": (Fault("cut-head:20"), "the connection broke"),
    "reset in the body": (Fault("reset:20"), "the connection broke"),
    "closed in the body": (Fault("cut:20"), "the connection broke"),
    "a stall before the head": (Fault("hold"), "no answer in time"),
    "a stall in the head": (Fault("hold-head:20"), "no answer in time"),
    "a stall in the body": (Fault("hold:20"), "no answer in time"),
    "a head byte by byte": (Fault("drip:0.5"), "no answer in time"),
    "a body byte by byte": (Fault("drip:0.5:20"), "no answer in time"),
}
"""What happens to every request, and what the log says of it: for data as for listings."""

STAYS_IN_DATA = {
    **STAYS,
    "another range": (
        Fault("pass", headers=(("Content-Range", f"bytes 0-{STRIPE - 1}/{SIZE}"),)),
        "another range",
    ),
    "the whole file": (Fault("status:200", body=WHOLE), "another range"),
    "a shorter range": (Fault("pass", headers=(("Content-Length", "99"),)), "another length"),
}
DOWN: dict[str, tuple[Callable[[Proxy], None], str]] = {
    "refused": (Proxy.refuse, "connection refused"),
    "a stall while connecting": (Proxy.ignore, "no connection in time"),
}


def named(kind: str, number: int) -> str:
    """A file or directory for one row."""
    return f"{kind}-{number}"


class Outcome(NamedTuple):
    """How one call failed and what it took: the lines that it logged, the requests that were made."""

    number: int
    seconds: float
    lines: list[str]
    requests: int


@pytest.fixture(scope="module")
def world(s3_server: SeaweedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with s3_server.bucket("origin-faults") as bucket, Proxy(s3_server.endpoint) as proxy:
        store = MountedStore(s3_server, bucket, proxy, tmp_path_factory.mktemp("origin-faults"))
        names = [named("passes", number) for number in range(len(PASSES))]
        names += [named("stays", number) for number in range(len(STAYS_IN_DATA))]
        for name in [*names, *(f"down-{row}" for row in DOWN)]:
            store.put(name, text(name).encode())
        for number in range(len(STAYS)):
            store.put(f"{named('listing', number)}/file.bin", b"x")
        for row in DOWN:
            store.put(f"{row}/file.bin", b"x")
        store.put("usual", content(40 * STRIPE))
        with store.mount(complaints=True, timeout=TIMEOUT, stripe_count=4) as mount:
            # From here on the mount knows how long a stripe takes.
            assert (mount.path / "usual").read_bytes() == content(40 * STRIPE)
            yield World(store, mount)


@pytest.fixture
def proxy(world: World) -> Iterator[Proxy]:
    """Without faults before and after."""
    world.complaints()
    world.proxy.reset()
    yield world.proxy
    end_faults(world.proxy)


def end_faults(proxy: Proxy) -> None:
    """All is well again."""
    proxy.set_faults([])
    proxy.accept()
    proxy.release()


def timed_error(call: Callable[[], object]) -> tuple[int, float]:
    """The errno of ``call``, and after how many seconds it came."""
    begin = time.monotonic()
    with pytest.raises(OSError, match="Errno") as caught:
        call()
    assert caught.value.errno is not None
    return caught.value.errno, time.monotonic() - begin


def read_of(path: Path) -> bytes | None:
    """All of it; None where that fails, as it may for a second after a failure."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def first_bytes(world: World, name: str, index: int) -> bytes:
    """Of that stripe."""
    descriptor = os.open(world.mount.path / name, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # the kernel asks for no more than that
        return os.pread(descriptor, 4096, index * STRIPE)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("row", PASSES)
def test_what_passes_is_not_seen(world: World, proxy: Proxy, row: str) -> None:
    name = named("passes", list(PASSES).index(row))
    fault = PASSES[row]
    proxy.set_faults([world.fill_in(fault, name, stripe_of(name), fault.times)])
    begin = time.monotonic()
    assert (world.mount.path / name).read_bytes() == text(name).encode()
    assert time.monotonic() - begin < MOST
    assert world.complaints() == []
    # One more, as a late one may be asked for twice.
    assert STRIPES <= len(world.requests(name)) <= STRIPES + fault.times + 1


@pytest.fixture(scope="module")
def failures(world: World) -> Mapping[str, Outcome]:
    """Every row of the faults that stay, all at the same time, each to a name of its own."""
    world.complaints()
    world.proxy.reset()
    data = {row: named("stays", number) for number, row in enumerate(STAYS_IN_DATA)}
    listings = {row: named("listing", number) for number, row in enumerate(STAYS)}
    for name in data.values():
        assert first_bytes(world, name, 0) == text(name)[:4096].encode()
    faults = [world.fill_in(STAYS_IN_DATA[row][0], data[row], f"GET .*/{data[row]} ", 0) for row in data]
    faults += [
        world.fill_in(STAYS[row][0], "", f"LIST .*prefix={name}%2F$", 0) for row, name in listings.items()
    ]
    world.proxy.set_faults(faults)
    with ThreadPoolExecutor(len(faults)) as threads:
        calls: dict[str, Callable[[], object]] = {}
        calls |= {name: partial(first_bytes, world, name, HIT) for name in data.values()}
        calls |= {name: partial(os.stat, world.mount.path / name / "file.bin") for name in listings.values()}
        errors = {name: threads.submit(timed_error, call) for name, call in calls.items()}
        ended = {name: error.result() for name, error in errors.items()}
    log = world.complaints()
    lists = world.store.requests("LIST")
    found = {}
    for name, (number, seconds) in ended.items():
        lines = [line for line in log if f"/{name}?" in line]
        asked = world.count_for_stripe(name, HIT) + sum(f"prefix={name}%2F" in one.path for one in lists)
        found[name] = Outcome(number, seconds, lines, asked)
    end_faults(world.proxy)
    return found


@pytest.mark.parametrize("row", STAYS_IN_DATA)
def test_what_stays_is_one_error_and_one_line(
    world: World, failures: Mapping[str, Outcome], row: str
) -> None:
    name = named("stays", list(STAYS_IN_DATA).index(row))
    failed = failures[name]
    assert failed.number == errno.EIO
    assert 0.8 * TIMEOUT < failed.seconds < MOST
    about_it = [line for line in failed.lines if f"stripe {HIT}:" in line]
    assert len(about_it) == 1, failed.lines
    place = re.escape(f"s3://{world.store.bucket}/{name}?endpoint={urlsplit(world.proxy.endpoint).netloc}")
    assert re.search(rf" ERROR .*{place}: stripe {HIT}: .*{STAYS_IN_DATA[row][1]}", about_it[0])
    assert 1 <= failed.requests <= MOST_REQUESTS
    until(lambda: read_of(world.mount.path / name) == text(name).encode())


@pytest.mark.parametrize("row", STAYS)
def test_a_directory_that_cannot_be_listed(world: World, failures: Mapping[str, Outcome], row: str) -> None:
    name = named("listing", list(STAYS).index(row))
    failed = failures[name]
    assert failed.number == errno.EIO
    assert 0.8 * TIMEOUT < failed.seconds < MOST
    assert len(failed.lines) == 1, failed.lines
    assert re.search(
        rf" ERROR .*s3://{world.store.bucket}/{name}\?endpoint=[^ ]*: .*{STAYS[row][1]}", failed.lines[0]
    )
    assert 1 <= failed.requests <= MOST_REQUESTS
    until(lambda: read_of(world.mount.path / name / "file.bin") == b"x")


@pytest.mark.parametrize("row", DOWN)
def test_an_origin_that_is_down(world: World, proxy: Proxy, row: str) -> None:
    go_down, cause = DOWN[row]
    go_down(proxy)
    number, seconds = timed_error(lambda: first_bytes(world, f"down-{row}", 0))
    (line,) = world.complaints()
    assert number == errno.EIO
    assert 0.8 * TIMEOUT < seconds < MOST
    assert re.search(rf" ERROR .*/down-{row}\?endpoint=[^ ]*: stripe 0: .*{cause}", line)
    number, seconds = timed_error(lambda: os.stat(world.mount.path / row / "file.bin"))
    (line,) = world.complaints()
    assert number == errno.EIO
    assert 0.8 * TIMEOUT < seconds < MOST
    assert re.search(rf" ERROR .*/{row}\?endpoint=[^ ]*: .*{cause}", line)
    proxy.accept()
    until(lambda: read_of(world.mount.path / f"down-{row}") == text(f"down-{row}").encode())
    until(lambda: read_of(world.mount.path / row / "file.bin") == b"x")


def test_what_was_read_is_there_while_the_origin_is_down(world: World, proxy: Proxy) -> None:
    proxy.refuse()
    assert (world.mount.path / "usual").read_bytes() == content(40 * STRIPE)
    assert world.complaints() == []
