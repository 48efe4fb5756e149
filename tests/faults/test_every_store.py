"""The same fault on the way to any store is the same error, and no wrong byte."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fusestripe.errors import OriginError, OriginUnavailable, errno_of
from fusestripe.origins.base import Origin
from fusestripe.units import ObjectVersion
from tests.support.far_sides import FarSide
from tests.support.mounted import mounted
from tests.support.proxy import Fault, Proxy

SIZE = 3 * 1024 * 1024
DATA = random.Random(9).randbytes(SIZE)
READ = "GET .* bytes="
"""A request for data has a range; none for metadata has."""


@pytest.fixture
def origin(far_side: FarSide, proxy: Proxy) -> Iterator[Origin]:
    """The store by way of the proxy, with one file in it; it waits a second for a byte."""
    far_side.put("file", DATA)
    opened = far_side.open(proxy.endpoint, timeout=1.0)
    yield opened
    opened.close()


@pytest.fixture
def version(origin: Origin) -> ObjectVersion:
    return origin.version("file", origin.stat("file"))


def failure(call: Callable[[], object]) -> OriginError:
    """The error of ``call``, which has to be one line and our own."""
    with pytest.raises(OriginError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return caught.value


def read(origin: Origin, version: ObjectVersion, length: int = SIZE) -> int:
    """How many right bytes ``read_range`` told of before it failed, if it did."""
    into, told = bytearray(length), [0]
    try:
        origin.read_range(version, 0, memoryview(into), told.append)
    finally:
        assert into[: told[-1]] == DATA[: told[-1]], "a wrong byte was passed on"
    return told[-1]


@pytest.mark.parametrize(
    ("action", "number", "transient"),
    [
        ("cut:1500000", errno.EIO, True),
        ("reset:1500000", errno.EIO, True),
        ("stall:30", errno.EIO, True),
        ("stall:30:1500000", errno.EIO, True),
        ("status:408", errno.EIO, True),
        ("status:429", errno.EIO, True),
        ("status:500", errno.EIO, True),
        ("status:502", errno.EIO, True),
        ("status:503", errno.EIO, True),
        ("status:504", errno.EIO, True),
        ("status:400", errno.EIO, False),
        ("status:401", errno.EACCES, False),
        ("status:403", errno.EACCES, False),
        ("status:404", errno.ESTALE, False),
        ("status:412", errno.ESTALE, False),
        ("status:416", errno.ESTALE, False),
    ],
)
def test_a_read_that_fails(
    origin: Origin, proxy: Proxy, version: ObjectVersion, action: str, number: int, transient: bool
) -> None:
    proxy.set_faults([Fault(action, match=READ)])
    proxy.reset()
    error = failure(lambda: read(origin, version))
    assert (errno_of(error), error.transient) == (number, transient)
    assert len([one for one in proxy.log() if one.range]) == 1, "asking again is not the origin's to decide"
    assert read(origin, version) == SIZE  # and the next request is well


@pytest.mark.parametrize("action", ["reset", "close"])
def test_a_connection_that_breaks_before_the_answer(
    origin: Origin, proxy: Proxy, version: ObjectVersion, action: str
) -> None:
    """One that had been idle may have been closed meanwhile: one more try, on a fresh one."""
    proxy.set_faults([Fault(action, match=READ)])
    assert read(origin, version) == SIZE
    proxy.set_faults([Fault(action, match=READ, times=0)])
    error = failure(lambda: read(origin, version))
    assert (errno_of(error), error.transient) == (errno.EIO, True)


@pytest.mark.parametrize("status", [429, 503])
def test_a_store_that_asks_for_less(
    origin: Origin, proxy: Proxy, version: ObjectVersion, status: int
) -> None:
    proxy.set_faults([Fault(f"status:{status}", match=READ, headers=(("Retry-After", "7"),))])
    error = failure(lambda: read(origin, version))
    assert isinstance(error, OriginUnavailable)
    assert (error.throttled, error.retry_after) == (True, 7.0)


def test_another_version_in_the_answer(
    far_side: FarSide, origin: Origin, proxy: Proxy, version: ObjectVersion
) -> None:
    other = (far_side.version_header, '"other"')
    proxy.set_faults([Fault("pass", match=READ, headers=(other,))])
    told: list[int] = []
    buffer = memoryview(bytearray(1000))
    error = failure(lambda: origin.read_range(version, 0, buffer, told.append))
    assert (errno_of(error), told) == (errno.ESTALE, [])


@pytest.mark.parametrize(
    "headers",
    [
        (("Content-Range", f"bytes 1-1000/{SIZE}"),),
        (("Content-Range", f"bytes 0-998/{SIZE}"),),
        (("Content-Range", f"bytes 0-999/{SIZE + 1}"),),
        (("Content-Range", "bytes 0-999/*"),),
        (("Content-Range", "nonsense"),),
        (("Content-Length", "998"),),
        (("Content-Length", "1001"),),
    ],
    ids=lambda headers: " ".join(headers[0]),
)
def test_another_range_in_the_answer(
    origin: Origin, proxy: Proxy, version: ObjectVersion, headers: tuple[tuple[str, str], ...]
) -> None:
    proxy.set_faults([Fault("pass", match=READ, headers=headers)])
    told: list[int] = []
    buffer = memoryview(bytearray(1000))
    error = failure(lambda: origin.read_range(version, 0, buffer, told.append))
    assert (errno_of(error), told) == (errno.EIO, [])
    assert read(origin, version, 1000) == 1000


def test_the_whole_file_instead_of_a_range(
    far_side: FarSide, origin: Origin, proxy: Proxy, version: ObjectVersion
) -> None:
    told = (far_side.version_header, version.tag)
    proxy.set_faults([Fault("status:200", match=READ, headers=(told,), body="x" * 5000)])
    error = failure(lambda: read(origin, version, 1000))
    assert errno_of(error) == errno.EIO


def test_a_file_that_is_stored_encoded_is_its_stored_bytes(
    origin: Origin, proxy: Proxy, version: ObjectVersion
) -> None:
    """As put there with `gsutil cp -Z` or `aws s3 cp --content-encoding gzip`."""
    proxy.set_faults([Fault("pass", match=READ, headers=(("Content-Encoding", "gzip"),))])
    assert read(origin, version) == SIZE


def test_down_and_up_again(origin: Origin, proxy: Proxy, version: ObjectVersion) -> None:
    proxy.refuse()
    for call in (lambda: read(origin, version), lambda: origin.stat("file"), origin.check):
        error = failure(call)
        assert (errno_of(error), error.transient) == (errno.EIO, True)
    proxy.accept()
    assert read(origin, version) == SIZE


@pytest.mark.parametrize(
    ("action", "number", "transient"),
    [
        ("reset", errno.EIO, True),
        ("close", errno.EIO, True),
        ("stall:30", errno.EIO, True),
        ("status:500", errno.EIO, True),
        ("status:503", errno.EIO, True),
        ("status:400", errno.EIO, False),
        ("status:401", errno.EACCES, False),
        ("status:403", errno.EACCES, False),
        ("status:404", errno.ENOENT, False),
    ],
)
@pytest.mark.parametrize("what", ["stat", "list_dir"])
def test_metadata_that_fails(
    origin: Origin, proxy: Proxy, what: str, action: str, number: int, transient: bool
) -> None:
    def ask() -> object:
        return origin.stat("file") if what == "stat" else list(origin.list_dir(""))

    proxy.set_faults([Fault(action)])
    error = failure(ask)
    assert (errno_of(error), error.transient) == (number, transient)
    ask()  # and the next request is well


@pytest.mark.parametrize("action", ["cut:20", "reset:20"])
def test_a_listing_that_ends_early(origin: Origin, proxy: Proxy, action: str) -> None:
    proxy.set_faults([Fault("status:200", body="x" * 100), Fault(action)])
    error = failure(lambda: list(origin.list_dir("")))
    assert errno_of(error) == errno.EIO
    assert [entry.name for page in origin.list_dir("") for entry in page] == ["file"]


def test_a_page_of_another_kind_is_no_listing(origin: Origin, proxy: Proxy) -> None:
    page = "<doc>Welcome to a portal of somebody else</doc>"
    proxy.set_faults([Fault("status:200", body=page, times=0)])
    error = failure(lambda: list(origin.list_dir("")))
    assert errno_of(error) == errno.EIO
    assert error.mend


@pytest.mark.parametrize(
    ("fault", "number"),
    [
        (Fault("cut:20000", match=READ), 0),
        (Fault("status:503", match=READ), 0),
        (Fault("pass", match=READ, headers=(("Content-Range", "bytes 0-1/2"),)), 0),
        (Fault("reset", match=READ, times=0), errno.EIO),
        (Fault("stall:30:20000", match=READ, times=0), errno.EIO),
        (Fault("status:500", match=READ, times=0), errno.EIO),
        (Fault("status:401", match=READ, times=0), errno.EACCES),
        (Fault("status:403", match=READ, times=0), errno.EACCES),
        (Fault("status:404", match=READ, times=0), errno.ESTALE),
        (Fault("status:412", match=READ, times=0), errno.ESTALE),
    ],
    ids=lambda value: value.action if isinstance(value, Fault) else None,
)
def test_a_reader_of_the_mount(
    far_side: FarSide, proxy: Proxy, tmp_path: Path, fault: Fault, number: int
) -> None:
    """What passes is not seen; what stays is the same errno from every store, and never a wrong byte."""
    far_side.put("file", DATA)
    config = tmp_path / "config.toml"
    config.write_text(far_side.route("/", proxy.endpoint))
    with mounted(
        config, tmp_path / "mnt", cache_dir=tmp_path / "cache", complaints=True, timeout=2, stripe_size="1MiB"
    ) as mount:
        proxy.set_faults([fault])
        if not number:
            assert (mount.path / "file").read_bytes() == DATA
            return
        with pytest.raises(OSError, match=rf"Errno {number}\b"):
            (mount.path / "file").read_bytes()
