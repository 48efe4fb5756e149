"""How many requests are in flight, as the origin is found to be; late ones are made again."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from tests.support.mounted_store import KIB, MIB, MountedStore, content
from tests.support.proxy import Fault


def read_through(path: Path) -> bytes:
    return path.read_bytes()


def walk_map(path: Path) -> bytes:
    """By page faults alone: the kernel asks in small pieces, a little out of order."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        return b"".join(view[start : start + 16 * KIB] for start in range(0, len(view), 16 * KIB))


@pytest.mark.parametrize("read", [read_through, walk_map])
def test_many_are_in_flight_for_one_that_walks_through(store: MountedStore, read: object) -> None:
    assert callable(read)
    data = content(24 * MIB)
    store.put("file", data)
    with store.mount(stripe_size=MIB, stripe_count=8) as mount:
        store.proxy.shape(rate=4e6, delay=0.02)
        assert read(mount.path / "file") == data
        store.proxy.shape()
        assert 7 <= store.proxy.statistics().max_concurrent <= 12  # and those a reader waits for


def test_more_are_in_flight_where_that_pays(store: MountedStore) -> None:
    data = content(96 * MIB)
    store.put("file", data)
    with store.mount(stripe_size=MIB) as mount:
        store.proxy.shape(rate=1.5e6, delay=0.02)
        assert read_through(mount.path / "file") == data
        store.proxy.shape()
        assert store.proxy.statistics().max_concurrent >= 30


def test_fewer_are_in_flight_once_the_origin_asks_for_less(store: MountedStore) -> None:
    data = content(48 * MIB)
    store.put("file", data)
    with store.mount(stripe_size=MIB) as mount:
        store.proxy.shape(rate=2e6, delay=0.02)
        store.proxy.set_faults([Fault("status:503:SlowDown", match="^GET", nth=4, times=6)])
        assert read_through(mount.path / "file") == data
        store.proxy.shape()
        status = mount.status()
        assert status["routes"][0]["traffic"]["allowed"] < 16
        assert status["origin"]["retries"] >= 6
        assert status["reads"]["errors"] == 0


@pytest.mark.parametrize("stall", ["stall:20", "stall:20:300000"], ids=["before the head", "in the body"])
def test_an_answer_that_stalls_is_not_waited_for(store: MountedStore, stall: str) -> None:
    data = content(64 * MIB)
    store.put("file", data)
    store.proxy.set_faults([Fault(stall, match="^GET", nth=30), Fault(stall, match="^GET", nth=55)])
    with store.mount(stripe_size=MIB, stripe_count=8) as mount:
        store.proxy.shape(rate=4e6, delay=0.02)
        assert read_through(mount.path / "file") == data
        store.proxy.shape()
        origin = mount.status()["origin"]
        assert origin["hedged"] + 600_000 >= MIB
        assert origin["hedged"] < 0.05 * origin["bytes"]
        assert mount.status()["uptime"] < 20
