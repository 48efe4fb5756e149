"""Nodes of a job share what they fetch: real mounts as each other's peers, a real S3 server behind them."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import fusestripe
from fusestripe.launch import stop
from tests.support.certificates import make_certificates
from tests.support.false_peer import FAULTS, false_peer
from tests.support.job import Job, at_once, token_in
from tests.support.mounted import Mounted, until
from tests.support.mounted_store import MountedStore, content

KIB = 1024
MIB = 1024 * KIB

STRIPE = 256 * KIB
SIZE = 12 * MIB + 12345
CONTENT = content(SIZE)


def digest(path: Path) -> str:
    """Of what a plain sequential reader gets."""
    found = hashlib.md5()
    with open(path, "rb", buffering=0) as file:
        while data := file.read(MIB):
            found.update(data)
    return found.hexdigest()


MD5 = hashlib.md5(CONTENT).hexdigest()


def read_by_all(nodes: list[Mounted], name: str = "file") -> None:
    """All nodes read it at once, and each gets the right bytes."""
    assert at_once([partial(digest, node.path / name) for node in nodes]) == [MD5] * len(nodes)


def know_each_other(nodes: list[Mounted]) -> None:
    """Return once all of ``nodes`` ask each other."""

    def all_live() -> bool:
        live = [sum(member["live"] for member in node.status()["peers"]["members"]) for node in nodes]
        return live == [len(nodes) - 1] * len(nodes)

    until(all_live)


def from_origin(store: MountedStore) -> int:
    """Bytes of the file that the origin sent."""
    return sum(
        int(last) - int(first) + 1
        for request in store.requests("GET")
        if request.status == 206
        for first, last in [request.range.removeprefix("bytes=").split("-")]
    )


@pytest.fixture
def job(store: MountedStore) -> Job:
    """Four members, one file in the bucket."""
    store.put("file", CONTENT)
    return Job(store, 4)


def test_the_origin_sends_each_byte_once(store: MountedStore, job: Job) -> None:
    with job.nodes(stripe_size=STRIPE) as nodes:
        know_each_other(nodes)
        store.proxy.reset()
        read_by_all(nodes)
        assert SIZE <= from_origin(store) <= SIZE * 1.05
        for node in nodes:
            status = node.status()
            peers, served = status["peers"], status["served"]
            assert served["peers"] + served["origin"] == SIZE
            assert peers["received"] == served["peers"] > SIZE // 2
            assert sum(member["received"] for member in peers["members"]) == served["peers"]
        assert sum(node.status()["peers"]["sent"] for node in nodes) == sum(
            node.status()["peers"]["received"] for node in nodes
        )


def test_status_tells_peers_from_the_origin_for_each_file(store: MountedStore, job: Job) -> None:
    with job.nodes(stripe_size=STRIPE) as nodes:
        know_each_other(nodes)
        with open(nodes[0].path / "file", "rb") as file:
            assert file.read() == CONTENT
            (shown,) = nodes[0].status()["files"]
            assert shown["from_peers"] + shown["from_origin"] == SIZE
            assert min(shown["from_peers"], shown["from_origin"]) > 0
        text = shown_status(nodes[0])
        assert "peers" in text
        assert "3 of 3 others answer" in text


def shown_status(node: Mounted) -> str:
    command = [sys.executable, "-m", "fusestripe", "status", str(node.path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_node_alone_reads_from_the_origin(store: MountedStore, job: Job) -> None:
    """All others are down: refused at once, and not asked again for each stripe."""
    with job.nodes([2], stripe_size=STRIPE) as nodes:
        read_by_all(nodes)
        assert from_origin(store) == SIZE


def test_a_node_that_comes_late_takes_from_those_that_have(store: MountedStore, job: Job) -> None:
    with job.nodes([0, 1, 2], stripe_size=STRIPE) as nodes:
        read_by_all(nodes)
        store.proxy.reset()
        with job.node(3, stripe_size=STRIPE) as late:
            assert digest(late.path / "file") == MD5
            assert from_origin(store) <= SIZE * 0.05


def test_one_that_is_killed_costs_nobody_an_error(store: MountedStore, job: Job) -> None:
    store.proxy.shape(total_rate=8 * MIB)
    with job.nodes(stripe_size=STRIPE) as nodes:
        know_each_other(nodes)
        store.proxy.reset()

        def kill() -> str:
            store.proxy.wait_for(lambda seen: seen.bytes_sent >= SIZE // 3, 30)
            nodes[3].kill()
            return MD5

        readers = [partial(digest, node.path / "file") for node in nodes[:3]]
        acts: list[Callable[[], str]] = [*readers, kill, partial(ends, nodes[3].path / "file")]
        assert at_once(acts)[:3] == [MD5] * 3
        assert from_origin(store) <= SIZE * 1.5


def ends(path: Path) -> str:
    """A reader whose daemon is killed."""
    with suppress(OSError):
        return digest(path)
    return ""


def test_without_the_origin_what_is_on_some_node_is_on_all(store: MountedStore, job: Job) -> None:
    """It is cut off once each stripe is on one node; all can read the whole file."""
    with job.nodes(stripe_size=STRIPE, timeout=20) as nodes:
        know_each_other(nodes)
        for node in nodes:
            assert (node.path / "file").stat().st_size == SIZE
        assert digest(nodes[0].path / "file") == MD5
        store.proxy.refuse()
        try:
            read_by_all(nodes)
        finally:
            store.proxy.accept()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_member_that_does_not_do_as_it_should(store: MountedStore, job: Job, fault: str) -> None:
    """None of it reaches a reader, who waits for seconds at most; wrong bytes are named in the log."""
    file = store.directory / "content"
    file.write_bytes(CONTENT)
    with (
        false_peer(job.members[3], file, STRIPE, fault),
        job.nodes([0, 1], stripe_size=STRIPE, complaints=True) as nodes,
    ):
        until(lambda: is_asked(nodes[0], job.members[3]))
        began = time.monotonic()
        read_by_all(nodes)
        assert time.monotonic() - began < 20
        complaints = nodes[0].complaints()
        if fault in ("flip", "other", "long", "garbage"):
            assert complaints
            assert all(f"peer {job.members[3]} is left alone" in line for line in complaints)
            assert not is_asked(nodes[0], job.members[3])
        else:
            assert complaints == []


def is_asked(node: Mounted, member: str) -> bool:
    (found,) = [one for one in node.status()["peers"]["members"] if one["name"] == member]
    return bool(found["live"])


def test_one_that_hangs_holds_nobody_up(store: MountedStore, job: Job) -> None:
    """Its machine takes connections, and it says nothing at all any more."""
    with job.nodes(stripe_size=STRIPE) as nodes:
        know_each_other(nodes)
        process = psutil.Process(nodes[3].pid)
        process.suspend()
        try:
            began = time.monotonic()
            read_by_all(nodes[:3])
            assert time.monotonic() - began < 15
        finally:
            process.resume()
        assert from_origin(store) <= SIZE * 1.5


def test_memory_that_is_all_in_use_keeps_no_two_waiting_for_each_other(store: MountedStore, job: Job) -> None:
    """Four stripes fit on each: what waits for the other's has none left for what the other waits for."""
    names = [f"file{number}" for number in range(3)]
    for name in names:
        store.put(name, CONTENT)
    with job.nodes([0, 1], stripe_size=STRIPE, memory=4 * STRIPE) as nodes:
        until(lambda: is_asked(nodes[0], job.members[1]))
        began = time.monotonic()
        digests = at_once([partial(digest, node.path / name) for name in names for node in nodes])
        assert digests == [MD5] * 6
        assert time.monotonic() - began < 40


