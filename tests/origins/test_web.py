"""A web server as an origin, on nginx."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from fusestripe.errors import (
    ConfigError,
    CredentialsRefused,
    FusestripeError,
    IsADirectory,
    NotFound,
    OriginError,
    OriginUnavailable,
    PermissionDenied,
    VersionChanged,
)
from fusestripe.origins.base import Origin, OriginOptions
from fusestripe.origins.registry import open_origin
from tests.origins.conformance import ODD_NAMES, OriginConformance, Store, fetch, listing, pinned
from tests.support.certificates import make_certificates
from tests.support.proxy import Fault, Proxy
from tests.support.relays import Relay, running
from tests.support.web_server import PASSWORD, TOKEN, USER, WebServer

MIB = 1024 * 1024
LISTED = [name for name in ODD_NAMES if not name.startswith(".")]
"""nginx leaves out what begins with a dot."""
_numbers = itertools.count()


class Directory:
    """See conformance.Store: a directory of its own on the server."""

    def __init__(self, server: WebServer) -> None:
        self.name = f"store {next(_numbers)}"
        self._server = server
        (server.root / self.name).mkdir()

    def put(self, path: str, data: bytes) -> None:
        self._server.put(f"{self.name}/{path}", data)

    def put_many(self, items: Mapping[str, bytes]) -> None:
        self._server.put_many({f"{self.name}/{path}": data for path, data in items.items()})

    def make_directory(self, path: str) -> None:
        (self._server.root / self.name / path).mkdir(parents=True)

    def delete(self, path: str) -> None:
        (self._server.root / self.name / path).unlink()


@pytest.fixture
def store(web_server: WebServer) -> Directory:
    return Directory(web_server)


@pytest.mark.usefixtures("no_netrc")
class WebConformance(OriginConformance):
    how = ""

    @pytest.fixture
    def store(self, web_server: WebServer) -> Store:
        return Directory(web_server)

    @pytest.fixture
    def origin(self, store: Directory, web_server: WebServer) -> Origin:
        return open_origin(f"{web_server.endpoint}/{self.how}/{store.name.replace(' ', '%20')}")

    @pytest.mark.parametrize("name", LISTED, ids=ascii)
    def test_odd_names(self, store: Store, origin: Origin, name: str) -> None:
        super().test_odd_names(store, origin, name)

    @pytest.mark.parametrize("name", sorted(set(ODD_NAMES) - set(LISTED)))
    def test_what_the_index_leaves_out_is_there_by_name(
        self, store: Store, origin: Origin, name: str
    ) -> None:
        store.put(name, b"hello")
        assert listing(origin, "") == {}
        assert fetch(origin, pinned(origin, name)) == b"hello"


class TestHtml(WebConformance):
    how = "html"


class TestJson(WebConformance):
    how = "json"


class TestDates(WebConformance):
    """Versions by Last-Modified alone."""

    how = "dated"


def opened(server: WebServer, how: str, store: Directory, **options: object) -> Origin:
    url = f"{server.endpoint}/{how}/{store.name.replace(' ', '%20')}"
    return open_origin(url, OriginOptions(**options))  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_netrc")
class TestVersions:
    def test_a_weak_etag_goes_with_the_date(self, web_server: WebServer, store: Directory) -> None:
        store.put("file", b"a" * 1000)
        origin = opened(web_server, "weak", store)
        version = pinned(origin, "file")
        assert version.tag.endswith(' W/"weak"')
        assert fetch(origin, version) == b"a" * 1000
        store.put("file", b"b" * 1000)
        WebConformance.refuses(origin, version)

    def test_a_file_that_nothing_tells_apart_is_refused(
        self, web_server: WebServer, store: Directory
    ) -> None:
        store.put("file", b"x")
        origin = opened(web_server, "nameless", store)
        for refused in (lambda: origin.stat("file"), origin.check):
            with pytest.raises(OriginError, match="nothing tells its versions apart") as caught:
                refused()
            assert caught.value.mend

    def test_another_date_in_the_answer(
        self, web_server: WebServer, web_proxy: Proxy, store: Directory
    ) -> None:
        """A server that ignores If-Unmodified-Since."""
        store.put("file", b"x" * 100)
        origin = open_origin(f"{web_proxy.endpoint}/dated/{store.name.replace(' ', '%20')}")
        version = pinned(origin, "file")
        other = (("Last-Modified", "Sun, 29 Nov 2020 15:31:01 GMT"),)
        web_proxy.set_faults([Fault("pass", match="GET", headers=other)])
        WebConformance.refuses(origin, version)


@pytest.mark.usefixtures("no_netrc")
class TestRanges:
    def test_a_server_without_ranges_is_refused_at_the_check(
        self, web_server: WebServer, store: Directory
    ) -> None:
        store.put("file", b"x" * 1000)
        origin = opened(web_server, "whole", store)
        for refused in (origin.check, lambda: fetch(origin, pinned(origin, "file"), 10, 10)):
            with pytest.raises(OriginError, match="does not honour ranges") as caught:
                refused()
            assert not caught.value.transient
            assert "nginx" in caught.value.mend

    def test_one_that_says_so_is_refused_before_it_is_read(self, web_proxy: Proxy, store: Directory) -> None:
        store.put("file", b"x" * 1000)
        origin = open_origin(f"{web_proxy.endpoint}/html/{store.name.replace(' ', '%20')}")
        web_proxy.set_faults([Fault("pass", match="HEAD", headers=(("Accept-Ranges", "none"),))])
        with pytest.raises(OriginError, match="does not honour ranges"):
            origin.stat("file")

    def test_a_range_is_one_request(self, web_proxy: Proxy, store: Directory) -> None:
        data = random.Random(5).randbytes(3 * MIB)
        store.put("file", data)
        origin = open_origin(f"{web_proxy.endpoint}/html/{store.name.replace(' ', '%20')}")
        version = pinned(origin, "file")
        web_proxy.reset()
        assert fetch(origin, version, MIB, MIB) == data[MIB : 2 * MIB]
        [request] = web_proxy.log()
        assert (request.kind, request.range) == ("GET", f"bytes={MIB}-{2 * MIB - 1}")
        assert web_proxy.statistics().bytes_sent == MIB

    def test_offsets_beyond_four_gib(self, web_server: WebServer, store: Directory) -> None:
        gib = 1024**3
        with open(web_server.root / store.name / "sparse", "wb") as file:
            file.truncate(5 * gib)
            file.seek(4 * gib - 2)
            file.write(b"edge")
        origin = opened(web_server, "json", store)
        version = pinned(origin, "sparse")
        assert version.size == 5 * gib
        assert fetch(origin, version, 4 * gib - 4, 8) == b"\0\0edge\0\0"
        assert fetch(origin, version, 5 * gib - 3, 3) == b"\0\0\0"


@pytest.mark.usefixtures("no_netrc")
class TestDirectories:
    def test_without_an_index_files_are_there_by_name(self, web_server: WebServer, store: Directory) -> None:
        store.put("dir/file", b"hello")
        origin = opened(web_server, "unlisted", store)
        origin.check()
        assert fetch(origin, pinned(origin, "dir/file")) == b"hello"
        assert origin.stat("dir").is_dir
        pages = origin.list_dir("")
        assert [next(pages), next(pages)] == [[], []], "a look-up of one name reads two pages"
        with pytest.raises(PermissionDenied, match="not listed"):
            next(pages)

    def test_a_file_is_no_root(self, web_server: WebServer, store: Directory) -> None:
        store.put("file", b"x")
        origin = open_origin(f"{web_server.endpoint}/html/{store.name.replace(' ', '%20')}/file")
        with pytest.raises(NotFound) as caught:
            origin.check()
        assert caught.value.message == f"{origin.url} is a file"
        assert caught.value.mend == f"name the directory that it lies in, {origin.url.removesuffix('/file')}"
        nothing = open_origin(f"{web_server.endpoint}/html/{store.name.replace(' ', '%20')}/nothing")
        with pytest.raises(NotFound, match="is no directory: name a directory"):
            nothing.check()

    def test_files_that_are_not_given_are_left_out(self, web_server: WebServer, store: Directory) -> None:
        store.put("file", b"x")
        store.make_directory("dir")
        origin = opened(web_server, "closed", store)
        assert set(listing(origin, "")) == {"dir"}
        with pytest.raises(PermissionDenied):
            origin.stat("file")

    def test_a_file_that_became_a_directory(self, web_server: WebServer, store: Directory) -> None:
        store.put("file", b"x")
        origin = opened(web_server, "html", store)
        version = pinned(origin, "file")
        store.delete("file")
        store.make_directory("file")
        with pytest.raises(IsADirectory):
            fetch(origin, version)

    def test_a_file_without_the_right_to_it_any_more(self, web_proxy: Proxy, store: Directory) -> None:
        store.put("file", b"x")
        origin = open_origin(f"{web_proxy.endpoint}/html/{store.name.replace(' ', '%20')}")
        version = pinned(origin, "file")
        web_proxy.set_faults([Fault("status:403", match="GET")])
        with pytest.raises(PermissionDenied):
            fetch(origin, version)


def test_https(no_netrc: pytest.MonkeyPatch, web_server: WebServer, store: Directory, tmp_path: Path) -> None:
    data = random.Random(3).randbytes(MIB)
    store.put("file", data)
    certificates = make_certificates(tmp_path)
    relay = Relay(web_server.endpoint.removeprefix("http://"), tls=certificates.server_context())
    with running(relay):
        url = f"https://{relay.netloc}/html/{store.name.replace(' ', '%20')}"
        with pytest.raises(OriginUnavailable, match="TLS failed"):
            open_origin(url).check()
        no_netrc.setenv("SSL_CERT_FILE", str(certificates.authority))
        origin = open_origin(url)
        origin.check()
        assert fetch(origin, pinned(origin, "file"), 1000, 500_000) == data[1000:501_000]
        assert set(listing(origin, "")) == {"file"}
        origin.close()


class TestCredentials:
    def works(self, origin: Origin) -> bool:
        origin.check()
        return set(listing(origin, "")) == {"file"} and fetch(origin, pinned(origin, "file")) == b"hello"

    @pytest.fixture
    def filled(self, store: Directory) -> Directory:
        store.put("file", b"hello")
        return store

    def test_a_token_of_the_environment(
        self, no_netrc: pytest.MonkeyPatch, web_server: WebServer, filled: Directory
    ) -> None:
        with pytest.raises(CredentialsRefused, match="FUSESTRIPE_HTTP_TOKEN"):
            opened(web_server, "bearer", filled).check()
        no_netrc.setenv("FUSESTRIPE_HTTP_TOKEN", TOKEN)
        assert self.works(opened(web_server, "bearer", filled))
        with pytest.raises(CredentialsRefused):
            opened(web_server, "bearer", filled, anonymous=True).check()
        no_netrc.setenv("FUSESTRIPE_HTTP_TOKEN", "wrong")
        with pytest.raises(CredentialsRefused) as caught:
            opened(web_server, "bearer", filled).check()
        assert "wrong" not in str(caught.value)

    def test_netrc(
        self, no_netrc: pytest.MonkeyPatch, web_server: WebServer, filled: Directory, tmp_path: Path
    ) -> None:
        with pytest.raises(CredentialsRefused, match="netrc"):
            opened(web_server, "basic", filled).check()
        file = tmp_path / "netrc"
        file.write_text(f"machine 127.0.0.1 login {USER} password {PASSWORD}\n")
        no_netrc.setenv("NETRC", str(file))
        assert self.works(opened(web_server, "basic", filled))
        file.write_text(f"machine other.example login {USER} password {PASSWORD}\n")
        with pytest.raises(CredentialsRefused):
            opened(web_server, "basic", filled).check()
        file.write_text("what is this\n")
        with pytest.raises(ConfigError, match="line 1"):
            opened(web_server, "basic", filled)

    def test_a_redirect_to_another_server_takes_no_credentials(
        self, no_netrc: pytest.MonkeyPatch, web_server: WebServer, store: Directory
    ) -> None:
        """As hubs do: the other one refuses whoever shows a token beside the signature."""
        no_netrc.setenv("FUSESTRIPE_HTTP_TOKEN", TOKEN)
        data = random.Random(8).randbytes(MIB)
        store.put("file", data)
        origin = opened(web_server, "hub", store)
        origin.check()
        version = pinned(origin, "file")
        assert fetch(origin, version, 1000, 500_000) == data[1000:501_000]
        store.put("file", b"b" * MIB)
        with pytest.raises(VersionChanged) as caught:
            fetch(origin, version)
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize("path", ["loop", "around"])
    def test_redirects_that_never_end_do(
        self, no_netrc: pytest.MonkeyPatch, web_server: WebServer, path: str
    ) -> None:
        with pytest.raises(OriginError, match="redirects"):
            open_origin(f"{web_server.endpoint}/{path}").stat("file")

    @pytest.mark.parametrize(
        "location", ["ftp://127.0.0.1/x", "http://user:secret@127.0.0.1/x", "http://[/x", "gopher:x"]
    )
    def test_redirects_to_nowhere(
        self, no_netrc: pytest.MonkeyPatch, web_proxy: Proxy, location: str
    ) -> None:
        web_proxy.set_faults([Fault("status:302", headers=(("Location", location),), times=0)])
        with pytest.raises(OriginError, match="redirect") as caught:
            open_origin(web_proxy.endpoint).stat("file")
        assert "secret" not in str(caught.value)


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "word"),
        [
            ("http://user:secret@host/x", "no credentials"),
            ("https://", "names no directory"),
            ("https://host/x?y=z", "names no directory"),
            ("https://host/a/../b", "names no directory"),
            ("https://host:port/x", "no http"),
            ("https://host/%ff", "no http"),
        ],
    )
    def test_bad_ones(self, url: str, word: str) -> None:
        with pytest.raises(ConfigError, match=word) as caught:
            open_origin(url)
        assert caught.value.mend
        assert "secret" not in str(caught.value)

    def test_every_way_to_a_file_leads_to_one_version(
        self, no_netrc: pytest.MonkeyPatch, web_server: WebServer, store: Directory
    ) -> None:
        store.put("a b/file", b"hello")
        whole = open_origin(f"{web_server.endpoint}/html")
        part = open_origin(f"{web_server.endpoint}/html/{store.name.replace(' ', '%20')}/a%20b/")
        version = pinned(part, "file")
        assert pinned(whole, f"{store.name}/a b/file") == version
        assert part.url.endswith("/a%20b")

    def test_no_endpoint(self) -> None:
        with pytest.raises(FusestripeError):
            open_origin("https://host/x", OriginOptions(endpoint="http://other"))
