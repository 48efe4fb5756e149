"""Connections to a web server that keeps, drops, breaks and garbles them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from fusestripe.errors import BadAnswer, ConfigError, OriginUnavailable
from fusestripe.origins import http_connections
from fusestripe.origins.http_connections import HttpConnections
from tests.support.scripted_server import HANG_UP, SILENCE, ScriptedServer, answer, scripted_server

KIB = 1024
TIMEOUT = 10.0
BRIEF = 0.3


@contextmanager
def connected(server: ScriptedServer) -> Iterator[HttpConnections]:
    connections = HttpConnections(server.url)
    try:
        yield connections
    finally:
        connections.close()


def ask(
    connections: HttpConnections, path: str = "/", method: str = "GET", timeout: float = TIMEOUT
) -> bytes:
    """The whole body of an answer."""
    with connections.request(method, path, {}, timeout=timeout) as got:
        return got.read(1000 * KIB)


@pytest.fixture(autouse=True)
def _no_proxy(no_aws: pytest.MonkeyPatch) -> None:
    """The machine's own proxies stay out of it."""


class TestKeptConnections:
    @pytest.mark.parametrize(
        ("method", "first"),
        [
            ("GET", answer(b"x" * 300_000)),
            ("GET", answer()),
            ("GET", answer(status=204, Content_Length=None)),
            ("GET", answer(b"3\r\nabc\r\n0\r\n\r\n", Content_Length=None, Transfer_Encoding="chunked")),
            ("HEAD", answer(Content_Length=12345)),
            ("GET", answer(b"<Error/>", status=503)),
        ],
    )
    def test_one_whose_answer_was_read_whole_is_used_again(self, method: str, first: bytes) -> None:
        with scripted_server([first, answer(b"second")]) as server, connected(server) as connections:
            ask(connections, method=method)
            assert ask(connections) == b"second"
            assert server.connections == [0, 0]

    @pytest.mark.parametrize(
        "first",
        [
            answer(b"x" * 300_000),
            answer(b"last", Connection="close"),
            answer(b"x" * 100, Content_Length=None),
        ],
        ids=["unread", "told to close", "until the end"],
    )
    def test_one_that_something_may_be_left_on_is_not(self, first: bytes) -> None:
        with scripted_server([first], [answer(b"second")]) as server, connected(server) as connections:
            with connections.request("GET", "/", {}, timeout=TIMEOUT) as got:
                assert got.read_some(4)
            assert ask(connections) == b"second"
            assert server.connections == [0, 1]

    def test_more_bytes_than_the_head_promised_meet_no_other_request(self) -> None:
        surplus = answer(b"x" * 20_000, Content_Length=10_000)
        with scripted_server([surplus], [answer(b"second")]) as server, connected(server) as connections:
            assert ask(connections) == b"x" * 10_000
            assert server.ended[0].wait(TIMEOUT)
            assert ask(connections) == b"second"

    def test_one_that_the_server_closed_between_two_requests_is_replaced(self) -> None:
        with scripted_server([answer(b"1")], [answer(b"2")]) as server, connected(server) as connections:
            assert ask(connections) == b"1"
            assert server.ended[0].wait(TIMEOUT)
            assert ask(connections) == b"2"
            assert server.connections == [0, 1]

    def test_one_that_the_server_closes_when_it_is_used_again_is_replaced(self) -> None:
        with (
            scripted_server([answer(b"1"), HANG_UP], [answer(b"2")]) as server,
            connected(server) as connections,
        ):
            assert ask(connections) == b"1"
            assert ask(connections) == b"2"
            assert server.connections == [0, 0, 1]

    def test_a_request_is_sent_twice_at_most(self) -> None:
        with (
            scripted_server([answer(b"1"), HANG_UP], [HANG_UP], [answer()]) as server,
            connected(server) as connections,
        ):
            ask(connections)
            with pytest.raises(OriginUnavailable, match="connection broke"):
                ask(connections)
            assert server.connections == [0, 0, 1]

    def test_a_fresh_one_that_fails_is_an_error_at_once(self) -> None:
        with scripted_server([HANG_UP], [answer()]) as server, connected(server) as connections:
            with pytest.raises(OriginUnavailable, match="connection broke"):
                ask(connections)
            assert server.connections == [0]

    def test_an_answer_that_has_begun_is_not_asked_for_again(self) -> None:
        with (
            scripted_server([answer(b"1"), b"HTTP/1.1 20", HANG_UP], [answer()]) as server,
            connected(server) as connections,
        ):
            ask(connections)
            with pytest.raises(OriginUnavailable):
                ask(connections, timeout=BRIEF)
            assert server.connections == [0, 0]

    def test_where_one_is_silent_the_idle_ones_are_not_trusted(self) -> None:
        both = threading.Barrier(2)

        def first(_: int) -> None:
            with connections.request("GET", "/", {}, timeout=TIMEOUT) as got:
                both.wait(TIMEOUT)
                got.read(10)

        scripts = [[answer(b"1"), SILENCE], [answer(b"1"), SILENCE], [answer(b"2")]]
        with scripted_server(*scripts) as server, connected(server) as connections:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(first, range(2)))
            with pytest.raises(OriginUnavailable, match="no answer in time"):
                ask(connections, timeout=BRIEF)
            assert ask(connections) == b"2"
            assert server.connections[-1] == 2

    def test_one_that_was_idle_for_long_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http_connections, "IDLE_SECONDS", 0.0)
        with (
            scripted_server([answer(b"1"), answer(b"1")], [answer(b"2")]) as server,
            connected(server) as connections,
        ):
            assert ask(connections) == b"1"
            assert ask(connections) == b"2"

    def test_so_many_are_kept_and_no_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http_connections, "IDLE_CONNECTIONS", 3)

        def ask_together(count: int) -> list[bytes]:
            """Each on a connection of its own."""
            together = threading.Barrier(count)

            def one(_: int) -> bytes:
                with connections.request("GET", "/", {}, timeout=TIMEOUT) as got:
                    together.wait(TIMEOUT)
                    return got.read(10)

            with ThreadPoolExecutor(count) as pool:
                return list(pool.map(one, range(count)))

        scripts = [[answer(b"1"), answer(b"2")]] * 8
        with scripted_server(*scripts) as server, connected(server) as connections:
            assert ask_together(8) == [b"1"] * 8
            assert ask_together(3) == [b"2"] * 3
            assert sum(ended.wait(TIMEOUT) for ended in server.ended) == 8

    def test_closing_lets_go_of_all(self) -> None:
        scripts = [[answer(b"1"), answer()], [answer(b"2"), answer()]]
        with scripted_server(*scripts) as server, connected(server) as connections:
            with connections.request("GET", "/", {}, timeout=TIMEOUT) as got:
                assert ask(connections) == b"2"
                connections.close()
                assert server.ended[1].wait(TIMEOUT)
                assert got.read(10) == b"1", "an answer under way is still read"
            assert server.ended[0].wait(TIMEOUT)