def test_a_node_that_is_named_twice_knows_itself(store: MountedStore, job: Job) -> None:
    port = job.members[0].rpartition(":")[2]
    members = " ".join([job.members[1], f"localhost:{port}", f"127.0.0.2:{port}"])
    with job.node(
        0, stripe_size=STRIPE, peers=members, peers_name="", peers_listen="", complaints=True
    ) as node:
        until(lambda: node.status()["peers"]["me"] != "" and bool(node.complaints()))
        (line,) = node.complaints()
        assert "it is this node" in line
        assert digest(node.path / "file") == MD5
        assert from_origin(store) == SIZE


def test_who_cannot_show_the_token_gets_nothing(store: MountedStore, job: Job) -> None:
    other = token_in(store.directory, "another-token-altogether")
    with (
        job.node(0, stripe_size=STRIPE, complaints=True) as node,
        job.node(1, stripe_size=STRIPE, peers_token_file=str(other), complaints=True) as stranger,
    ):
        assert digest(node.path / "file") == MD5
        assert digest(stranger.path / "file") == MD5
        assert [one.status()["peers"]["sent"] for one in (node, stranger)] == [0, 0]
        until(lambda: bool(node.complaints()) and bool(stranger.complaints()))
        for line in node.complaints() + stranger.complaints():
            assert "does not take our token" in line


def test_other_stripe_sizes_are_strangers(store: MountedStore, job: Job) -> None:
    with (
        job.node(0, stripe_size=STRIPE, complaints=True) as node,
        job.node(1, stripe_size=2 * STRIPE, complaints=True) as stranger,
    ):
        read_by_all([node, stranger])
        assert [one.status()["peers"]["sent"] for one in (node, stranger)] == [0, 0]
        assert any("its stripes are of 512 KiB" in line for line in node.complaints())


