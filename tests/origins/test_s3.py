"""S3 as an origin, on a real server, and what passes on the way to it."""

from __future__ import annotations

import gzip
import random
from collections.abc import Mapping

import pytest

from fusestripe.errors import (
    BadAnswer,
    FusestripeError,
    NotFound,
    OriginError,
    OriginUnavailable,
    PermissionDenied,
    VersionChanged,
)
from fusestripe.origins.base import Origin, OriginOptions
from fusestripe.origins.key_listing import ListPage
from fusestripe.origins.registry import open_origin
from fusestripe.units import ObjectVersion
from tests.origins.conformance import KeyConformance, Store, fetch, listing, pinned
from tests.support.proxy import Fault, Proxy
from tests.support.s3_pages import as_xml, listed
from tests.support.seaweed import SeaweedServer

MIB = 1024 * 1024
PREFIX = "some/prefix with blank"


class Keys:
    """See conformance.Store: the keys of a bucket below PREFIX."""

    def __init__(self, server: SeaweedServer, bucket: str) -> None:
        self._server, self._bucket = server, bucket

    def put(self, path: str, data: bytes) -> None:
        self._server.put(self._bucket, f"{PREFIX}/{path}", data)

    def put_many(self, items: Mapping[str, bytes]) -> None:
        self._server.put_many(self._bucket, {f"{PREFIX}/{path}": data for path, data in items.items()})

    def make_directory(self, path: str) -> None:
        self._server.put(self._bucket, f"{PREFIX}/{path}/", b"")

    def delete(self, path: str) -> None:
        self._server.delete(self._bucket, f"{PREFIX}/{path}")


@pytest.mark.usefixtures("aws")
class TestConformance(KeyConformance):
    @pytest.fixture
    def store(self, s3_server: SeaweedServer, s3_bucket: str) -> Store:
        return Keys(s3_server, s3_bucket)

    @pytest.fixture
    def origin(self, store: Store, s3_bucket: str) -> Origin:
        return open_origin(f"s3://{s3_bucket}/{PREFIX}")


@pytest.fixture
def through_proxy(aws: pytest.MonkeyPatch, s3_proxy: Proxy, s3_bucket: str) -> Origin:
    """The bucket's root, by way of the proxy."""
    return open_origin(f"s3://{s3_bucket}", OriginOptions(endpoint=s3_proxy.endpoint, timeout=2.0))


class TestRequests:
    """What things cost, counted on the way."""

    def test_a_listing_is_a_request_a_thousand_keys(
        self, s3_server: SeaweedServer, s3_bucket: str, s3_proxy: Proxy, through_proxy: Origin
    ) -> None:
        s3_server.put_many(s3_bucket, ((f"d{n % 10}/file-{n:05}", b"x") for n in range(2_500)))
        s3_proxy.reset()
        assert sum(len(page) for page in through_proxy.walk("")) == 2_500
        statistics = s3_proxy.statistics()
        assert statistics.counts == {"LIST": statistics.requests}
        assert statistics.requests == 3  # SeaweedFS counts directories among a page's keys
        s3_proxy.reset()
        assert len(listing(through_proxy, "d7")) == 250
        assert s3_proxy.statistics().counts == {"LIST": 1}

    def test_stat_is_one_request(
        self, s3_server: SeaweedServer, s3_bucket: str, s3_proxy: Proxy, through_proxy: Origin
    ) -> None:
        for key in ("file", "dir/inner"):
            s3_server.put(s3_bucket, key, b"x")
        s3_proxy.reset()
        through_proxy.stat("file")
        through_proxy.stat("dir")
        with pytest.raises(NotFound):
            through_proxy.stat("nope")
        assert s3_proxy.statistics().counts == {"LIST": 3}
        through_proxy.stat("")
        assert s3_proxy.statistics().requests == 3

    def test_stat_of_a_name_with_many_siblings_before_its_slash(
        self, s3_server: SeaweedServer, s3_bucket: str, through_proxy: Origin, s3_proxy: Proxy
    ) -> None:
        """The order of S3, in which twenty keys lie between "a" and "a/": more than stat asks for at once."""
        first = as_xml(ListPage([listed("a"), *(listed(f"a!{n:02}") for n in range(15))], [], "more"))
        inside = as_xml(ListPage([listed("a/b")], [], None))
        s3_proxy.set_faults(
            [
                Fault("status:200", match="LIST .*delimiter", body=first, times=0),
                Fault("status:200", match="LIST .*prefix=a%2F", body=inside, times=0),
            ]
        )
        assert through_proxy.stat("a").is_dir

    @pytest.mark.parametrize("name", ["plain", "new\nline", "a b%20+é#?"])
    def test_a_range_is_one_request_with_if_match(
        self, s3_server: SeaweedServer, s3_bucket: str, s3_proxy: Proxy, through_proxy: Origin, name: str
    ) -> None:
        data = random.Random(5).randbytes(3 * MIB)
        s3_server.put(s3_bucket, name, data)
        version = pinned(through_proxy, name)
        s3_proxy.reset()
        assert fetch(through_proxy, version, MIB, MIB) == data[MIB : 2 * MIB]
        [request] = s3_proxy.log()
        assert (request.kind, request.range) == ("GET", f"bytes={MIB}-{2 * MIB - 1}")
        assert s3_proxy.statistics().bytes_sent == MIB

    def test_what_is_stored_encoded_is_read_as_it_is_stored(
        self, s3_server: SeaweedServer, s3_bucket: str, through_proxy: Origin
    ) -> None:
        data = gzip.compress(b"hello" * 1000)
        s3_server.client.put_object(Bucket=s3_bucket, Key="file.gz", Body=data, ContentEncoding="gzip")
        version = pinned(through_proxy, "file.gz")
        assert fetch(through_proxy, version) == data
        assert fetch(through_proxy, version, 10, 20) == data[10:30]

    def test_connections_are_kept(
        self, s3_server: SeaweedServer, s3_bucket: str, s3_proxy: Proxy, through_proxy: Origin
    ) -> None:
        s3_server.put(s3_bucket, "file", b"hello")
        version = pinned(through_proxy, "file")
        for _ in range(20):
            assert fetch(through_proxy, version) == b"hello"
            through_proxy.stat("file")
        assert s3_proxy.statistics().connections <= 4