class TestBodies:
    def test_pieces_are_small_at_first(self) -> None:
        body = bytes(range(256)) * 4 * KIB
        with scripted_server([answer(body)]) as server, connected(server) as connections:
            into = memoryview(bytearray(len(body)))
            told: list[int] = []
            with connections.request("GET", "/", {}, timeout=TIMEOUT) as got:
                got.fill(into, told.append)
            assert into == body
            assert told == [kib * KIB for kib in (16, 32, 64, 128, 256, 512, 768, 1024)]

    @pytest.mark.parametrize("last", [b"", SILENCE], ids=["closed", "silent"])
    def test_one_that_ends_early(self, last: bytes) -> None:
        part = answer(b"y" * 100_000, Content_Length=200_000)
        script = [part, SILENCE] if last else [part]
        with scripted_server(script) as server, connected(server) as connections:
            told = [0]
            into = memoryview(bytearray(200_000))
            with (
                pytest.raises(OriginUnavailable) as caught,
                connections.request("GET", "/", {}, timeout=BRIEF) as got,
            ):
                got.fill(into, told.append)
            assert caught.value.transient
            assert told[-1] <= 100_000
            assert into[: told[-1]] == b"y" * told[-1]

    @pytest.mark.parametrize(
        "cut",
        [
            answer(b"abc", Content_Length=4),
            answer(b"3\r\nabc\r\n", Content_Length=None, Transfer_Encoding="chunked"),
            answer(b"3\r\nab", Content_Length=None, Transfer_Encoding="chunked"),
            answer(b"zzz\r\n", Content_Length=None, Transfer_Encoding="chunked"),
        ],
    )
    def test_a_document_that_ends_early_is_none(self, cut: bytes) -> None:
        with scripted_server([cut], [answer(b"2")]) as server, connected(server) as connections:
            with pytest.raises(OriginUnavailable):
                ask(connections)
            assert ask(connections) == b"2"

    @pytest.mark.parametrize("length", [1000, None])
    def test_a_document_that_is_too_large_is_refused(self, length: int | None) -> None:
        with (
            scripted_server([answer(b"x" * 1000, Content_Length=length)]) as server,
            connected(server) as connections,
            pytest.raises(BadAnswer),
            connections.request("GET", "/", {}, timeout=TIMEOUT) as got,
        ):
            got.read(999)


class TestHeads:
    def test_names_are_in_lower_case_and_what_comes_twice_is_told_twice(self) -> None:
        head = b'HTTP/1.1 200 OK\r\nEtag: "a"\r\nX-B: 1\r\nETAG: "b"\r\nContent-Length: 0\r\n\r\n'
        with (
            scripted_server([head]) as server,
            connected(server) as connections,
            connections.request("GET", "/", {}, timeout=TIMEOUT) as got,
        ):
            assert got.headers == {"etag": '"a", "b"', "x-b": "1", "content-length": "0"}

    @pytest.mark.parametrize(
        "garbage",
        [
            b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
            b"HTTP/9 x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nwhat\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n folded: 1\r\nContent-Length: 3\r\n\r\nabc",
        ],
        ids=["not http", "no status", "long line", "many lines", "no header", "folded"],
    )
    def test_garbage_is_an_error_of_ours(self, garbage: bytes) -> None:
        with (
            scripted_server([garbage]) as server,
            connected(server) as connections,
            pytest.raises(OriginUnavailable) as caught,
        ):
            ask(connections)
        assert "\n" not in str(caught.value)

    def test_a_message_names_the_server_and_not_what_was_asked(self) -> None:
        with (
            scripted_server([HANG_UP]) as server,
            connected(server) as connections,
            pytest.raises(OriginUnavailable) as caught,
        ):
            ask(connections, "/path?token=secret")
        assert str(caught.value) == f"{server.url}: the connection broke"


class TestSettings:
    @pytest.mark.parametrize(
        "url", ["host", "ftp://host", "http://", "http://host:x", "http://host:0", "https://me:secret@host"]
    )
    def test_urls_that_cannot_be(self, url: str) -> None:
        with pytest.raises(ConfigError) as caught:
            HttpConnections(url)
        assert "secret" not in str(caught.value)
        assert caught.value.mend

    @pytest.mark.parametrize("proxy", ["socks5://me:secret@host", "http://", "http://me:secret@host:port"])
    def test_proxies_that_cannot_be(self, monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        with pytest.raises(ConfigError, match="HTTPS_PROXY") as caught:
            HttpConnections("https://host")
        assert "secret" not in str(caught.value)
        HttpConnections("http://host").close()