def test_mutual_tls(store: MountedStore, job: Job) -> None:
    made = make_certificates(store.directory / "certificates", "IP:127.0.0.1")
    tls = {
        "peers_tls_cert": str(made.certificate),
        "peers_tls_key": str(made.key),
        "peers_tls_ca": str(made.authority),
    }
    with job.nodes([0, 1], stripe_size=STRIPE, **tls) as nodes:
        until(lambda: is_asked(nodes[0], job.members[1]) and is_asked(nodes[1], job.members[0]))
        store.proxy.reset()
        read_by_all(nodes)
        assert from_origin(store) <= SIZE * 1.05
        with job.node(2, stripe_size=STRIPE) as plain:  # it talks without TLS
            assert digest(plain.path / "file") == MD5
            assert plain.status()["peers"]["received"] == 0


def test_an_origin_that_is_not_of_its_routes_is_not_asked_for_another(store: MountedStore, job: Job) -> None:
    """Node 1 shows another directory of the bucket: it serves nothing of this one."""
    store.put("elsewhere/file", CONTENT)
    with (
        job.node(0, stripe_size=STRIPE) as node,
        job.node(1, "elsewhere", stripe_size=STRIPE) as other,
    ):
        until(lambda: is_asked(node, job.members[1]))
        assert digest(node.path / "file") == MD5
        assert other.status()["peers"]["sent"] == 0
        assert other.status()["origin"]["bytes"] == 0
        # What both show is shared, though at another place.
        store.proxy.reset()
        assert digest(other.path / "file") == MD5
        assert digest(node.path / "elsewhere" / "file") == MD5
        assert from_origin(store) <= SIZE * 1.05


def test_a_prefetch_on_all_nodes_at_once(store: MountedStore, job: Job) -> None:
    with job.nodes(stripe_size=STRIPE) as nodes:
        know_each_other(nodes)
        plan = plan_of(nodes[0])
        assert [(share["kind"], share["bytes"]) for share in plan["shares"]] == [
            ("origin", -(-SIZE // 4)),
            ("peers", SIZE - -(-SIZE // 4)),
        ]
        assert plan["fits"]
        store.proxy.reset()
        reports = at_once([partial(fusestripe.prefetch, node.path / "file") for node in nodes])
        for (report,) in reports:
            assert report.fetched == SIZE
            assert SIZE // 2 < report.from_peers < SIZE
        assert SIZE <= from_origin(store) <= SIZE * 1.05
        store.proxy.refuse()
        try:
            read_by_all(nodes)
        finally:
            store.proxy.accept()


def test_doctor_tells_which_members_answer(store: MountedStore, job: Job) -> None:
    config = store.directory / "config.toml"
    token = token_in(store.directory)
    config.write_text(
        f'[cache]\ndir = "{store.directory}/doctor"\n[stripes]\nsize = {STRIPE}\n'
        f'[peers]\nmembers = {json.dumps(job.members)}\nname = "{job.members[3]}"\n'
        f'port = {job.members[3].rpartition(":")[2]}\ntoken_file = "{token}"\n'
    )
    with job.nodes([0, 1], stripe_size=STRIPE):
        command = [sys.executable, "-m", "fusestripe", "doctor", "--config", str(config), "--json"]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    (found,) = [line for line in json.loads(said) if line["what"] == "peers"]
    assert found["level"] == "warning"
    assert f"this node is {job.members[3]}; 1 do not answer: {job.members[2]}" in found["text"]


def plan_of(node: Mounted) -> Any:
    command = [sys.executable, "-m", "fusestripe", "prefetch", "--plan", "--json", str(node.path / "file")]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_a_daemon_ends_while_others_take_from_it(store: MountedStore, job: Job) -> None:
    """One that has stopped to read what it asked for does not keep it."""
    with job.node(0, stripe_size=STRIPE) as kept, job.node(1, stripe_size=STRIPE) as leaving:
        until(lambda: is_asked(kept, job.members[1]))
        assert digest(leaving.path / "file") == MD5
        process = psutil.Process(kept.pid)
        with ThreadPoolExecutor(1) as pool:
            reader = pool.submit(digest, kept.path / "file")
            until(lambda: leaving.status()["peers"]["sent"] > 0)
            process.suspend()
            try:
                began = time.monotonic()
                stop(str(leaving.path))
                assert time.monotonic() - began < 8
                until(lambda: not psutil.pid_exists(leaving.pid), 8)
            finally:
                process.resume()
            assert reader.result() == MD5
