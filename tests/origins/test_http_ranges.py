"""That an answer is the range that was asked for, to the byte, or an error before the first one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fusestripe.errors import BadAnswer, OriginUnavailable, VersionChanged
from fusestripe.origins.http_connections import HttpConnections
from fusestripe.origins.http_ranges import fill_range, range_headers
from fusestripe.units import ObjectVersion
from tests.support.scripted_server import answer, scripted_server

BODY = bytes(range(100))
VERSION = ObjectVersion("http://host", "it", 1000, '"tag"')
WANTED: Mapping[str, object] = {"Content_Range": "bytes 50-149/1000"}


def filled(head: bytes, told: list[int], tag: str | None = VERSION.tag) -> bytes:
    """What an answer to the bytes 50-149 of 1,000 leaves in the buffer."""
    into = memoryview(bytearray(100))
    with scripted_server([head]) as server:
        connections = HttpConnections(server.url)
        try:
            with connections.request("GET", "/", range_headers(50, 100, VERSION.tag), timeout=5) as got:
                fill_range(got, "it", VERSION, tag, offset=50, into=into, progress=told.append)
        finally:
            connections.close()
    return bytes(into)


@pytest.fixture(autouse=True)
def _no_proxy(no_aws: pytest.MonkeyPatch) -> None:
    """The machine's own proxies stay out of it."""


@pytest.mark.parametrize("more", [{}, {"Content_Encoding": "identity"}, {"Content_Encoding": "gzip"}])
def test_the_range(more: Mapping[str, object]) -> None:
    """In whatever the object is stored in: a range of it unpacked would be of another whole."""
    told: list[int] = []
    assert filled(answer(BODY, 206, **WANTED, **more), told) == BODY
    assert told == [100]


@pytest.mark.parametrize(
    "head",
    [
        answer(BODY, 200),
        answer(BODY, 200, **WANTED),
        answer(BODY, 206),
        answer(BODY, 206, Content_Range="bytes 51-150/1000"),
        answer(BODY, 206, Content_Range="bytes 50-148/1000"),
        answer(BODY, 206, Content_Range="bytes 50-149/1001"),
        answer(BODY, 206, Content_Range="bytes 50-149/*"),
        answer(BODY, 206, Content_Range="bytes 50-149/1000", CONTENT_RANGE="bytes 0-99/1000"),
        answer(BODY[:99], 206, **WANTED),
        answer(BODY + b"x", 206, **WANTED),
        answer(BODY, 206, **WANTED, Content_Length=None),
        answer(BODY, 206, **WANTED, CONTENT_LENGTH=100),
        answer(
            b"64\r\n" + BODY + b"\r\n0\r\n\r\n",
            206,
            **WANTED,
            Content_Length=None,
            Transfer_Encoding="chunked",
        ),
        answer(BODY, 206, **WANTED, Transfer_Encoding="chunked"),
        answer(BODY, 206, Content_Type="multipart/byteranges; boundary=x"),
    ],
)
def test_anything_else(head: bytes) -> None:
    told: list[int] = []
    with pytest.raises(BadAnswer) as caught:
        filled(head, told)
    assert caught.value.transient
    assert not told


def test_a_body_that_breaks_off() -> None:
    told: list[int] = []
    with pytest.raises(OriginUnavailable):
        filled(answer(BODY[:60], 206, **{**WANTED, "Content_Length": 100}), told)
    assert told == [60]


@pytest.mark.parametrize(
    ("tag", "sent"),
    [
        ('"abc-1"', True),
        ('W/"abc"', False),
        ("abc", False),
        ('"a\nX: y"', False),
        ('"é"', False),
        ('"日"', False),
        ("", False),
    ],
)
def test_only_a_tag_that_can_match_is_sent(tag: str, sent: bool) -> None:
    headers = range_headers(5, 3, tag)
    assert headers["Range"] == "bytes=5-7"
    assert ("If-Match" in headers) == sent


@pytest.mark.parametrize("tag", [None, "", "tag", 'W/"tag"', '"other"'])
def test_the_range_of_another_version(tag: str | None) -> None:
    told: list[int] = []
    with pytest.raises(VersionChanged):
        filled(answer(BODY, 206, **WANTED), told, tag)
    assert told == []