class TestFaultyData:
    """Never a wrong byte: what a broken way does to a range."""

    @pytest.fixture
    def data(self) -> bytes:
        return random.Random(6).randbytes(4 * MIB)

    @pytest.fixture
    def version(
        self, s3_server: SeaweedServer, s3_bucket: str, through_proxy: Origin, data: bytes
    ) -> ObjectVersion:
        s3_server.put(s3_bucket, "file", data)
        return pinned(through_proxy, "file")

    @pytest.mark.parametrize("action", ["cut:1500000", "reset:1500000"])
    def test_a_body_that_ends_early(
        self, through_proxy: Origin, s3_proxy: Proxy, version: ObjectVersion, data: bytes, action: str
    ) -> None:
        s3_proxy.set_faults([Fault(action, match="GET")])
        buffer = memoryview(bytearray(version.size))
        told = [0]
        with pytest.raises(OriginError) as caught:
            through_proxy.read_range(version, 0, buffer, told.append)
        assert caught.value.transient
        assert told[-1] <= 1_500_000
        assert buffer[: told[-1]] == data[: told[-1]]
        assert fetch(through_proxy, version) == data  # and the next request is well

    @pytest.mark.parametrize("action", ["status:500:InternalError", "status:502"])
    def test_a_server_that_fails(
        self, through_proxy: Origin, s3_proxy: Proxy, version: ObjectVersion, data: bytes, action: str
    ) -> None:
        s3_proxy.set_faults([Fault(action, match="GET")])
        s3_proxy.reset()
        with pytest.raises(OriginUnavailable) as caught:
            fetch(through_proxy, version)
        assert not caught.value.throttled
        assert s3_proxy.statistics().count("GET") == 1, "asking again is not the origin's to decide"
        assert fetch(through_proxy, version) == data

    @pytest.mark.parametrize("action", ["reset", "close"])
    def test_no_answer(
        self, through_proxy: Origin, s3_proxy: Proxy, version: ObjectVersion, data: bytes, action: str
    ) -> None:
        """A connection that had been idle may have been closed meanwhile: one more try, on a fresh one."""
        s3_proxy.set_faults([Fault(action, match="GET")])
        s3_proxy.reset()
        assert fetch(through_proxy, version) == data
        assert s3_proxy.statistics().count("GET") == 2
        s3_proxy.set_faults([Fault(action, match="GET", times=0)])
        s3_proxy.reset()
        with pytest.raises(OriginUnavailable) as caught:
            fetch(through_proxy, version)
        assert not caught.value.throttled
        assert s3_proxy.statistics().count("GET") == 2

    @pytest.mark.parametrize("action", ["status:503:SlowDown", "status:429", "status:503"])
    def test_asked_for_less(
        self, through_proxy: Origin, s3_proxy: Proxy, version: ObjectVersion, action: str
    ) -> None:
        s3_proxy.set_faults([Fault(action, match="GET")])
        with pytest.raises(OriginUnavailable) as caught:
            fetch(through_proxy, version)
        assert caught.value.throttled

    @pytest.mark.parametrize("action", ["stall:30", "stall:30:100000"])
    def test_silence(
        self, through_proxy: Origin, s3_proxy: Proxy, version: ObjectVersion, action: str
    ) -> None:
        s3_proxy.set_faults([Fault(action, match="GET")])
        with pytest.raises(OriginUnavailable):
            fetch(through_proxy, version)

    def test_another_version_in_the_answer(
        self, through_proxy: Origin, s3_proxy: Proxy, version: ObjectVersion
    ) -> None:
        """A server that ignores If-Match."""
        s3_proxy.set_faults([Fault("pass", match="GET", headers=(("ETag", '"other"'),))])
        told: list[int] = []
        with pytest.raises(VersionChanged):
            fetch(through_proxy, version, progress=told.append)
        assert not told

    @pytest.mark.parametrize("span", ["bytes 1-1000/4194304", "bytes 0-998/4194304", "bytes 0-999/4194305"])
    def test_another_range_in_the_answer(
        self, through_proxy: Origin, s3_proxy: Proxy, version: ObjectVersion, span: str
    ) -> None:
        s3_proxy.set_faults([Fault("pass", match="GET", headers=(("Content-Range", span),))])
        told: list[int] = []
        with pytest.raises((BadAnswer, VersionChanged)):
            fetch(through_proxy, version, 0, 1000, told.append)
        assert not told

    def test_the_whole_object_instead_of_a_range(
        self, through_proxy: Origin, s3_proxy: Proxy, version: ObjectVersion
    ) -> None:
        s3_proxy.set_faults(
            [Fault("status:200", match="GET", headers=(("ETag", version.tag),), body="x" * 5000)]
        )
        with pytest.raises(BadAnswer):
            fetch(through_proxy, version, 0, 1000)

    def test_a_body_of_another_length_than_its_head_says(
        self, through_proxy: Origin, s3_proxy: Proxy, version: ObjectVersion
    ) -> None:
        head = (
            ("ETag", version.tag),
            ("Content-Range", f"bytes 0-999/{version.size}"),
            ("Last-Modified", "Sun, 29 Nov 2026 15:31:01 GMT"),
        )
        for length in (998, 1001):
            s3_proxy.set_faults([Fault("status:206", match="GET", headers=head, body="x" * length)])
            with pytest.raises(BadAnswer):
                fetch(through_proxy, version, 0, 1000)

    def test_down_and_up_again(
        self, through_proxy: Origin, s3_proxy: Proxy, version: ObjectVersion, data: bytes
    ) -> None:
        s3_proxy.refuse()
        with pytest.raises(OriginUnavailable):
            fetch(through_proxy, version)
        s3_proxy.accept()
        assert fetch(through_proxy, version) == data


