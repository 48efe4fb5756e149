"""An origin that accepts requests and then is silent: an error in bounded time, its reason in the log."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mounted import until
from tests.support.mounted_store import KIB, MountedStore, content
from tests.support.proxy import Fault

TIMEOUT = 3
SOON = 20
"""Seconds: less than the 30 s of silence that end a request where the user's time-out is longer."""


def fails_in_time(call: Callable[[], object]) -> bool:
    """Whether ``call`` fails with EIO once the time-out is over and not much later."""
    begin = time.monotonic()
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        call()
    return TIMEOUT - 0.5 < time.monotonic() - begin < SOON


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _list(path: Path) -> list[str] | None:
    try:
        return os.listdir(path)
    except OSError:
        return None


@pytest.mark.parametrize("silence", ["hold:100000", "hold"], ids=["in the middle", "from the start"])
def test_a_read_from_an_origin_that_falls_silent(store: MountedStore, silence: str) -> None:
    data = content(256 * KIB)
    store.put("file", data)
    with store.mount(stripe_size=256 * KIB, timeout=TIMEOUT, complaints=True) as mount:
        path = mount.path / "file"
        store.proxy.set_faults([Fault(silence, match="^GET", times=0)])
        assert fails_in_time(path.read_bytes)
        (line,) = mount.complaints()
        assert "ERROR" in line
        assert "/file" in line
        assert "no answer in time" in line
        store.proxy.set_faults([])
        until(lambda: _read(path) == data)


def test_a_listing_from_an_origin_that_is_silent(store: MountedStore) -> None:
    store.put("odd\nname/file", b"x")
    with store.mount(timeout=TIMEOUT, complaints=True) as mount:
        directory = mount.path / "odd\nname"
        assert os.listdir(mount.path) == ["odd\nname"]  # and not yet what is in it
        store.proxy.set_faults([Fault("hold", match="^LIST", times=0)])
        assert fails_in_time(lambda: os.listdir(directory))
        (line,) = mount.complaints()
        assert "ERROR" in line
        assert r"/odd\nname" in line
        assert "no answer in time" in line
        store.proxy.set_faults([])
        until(lambda: _list(directory) == ["file"])
