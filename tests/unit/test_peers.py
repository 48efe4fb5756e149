"""The parts of peers that need no network: who is a member, who is asked, who may."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from fusestripe.config import PeerSettings, load
from fusestripe.errors import ConfigError
from fusestripe.peers.access import Access, read_access
from fusestripe.peers.discovery import discover, find_me, local_addresses, with_port
from fusestripe.peers.members import Fault, Members
from fusestripe.peers.messages import Ask, Hello, Note, checksum
from fusestripe.units import ObjectVersion

NOTHING = PeerSettings(
    (), "", slurm=False, port=7070, listen="", name="", token_file="", tls_cert="", tls_key="", tls_ca=""
)
VERSION = ObjectVersion("s3://bucket", "a/b", 100, "tag")


def peers(**said: object) -> PeerSettings:
    return msgspec.structs.replace(NOTHING, **said)


def secret(tmp_path: Path, text: str = "a" * 32, mode: int = 0o600) -> str:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


# Settings


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"peers": "a:1", "peers_dns": "b"}, "known by members and by dns"),
        ({"peers_port": "0"}, "no port"),
        ({"peers_port": "70000"}, "no port"),
        ({"peers": "http://a:1"}, "no member"),
        ({"peers": "a:b"}, "no member"),
    ],
)
def test_settings_that_cannot_be_meant(said: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("s3://bucket", said, environ={})


@pytest.mark.parametrize(
    "member", ["node1", "node1:7070", "10.0.0.1:7070", "fe80::1", "[::1]:7070", "a-b.c.svc"]
)
def test_members_as_they_are_written(member: str) -> None:
    assert load("s3://bucket", {"peers": member}, environ={}).peers.members == (member,)


def test_peers_are_off_unless_they_are_configured() -> None:
    assert not load("s3://bucket", {"peers_port": "7071"}, environ={}).peers.are_on
    for said in ({"peers": "a"}, {"peers_dns": "a"}, {"peers_slurm": True}):
        assert load("s3://bucket", said, environ={}).peers.are_on


# Access


def test_a_token_is_needed_and_is_nobody_elses(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="have no token"):
        read_access(NOTHING)
    for mode in (0o604, 0o666, 0o620):
        with pytest.raises(ConfigError, match="open to others"):
            read_access(peers(token_file=secret(tmp_path, mode=mode)))
    with pytest.raises(ConfigError, match="not 16 or more"):
        read_access(peers(token_file=secret(tmp_path, "short")))
    with pytest.raises(ConfigError, match="no such file"):
        read_access(peers(token_file=str(tmp_path / "none")))
    assert read_access(peers(token_file=secret(tmp_path, "b" * 16 + "\n"))).token == b"b" * 16


def test_certificates_come_in_pairs(tmp_path: Path) -> None:
    token = secret(tmp_path)
    for said in ({"tls_cert": token}, {"tls_key": token}, {"tls_ca": token}):
        with pytest.raises(ConfigError, match="without"):
            read_access(peers(token_file=token, **said))


def test_no_secret_is_shown() -> None:
    access = Access(b"the-token-itself", key=b"the-key")
    assert "the-" not in f"{access} {access!r}"


@given(st.text())
def test_only_the_token_is_let_in(shown: str) -> None:
    access = Access(b"x" * 16)
    assert not access.admits(shown) or shown == "Bearer " + "x" * 16
    assert access.admits("Bearer " + "x" * 16)


# Discovery


@pytest.mark.parametrize(
    ("member", "whole"),
    [
        ("node1", "node1:7070"),
        ("node1:1", "node1:1"),
        ("::1", "[::1]:7070"),
        ("[::1]", "[::1]:7070"),
        ("[::1]:1", "[::1]:1"),
        ("10.0.0.1", "10.0.0.1:7070"),
    ],
)
def test_a_port_is_added_where_none_is_said(member: str, whole: str) -> None:
    assert with_port(member, 7070) == whole


async def test_the_nodes_of_a_slurm_job() -> None:
    environ = {"SLURM_JOB_NODELIST": "node[01-03,7]", "SLURM_JOB_ID": "12345"}
    found = discover(peers(slurm=True), environ)
    assert found.port == 7070 + 345
    assert list(await found.find()) == [f"node{number}:7415" for number in ("01", "02", "03", "7")]
    assert await discover(peers(slurm=True), {}).find() == []  # outside a job


def test_a_node_list_that_is_none() -> None:
    with pytest.raises(ConfigError, match="SLURM_JOB_NODELIST"):
        discover(peers(slurm=True), {"SLURM_JOB_NODELIST": "node[1-"})


async def test_the_addresses_of_a_name() -> None:
    found = discover(peers(dns="localhost"), {})
    assert found.again < float("inf")
    assert {"127.0.0.1:7070"} <= set(await found.find())


def test_this_node_among_the_members() -> None:
    here = {"10.0.0.2", "node2"}
    assert find_me(["10.0.0.1:7", "10.0.0.2:7"], 7, addresses=here, name="") == "10.0.0.2:7"
    assert find_me(["10.0.0.2:8"], 7, addresses=here, name="") == "10.0.0.2:8"
    assert find_me(["10.0.0.2:8", "10.0.0.2:9"], 7, addresses=here, name="") == ""
    assert find_me(["10.0.0.2:8", "node2:7"], 7, addresses=here, name="") == "node2:7"
    assert find_me(["node2.cluster:7"], 7, addresses=here, name="") == "node2.cluster:7"
    assert find_me(["a:7", "b:7"], 7, addresses=here, name="b") == "b:7"
    assert find_me(["a:7", "b:8"], 7, addresses=here, name="b") == "b:8"
    assert find_me(["a:7", "b:7"], 7, addresses=here, name="c") == ""
    assert find_me([f"{'a' * 70}:7", "a..b:7", "10.0.0.2:7"], 7, addresses=here, name="") == "10.0.0.2:7"
    with pytest.raises(ConfigError, match="none of the members"):
        discover(peers(members=("a", "b"), name="c"), {})
    assert {"127.0.0.1"} <= local_addresses()


# Members


async def test_a_member_is_asked_once_it_has_answered(autojump_clock: trio.testing.MockClock) -> None:
    members = Members()
    members.replace(["a:1", "b:1", "me:1"], "me:1")
    assert members.live() == ["me:1"]
    assert members.due() == ["a:1", "b:1"]
    members.answered("a:1")
    assert members.live() == ["me:1", "a:1"]
    assert members.due() == ["b:1"]
    members.failed("a:1", "down", "refused")
    assert not members.is_live("a:1")


@pytest.mark.parametrize("fault", ["down", "slow", "false", "stranger"])
async def test_who_fails_again_rests_for_longer(fault: Fault, autojump_clock: trio.testing.MockClock) -> None:
    members = Members()
    members.replace(["a:1"], "")
    rests = []
    for _ in range(12):
        members.answered("a:1")
        members.failed("a:1", fault, "it did not do as it should")
        assert members.due() == []
        rests.append(members.next_due() - trio.current_time())
        await trio.sleep(rests[-1])
        assert members.due() == ["a:1"]
    assert rests == sorted(rests)
    assert rests[0] < rests[-1] == rests[-2]
    members.answered("a:1")
    members.well("a:1")
    members.failed("a:1", fault, "it did not do as it should")
    assert members.next_due() - trio.current_time() == pytest.approx(rests[0])


async def test_what_several_downloads_find_out_is_one_fault(autojump_clock: trio.testing.MockClock) -> None:
    members = Members()
    members.replace(["a:1"], "")
    members.answered("a:1")
    for stripe in range(5):
        members.failed("a:1", "false", f"wrong bytes of stripe {stripe}")
    members.failed("a:1", "down", "cancelled")  # which is a lesser one
    (only,) = members.statistics().members
    assert only.why == "wrong bytes of stripe 0"
    assert members.next_due() == trio.current_time() + 600


async def test_one_that_asks_is_worth_a_look(autojump_clock: trio.testing.MockClock) -> None:
    members = Members()
    members.replace(["a:1", "b:1"], "")
    members.failed("a:1", "down", "refused")
    members.failed("b:1", "false", "wrong bytes")
    for name in ("a:1", "b:1", "nobody:1"):
        members.heard_from(name)
    assert members.due() == ["a:1"]


async def test_what_is_known_of_those_that_stay_stays() -> None:
    members = Members()
    members.replace(["a:1", "b:1"], "")
    members.answered("a:1")
    members.received("a:1", 5)
    members.replace(["a:1", "c:1"], "c:1")
    assert members.live() == ["c:1", "a:1"]
    (only,) = members.statistics().members
    assert (only.name, only.received) == ("a:1", 5)


async def test_where_many_are_slow_it_is_this_node() -> None:
    members = Members()
    members.replace([f"m{number}:1" for number in range(9)], "")
    for number in range(9):
        members.answered(f"m{number}:1")
    marked = 0
    while members.may_be_slow(f"m{marked}:1"):
        members.failed(f"m{marked}:1", "slow", "far behind")
        marked += 1
    assert marked == 3
    assert members.may_be_slow("m0:1")  # it is called so already


async def test_wrong_bytes_are_an_error_in_the_log_and_the_same_again_is_no_news(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    members = Members()
    members.replace(["a:1", "b:1"], "")
    members.failed("a:1", "false", "it sent wrong bytes")
    members.failed("b:1", "down", "refused")
    members.failed("b:1", "down", "refused")
    assert [(record.levelname, record.message.split()[1]) for record in caplog.records] == [
        ("ERROR", "a:1"),
        ("INFO", "b:1"),
    ]


# Messages


@given(st.binary(max_size=64), st.integers(0, 1 << 45), st.integers(0, 1 << 45))
def test_bytes_have_their_checksum_at_their_place_alone(data: bytes, offset: int, other: int) -> None:
    here = checksum(memoryview(data), VERSION, offset)
    assert here == checksum(memoryview(data), VERSION, offset)
    if other != offset:
        assert here != checksum(memoryview(data), VERSION, other)
    assert here != checksum(memoryview(data + b"x"), VERSION, offset)


@given(st.binary(max_size=200))
def test_messages_that_are_none_are_refused(data: bytes) -> None:
    for kind in (Ask, Hello, Note):
        try:
            msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError:
            continue
