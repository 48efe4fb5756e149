"""The ways to an S3 server: TLS with a private authority, IPv6, proxies, and many threads at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fusestripe.errors import ConfigError, OriginUnavailable
from fusestripe.origins.base import Origin, OriginOptions
from fusestripe.origins.registry import open_origin
from tests.origins.conformance import fetch, pinned
from tests.support.certificates import Certificates, make_certificates
from tests.support.proxy import Proxy
from tests.support.relays import ForwardProxy, Relay, running
from tests.support.seaweed import SeaweedServer

MIB = 1024 * 1024
DATA = random.Random(9).randbytes(3 * MIB + 17)


@pytest.fixture
def bucket(aws: pytest.MonkeyPatch, s3_server: SeaweedServer, s3_bucket: str) -> str:
    """A bucket with DATA in it."""
    s3_server.put(s3_bucket, "dir/file", DATA)
    return s3_bucket


def works(bucket: str, endpoint: str) -> bool:
    """Whether all of DATA comes by way of ``endpoint``, twice, and listings too."""
    with closing(opened(bucket, endpoint)) as origin:
        origin.check()
        version = pinned(origin, "dir/file")
        return all(fetch(origin, version) == DATA for _ in range(2))


def opened(bucket: str, endpoint: str) -> Origin:
    return open_origin(f"s3://{bucket}", OriginOptions(endpoint=endpoint, timeout=10))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A private authority, and a certificate of localhost by it."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tls(s3_server: SeaweedServer, certificates: Certificates) -> Iterator[Relay]:
    """TLS before the S3 server."""
    relay = Relay(urlsplit(s3_server.endpoint).netloc, tls=certificates.server_context())
    with running(relay):
        yield relay


class TestTls:
    def test_a_private_authority_named_by_the_environment(
        self, aws: pytest.MonkeyPatch, tls: Relay, bucket: str, certificates: Certificates
    ) -> None:
        aws.setenv("AWS_CA_BUNDLE", str(certificates.authority))
        assert works(bucket, f"https://{tls.netloc}")
        assert tls.connections == 1

    def test_one_named_by_the_profile(
        self, aws: pytest.MonkeyPatch, tls: Relay, bucket: str, certificates: Certificates, tmp_path: Path
    ) -> None:
        config = tmp_path / "config"
        config.write_text(f"[default]\nca_bundle = {certificates.authority}\n")
        aws.setenv("AWS_CONFIG_FILE", str(config))
        assert works(bucket, f"https://{tls.netloc}")

    def test_one_of_the_system(
        self, aws: pytest.MonkeyPatch, tls: Relay, bucket: str, certificates: Certificates
    ) -> None:
        aws.setenv("SSL_CERT_FILE", str(certificates.authority))
        assert works(bucket, f"https://{tls.netloc}")

    def test_one_that_nobody_named(self, tls: Relay, bucket: str) -> None:
        with pytest.raises(OriginUnavailable, match=r"certificate.*AWS_CA_BUNDLE"):
            works(bucket, f"https://{tls.netloc}")

    def test_a_certificate_of_another_host(
        self, aws: pytest.MonkeyPatch, s3_server: SeaweedServer, bucket: str, tmp_path: Path
    ) -> None:
        other = make_certificates(tmp_path, "DNS:elsewhere.example")
        aws.setenv("AWS_CA_BUNDLE", str(other.authority))
        relay = Relay(urlsplit(s3_server.endpoint).netloc, tls=other.server_context())
        with running(relay), pytest.raises(OriginUnavailable, match=r"TLS failed.*'127\.0\.0\.1'"):
            works(bucket, f"https://{relay.netloc}")


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
def test_an_ipv6_address(
    aws: pytest.MonkeyPatch, s3_server: SeaweedServer, bucket: str, certificates: Certificates, secure: bool
) -> None:
    aws.setenv("AWS_CA_BUNDLE", str(certificates.authority))
    context = certificates.server_context() if secure else None
    relay = Relay(urlsplit(s3_server.endpoint).netloc, host="::1", tls=context)
    with running(relay):
        assert works(bucket, f"{'https' if secure else 'http'}://{relay.netloc}")
        assert relay.connections == 1


class TestProxies:
    @pytest.fixture(params=["", "me:p%40ss"], ids=["open", "with credentials"])
    def proxy(self, request: pytest.FixtureRequest) -> Iterator[tuple[ForwardProxy, str]]:
        """A proxy, and its URL."""
        credentials: str = request.param
        proxy = ForwardProxy(credentials=credentials.replace("%40", "@"))
        with running(proxy):
            yield proxy, f"http://{credentials}{'@' if credentials else ''}{proxy.netloc}"

    def test_of_a_plain_server(
        self,
        aws: pytest.MonkeyPatch,
        s3_server: SeaweedServer,
        bucket: str,
        proxy: tuple[ForwardProxy, str],
    ) -> None:
        server, url = proxy
        aws.setenv("HTTP_PROXY", url)
        assert works(bucket, s3_server.endpoint)
        assert server.connections == 1
        assert all(line.startswith(f"GET {s3_server.endpoint}/{bucket}") for line in server.requests)

    def test_of_a_server_with_tls(
        self,
        aws: pytest.MonkeyPatch,
        tls: Relay,
        bucket: str,
        certificates: Certificates,
        proxy: tuple[ForwardProxy, str],
    ) -> None:
        server, url = proxy
        aws.setenv("AWS_CA_BUNDLE", str(certificates.authority))
        aws.setenv("https_proxy", url)
        assert works(bucket, f"https://{tls.netloc}")
        [line] = server.requests
        assert line.startswith(f"CONNECT {tls.netloc} ")

    def test_that_speaks_tls_itself(
        self,
        aws: pytest.MonkeyPatch,
        s3_server: SeaweedServer,
        tls: Relay,
        bucket: str,
        certificates: Certificates,
        proxy: tuple[ForwardProxy, str],
    ) -> None:
        server, url = proxy
        front = Relay(server.netloc, tls=certificates.server_context())
        with running(front):
            aws.setenv("AWS_CA_BUNDLE", str(certificates.authority))
            for name in ("HTTP_PROXY", "HTTPS_PROXY"):
                aws.setenv(name, url.replace("http://", "https://").replace(server.netloc, front.netloc))
            assert works(bucket, f"https://{tls.netloc}")
            assert works(bucket, s3_server.endpoint)
        assert {line.partition(" ")[0] for line in server.requests} == {"CONNECT", "GET"}

    def test_without_a_scheme_in_its_url(
        self, aws: pytest.MonkeyPatch, s3_server: SeaweedServer, bucket: str
    ) -> None:
        with running(proxy := ForwardProxy()):
            aws.setenv("HTTP_PROXY", proxy.netloc)
            assert works(bucket, s3_server.endpoint)
            assert proxy.requests

    def test_that_some_hosts_need_none_of(
        self, aws: pytest.MonkeyPatch, s3_server: SeaweedServer, bucket: str
    ) -> None:
        with running(proxy := ForwardProxy()):
            aws.setenv("HTTP_PROXY", f"http://{proxy.netloc}")
            aws.setenv("NO_PROXY", "example.com,127.0.0.1")
            assert works(bucket, s3_server.endpoint)
            assert not proxy.requests

    @pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
    def test_that_lets_nobody_through(
        self, aws: pytest.MonkeyPatch, s3_server: SeaweedServer, bucket: str, secure: bool
    ) -> None:
        endpoint = s3_server.endpoint.replace("http:", "https:") if secure else s3_server.endpoint
        with running(proxy := ForwardProxy(credentials="me:right")):
            for name in ("HTTP_PROXY", "HTTPS_PROXY"):
                aws.setenv(name, f"http://me:WRONG@{proxy.netloc}")
            with pytest.raises(OriginUnavailable, match=f"proxy {proxy.netloc}") as caught:
                works(bucket, endpoint)
        assert "WRONG" not in str(caught.value)
        assert "HTTP" in caught.value.mend

    def test_that_is_not_there(self, aws: pytest.MonkeyPatch, s3_server: SeaweedServer, bucket: str) -> None:
        aws.setenv("HTTP_PROXY", "http://me:WRONG@127.0.0.1:1")
        with pytest.raises(OriginUnavailable, match=r"proxy 127\.0\.0\.1:1: connection refused") as caught:
            works(bucket, s3_server.endpoint)
        assert "WRONG" not in str(caught.value)

    def test_that_cannot_be(self, aws: pytest.MonkeyPatch, s3_server: SeaweedServer, bucket: str) -> None:
        aws.setenv("HTTP_PROXY", "socks5://127.0.0.1:1")
        with pytest.raises(ConfigError, match="HTTP_PROXY"):
            opened(bucket, s3_server.endpoint)


def test_sixty_four_threads_at_once(bucket: str, s3_proxy: Proxy) -> None:
    together = threading.Barrier(64)
    span = len(DATA) // 64

    def read(number: int) -> bool:
        together.wait(30)
        return all(
            fetch(origin, version, start, span) == DATA[start : start + span]
            for start in (span * ((number + turn) % 64) for turn in range(4))
        )

    with closing(opened(bucket, s3_proxy.endpoint)) as origin, ThreadPoolExecutor(64) as pool:
        version = pinned(origin, "dir/file")
        s3_proxy.reset()
        assert all(pool.map(read, range(64)))
        statistics = s3_proxy.statistics()
        assert statistics.count("GET") == 4 * 64
        assert statistics.connections <= 64, "connections are used again"