class TestFaultyMetadata:
    @pytest.mark.parametrize(
        "action", ["reset", "close", "cut:100", "status:500:InternalError", "status:503:SlowDown", "stall:30"]
    )
    def test_trouble_is_transient(
        self, s3_server: SeaweedServer, s3_bucket: str, through_proxy: Origin, s3_proxy: Proxy, action: str
    ) -> None:
        s3_server.put(s3_bucket, "file", b"x")
        s3_proxy.set_faults([Fault(action, match="LIST")])
        s3_proxy.reset()
        with pytest.raises(OriginError) as caught:
            through_proxy.stat("file")
        assert caught.value.transient
        assert s3_proxy.statistics().requests == 1
        assert through_proxy.stat("file").size == 1

    def test_retry_after(self, through_proxy: Origin, s3_proxy: Proxy) -> None:
        s3_proxy.set_faults([Fault("status:503:SlowDown", headers=(("Retry-After", "7"),))])
        with pytest.raises(OriginUnavailable) as caught:
            through_proxy.stat("file")
        assert (caught.value.throttled, caught.value.retry_after) == (True, 7.0)

    def test_a_web_page_is_no_listing(self, through_proxy: Origin, s3_proxy: Proxy) -> None:
        s3_proxy.set_faults([Fault("status:200", body="<html>Welcome to nginx</html>")])
        with pytest.raises(BadAnswer, match="S3 endpoint"):
            through_proxy.check()

    def test_a_listing_that_never_ends_does(self, through_proxy: Origin, s3_proxy: Proxy) -> None:
        page = as_xml(ListPage([listed("a")], [], "again"))
        s3_proxy.set_faults([Fault("status:200", body=page, times=0)])
        with pytest.raises(BadAnswer):
            list(through_proxy.list_dir(""))

    def test_keys_that_cannot_be_paths_are_hidden(self, through_proxy: Origin, s3_proxy: Proxy) -> None:
        """SeaweedFS refuses such keys; AWS does not."""
        keys = ["..", ".", "fine", "L" * 256, "a//b", "../../etc/passwd", "dir/..", "dir/x", "m/"]
        flat = as_xml(ListPage([listed(key) for key in keys], [], None))
        top = as_xml(
            ListPage([listed(key) for key in keys if "/" not in key], ["../", "/", "a/", "dir/", "m/"], None)
        )
        s3_proxy.set_faults(
            [
                Fault("status:200", match="LIST .*delimiter", body=top, times=0),
                Fault("status:200", match="LIST", body=flat, times=0),
            ]
        )
        assert set(listing(through_proxy, "")) == {"fine", "a", "dir", "m"}
        assert {path for page in through_proxy.walk("") for path, _ in page} == {"fine", "a", "dir/x", "m"}

    @pytest.mark.parametrize(
        ("fault", "kind", "word"),
        [
            (Fault("status:403:ExpiredToken"), "CredentialsRefused", "expired"),
            (Fault("status:403:RequestTimeTooSkewed"), "CredentialsRefused", "clock"),
            (Fault("status:403:AccessDenied"), "PermissionDenied", "s3:ListBucket"),
            (
                Fault("status:301:PermanentRedirect", headers=(("x-amz-bucket-region", "eu-west-1"),)),
                "OriginError",
                'region = "eu-west-1"',
            ),
            (
                Fault("status:400:AuthorizationHeaderMalformed", headers=(("x-amz-bucket-region", "x-1"),)),
                "CredentialsRefused",
                'region = "x-1"',
            ),
            (Fault("status:404:NoSuchBucket"), "NotFound", "no bucket"),
            (Fault("status:400:Whatever"), "OriginError", "Whatever"),
        ],
        ids=lambda value: value.action if isinstance(value, Fault) else None,
    )
    def test_what_is_said_names_the_mend(
        self, through_proxy: Origin, s3_proxy: Proxy, fault: Fault, kind: str, word: str
    ) -> None:
        s3_proxy.set_faults([fault])
        with pytest.raises(FusestripeError) as caught:
            through_proxy.check()
        assert type(caught.value).__name__ == kind
        assert word in str(caught.value)
        assert caught.value.mend


