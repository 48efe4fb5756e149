"""The proxy itself: what it measures and does is what other tests rely on."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import urllib3
import urllib3.exceptions

from tests.support.proxy import Fault, Proxy

BODY = bytes(range(256)) * 16 * 1024  # 4 MiB


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        body = self.headers["Host"].encode() if self.path == "/host" else BODY
        self.send_response(200)
        if self.path == "/chunked":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for start in range(0, len(body), 100_000):
                part = body[start : start + 100_000]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (its name in the base)
        """Nothing on stderr."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as running:
        running.daemon_threads = True
        running.block_on_close = False
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


@pytest.fixture
def proxy(server: str) -> Iterator[Proxy]:
    with Proxy(server) as running:
        yield running


@pytest.fixture
def pool() -> Iterator[urllib3.PoolManager]:
    manager = urllib3.PoolManager(retries=False, maxsize=16, timeout=urllib3.Timeout(10))
    yield manager
    manager.clear()


def get(pool: urllib3.PoolManager, proxy: Proxy, path: str = "/file", **headers: str) -> bytes:
    return pool.request("GET", proxy.endpoint + path, headers=headers).data


def test_bodies_pass_unchanged(proxy: Proxy, pool: urllib3.PoolManager) -> None:
    assert get(pool, proxy) == BODY
    assert get(pool, proxy, "/chunked") == BODY
    assert pool.request("PUT", proxy.endpoint + "/x", body=BODY).data == BODY
    assert pool.request("HEAD", proxy.endpoint + "/x").headers["Content-Length"] == str(len(BODY))
    assert proxy.statistics().connections == 1, "connections are kept"


def test_the_host_header_is_the_clients(proxy: Proxy, pool: urllib3.PoolManager) -> None:
    assert get(pool, proxy, "/host").decode() == f"127.0.0.1:{proxy.port}"


def test_counts(proxy: Proxy, pool: urllib3.PoolManager) -> None:
    get(pool, proxy, Range="bytes=0-9")
    get(pool, proxy, "/bucket?list-type=2&prefix=a")
    pool.request("HEAD", proxy.endpoint + "/x")
    statistics = proxy.wait_for(lambda statistics: statistics.active == 0)
    assert statistics.counts == {"GET": 1, "LIST": 1, "HEAD": 1}
    assert (statistics.requests, statistics.ranges) == (3, 1)
    assert statistics.bytes_sent == 2 * len(BODY)
    assert next((one.kind, one.path, one.range, one.status) for one in proxy.log()) == (
        "GET",
        "/file",
        "bytes=0-9",
        200,
    )
    proxy.reset()
    assert proxy.statistics().requests == 0
    assert proxy.log() == []


def test_held_responses_and_the_most_at_once(proxy: Proxy, pool: urllib3.PoolManager) -> None:
    proxy.set_faults([Fault("hold", match="GET /held"), Fault("hold:1000", match="GET /held", nth=2)])
    with ThreadPoolExecutor(2) as threads:
        bodies = [threads.submit(get, pool, proxy, "/held") for _ in range(2)]
        proxy.wait_held(2)
        assert not any(body.done() for body in bodies)
        assert get(pool, proxy) == BODY
        proxy.release()
        assert [body.result() for body in bodies] == [BODY, BODY]
    assert proxy.statistics().max_concurrent == 3
    assert proxy.statistics().held == 0


def test_a_rate_for_each_connection(proxy: Proxy, pool: urllib3.PoolManager) -> None:
    proxy.shape(rate=8e6)
    start = time.monotonic()
    with ThreadPoolExecutor(3) as threads:
        assert all(body == BODY for body in threads.map(lambda _: get(pool, proxy), range(3)))
    least = len(BODY) / 8e6
    assert 0.98 * least < time.monotonic() - start < 1.25 * least


def test_a_rate_for_all_together(proxy: Proxy, pool: urllib3.PoolManager) -> None:
    proxy.shape(total_rate=24e6)
    start = time.monotonic()
    with ThreadPoolExecutor(3) as threads:
        assert all(body == BODY for body in threads.map(lambda _: get(pool, proxy), range(3)))
    least = 3 * len(BODY) / 24e6
    assert 0.85 * least < time.monotonic() - start < 1.25 * least  # it may make up for 50 ms at its start