@pytest.mark.usefixtures("aws")
class TestCheck:
    def test_an_empty_bucket_is_fine(self, s3_bucket: str) -> None:
        origin = open_origin(f"s3://{s3_bucket}")
        origin.check()
        assert listing(origin, "") == {}
        assert list(origin.walk("")) == []

    def test_no_such_bucket(self) -> None:
        with pytest.raises(NotFound, match="no bucket 'not-there'"):
            open_origin("s3://not-there").check()

    def test_no_such_prefix(self, s3_server: SeaweedServer, s3_bucket: str) -> None:
        s3_server.put(s3_bucket, "prefix-too/file", b"x")
        with pytest.raises(NotFound, match="prefix"):
            open_origin(f"s3://{s3_bucket}/prefix").check()

    def test_a_file_is_no_root(self, s3_server: SeaweedServer, s3_bucket: str) -> None:
        s3_server.put(s3_bucket, "dir/model.pt", b"x")
        s3_server.put(s3_bucket, "top", b"x")
        for key, directory in (("dir/model.pt", "/dir"), ("top", "")):
            with pytest.raises(NotFound) as caught:
                open_origin(f"s3://{s3_bucket}/{key}").check()
            assert caught.value.message == f"s3://{s3_bucket}/{key} is a file"
            assert caught.value.mend == f"name the directory that it lies in, s3://{s3_bucket}{directory}"

    def test_the_url_holds_the_endpoint(self, s3_server: SeaweedServer, s3_bucket: str) -> None:
        origin = open_origin(f"s3://{s3_bucket}/a/b/")
        assert origin.url == f"s3://{s3_bucket}/a/b?endpoint=127.0.0.1:{s3_server.port}"

    def test_every_way_to_an_object_leads_to_one_version(
        self, s3_server: SeaweedServer, s3_bucket: str
    ) -> None:
        s3_server.put(s3_bucket, "a/b/file", b"hello")
        whole, part = open_origin(f"s3://{s3_bucket}"), open_origin(f"s3://{s3_bucket}/a/b")
        version = pinned(whole, "a/b/file")
        assert pinned(part, "file") == version
        assert fetch(part, version) == b"hello"

    def test_a_bucket_that_is_not_public(self, s3_bucket: str) -> None:
        with pytest.raises(PermissionDenied, match="give credentials"):
            open_origin(f"s3://{s3_bucket}", OriginOptions(anonymous=True)).check()