def test_delay(proxy: Proxy, pool: urllib3.PoolManager) -> None:
    get(pool, proxy)
    proxy.shape(delay=0.2)
    start = time.monotonic()
    get(pool, proxy, "/host")
    assert 0.2 <= time.monotonic() - start < 1


def test_the_nth_and_the_times(proxy: Proxy, pool: urllib3.PoolManager) -> None:
    proxy.set_faults([Fault("status:503:SlowDown", match="/file", nth=2, times=2)])
    answers = [pool.request("GET", proxy.endpoint + "/file") for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 503, 503, 200]
    assert b"<Code>SlowDown</Code>" in answers[1].data
    assert pool.request("GET", proxy.endpoint + "/other").status == 200


def test_headers_and_bodies_made_up(proxy: Proxy, pool: urllib3.PoolManager) -> None:
    proxy.set_faults(
        [
            Fault("pass", match="/file", headers=(("ETag", '"x"'),)),
            Fault("status:200", match="/list", body="<made-up/>"),
        ]
    )
    answer = pool.request("GET", proxy.endpoint + "/file")
    assert (answer.headers["etag"], answer.data) == ('"x"', BODY)
    assert get(pool, proxy, "/list") == b"<made-up/>"


@pytest.mark.parametrize("action", ["cut:1000", "reset:1000"])
def test_cut(proxy: Proxy, action: str) -> None:
    proxy.set_faults([Fault(action)])
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    connection.request("GET", "/file")
    answer = connection.getresponse()
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)) as caught:
        answer.read()
    if isinstance(caught.value, http.client.IncompleteRead):
        assert caught.value.partial == BODY[:1000]
    connection.close()


@pytest.mark.parametrize("action", ["reset", "close"])
def test_no_answer(proxy: Proxy, pool: urllib3.PoolManager, action: str) -> None:
    proxy.set_faults([Fault(action)])
    with pytest.raises(urllib3.exceptions.ProtocolError):
        get(pool, proxy)
    assert get(pool, proxy) == BODY


def test_an_origin_that_is_down(proxy: Proxy, pool: urllib3.PoolManager) -> None:
    assert get(pool, proxy) == BODY
    proxy.refuse()
    with pytest.raises(urllib3.exceptions.HTTPError):
        get(pool, proxy)
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10).connect()
    proxy.accept()
    assert get(pool, proxy) == BODY


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("reset-head:20"), urllib3.exceptions.ProtocolError),
        (Fault("hold-head:20"), urllib3.exceptions.ReadTimeoutError),
        (Fault("drip:1"), urllib3.exceptions.ReadTimeoutError),
        (Fault("drip:1:20"), urllib3.exceptions.ReadTimeoutError),
    ],
    ids=lambda value: value.action if isinstance(value, Fault) else "",
)
def test_heads_that_break_and_bytes_that_trickle(
    proxy: Proxy, pool: urllib3.PoolManager, fault: Fault, error: type[Exception]
) -> None:
    proxy.set_faults([fault])
    with pytest.raises(error):
        pool.request("GET", proxy.endpoint + "/x", retries=False, timeout=0.3).read()
    proxy.release()
    assert get(pool, proxy) == BODY


def test_more_bytes_than_were_promised(proxy: Proxy) -> None:
    proxy.set_faults([Fault("long:7", match="GET")])
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    connection.request("GET", "/host")
    received = b""
    while not received.endswith(b"x" * 7):
        received += connection.sock.recv(100)
    body = received.partition(b"\r\n\r\n")[2]
    assert body == f"127.0.0.1:{proxy.port}".encode() + b"x" * 7
    connection.close()


def test_a_head_that_is_cut(proxy: Proxy) -> None:
    proxy.set_faults([Fault("cut-head:12")])
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    connection.request("GET", "/host")
    received = [connection.sock.recv(100) for _ in range(2)]
    assert received == [b"HTTP/1.1 200", b""]
    connection.close()


def test_a_server_that_cannot_be_connected_to(proxy: Proxy, pool: urllib3.PoolManager) -> None:
    proxy.ignore()
    with pytest.raises(urllib3.exceptions.ConnectTimeoutError):
        pool.request("GET", proxy.endpoint + "/x", retries=False, timeout=0.3)
    proxy.accept()
    assert get(pool, proxy) == BODY
