"""Whatever comes from outside is understood, or refused in one line: no parser fails in another way.

Documents are valid ones with bytes changed, cut out, doubled or put in, which reach further than noise does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusestripe.cache.ledger import decode_header, decode_records, encode_header, encode_record
from fusestripe.config import load
from fusestripe.errors import BadAnswer, ConfigError, FusestripeError, OriginError
from fusestripe.origins.azure_listing import parse_blobs
from fusestripe.origins.gcs import parse_listing
from fusestripe.origins.hdfs_settings import parse_url, read_settings
from fusestripe.origins.s3_listing import parse_page
from fusestripe.origins.web_index import links_in
from fusestripe.units import MIB, ObjectVersion, parse_size

S3_PAGE = b"""<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
<IsTruncated>true</IsTruncated><EncodingType>url</EncodingType><NextContinuationToken>t</NextContinuationToken>
<Contents><Key>a%20b</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>"e"</ETag><Size>5</Size>
</Contents><CommonPrefixes><Prefix>c/</Prefix></CommonPrefixes></ListBucketResult>"""
AZURE_PAGE = b"""<?xml version="1.0"?><EnumerationResults><Blobs><Blob><Name>a</Name><Properties>
<Last-Modified>Fri, 02 Jan 2026 03:04:05 GMT</Last-Modified><Etag>0x8</Etag><Content-Length>5</Content-Length>
</Properties></Blob><BlobPrefix><Name>b/</Name></BlobPrefix></Blobs><NextMarker>m</NextMarker>
</EnumerationResults>"""
GCS_PAGE = b"""{"items": [{"name": "a", "size": "5", "generation": "17", "updated": "2026-01-02T03:04:05Z"}],
"prefixes": ["b/"], "nextPageToken": "t"}"""
WEB_PAGE = b"""<html><body><h1>Index of /a/</h1><a href="../">../</a><a href="model.bin">model.bin</a>
<a href="b%20c/">b c/</a><a href='//host/x'>x</a></body></html>"""
WEB_JSON = b"""[{"name": "a", "type": "file", "size": 5}, {"name": "b", "type": "directory"}]"""
TOML = b"""[cache]\ndir = "/c"\nsize = "5GiB"\n[stripes]\nsize = "8MiB"\ncount = -1\n[mount]\ntimeout = 3.5
[[route]]\npath = "/a"\nsource = "s3://b/c"\n[[route]]\npath = "/d"\nsource = "file:///"\n"""
HADOOP = b"""<?xml version="1.0"?><configuration><property><name>fs.defaultFS</name><value>hdfs://ns</value>
</property><property><name>dfs.nameservices</name><value>ns</value></property></configuration>"""

VERSION = ObjectVersion("s3://b", "a/b", 3 * MIB + 5, '"tag"')
LEDGER = encode_header(VERSION, MIB) + b"".join(
    encode_record(bytes.fromhex(VERSION.key), MIB, index, 7 * index) for index in range(4)
)


def read_toml(body: bytes) -> object:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "config.toml"
        path.write_bytes(body)
        return load(str(path), {}, environ={})


def read_hadoop(body: bytes) -> object:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "core-site.xml").write_bytes(body)
        return parse_url("hdfs:///a", read_settings({"HADOOP_CONF_DIR": directory}))


PARSERS: dict[str, tuple[Callable[[bytes], object], bytes, type[FusestripeError]]] = {
    "S3's listing": (parse_page, S3_PAGE, BadAnswer),
    "Azure's listing": (parse_blobs, AZURE_PAGE, BadAnswer),
    "Google's listing": (parse_listing, GCS_PAGE, BadAnswer),
    "an index in HTML": (lambda body: links_in(body, "text/html", "http://h/a/"), WEB_PAGE, OriginError),
    "an index in JSON": (
        lambda body: links_in(body, "application/json", "http://h/a/"),
        WEB_JSON,
        OriginError,
    ),
    "TOML": (read_toml, TOML, ConfigError),
    "Hadoop's settings": (read_hadoop, HADOOP, ConfigError),
}


T = TypeVar("T")


def refused(parse: Callable[[T], object], given_: T, refusal: type[FusestripeError]) -> str | None:
    """What is said of it, or None where it was understood."""
    try:
        parse(given_)
    except refusal as error:
        return str(error)
    return None


def is_one_line(said: str | None) -> bool:
    return said is None or (said != "" and "\n" not in said)


@st.composite
def spoilt(draw: st.DrawFn, document: bytes) -> bytes:
    """``document`` after a few accidents."""
    body = bytearray(document)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(body) - 1)))
        length = draw(st.integers(0, 40))
        piece = draw(st.one_of(st.binary(max_size=6), st.just(bytes(body[at : at + length])), st.just(b"")))
        kept = draw(st.sampled_from([0, length]))
        body[at : at + kept] = piece
    return bytes(body)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=200)
@given(data=st.data())
def test_a_parser_understands_or_refuses_in_one_line(name: str, data: st.DataObject) -> None:
    parse, document, refusal = PARSERS[name]
    parse(document)
    body = data.draw(st.one_of(spoilt(document), st.binary(max_size=200)))
    assert is_one_line(refused(parse, body, refusal))


@settings(max_examples=400)
@given(body=st.one_of(spoilt(LEDGER), st.binary(max_size=300)))
def test_a_ledger_gives_only_what_was_written_whole(body: bytes) -> None:
    header = decode_header(body)
    if header is None:
        return
    assert header.stripe_size > 0
    # A checksum of its own stands in each record: what is changed is not there.
    found = dict(decode_records(header, body))
    if header.version == VERSION and header.stripe_size == MIB:
        assert all(found[index] == 7 * index for index in found)


@given(st.text(max_size=30))
def test_a_size_is_bytes_or_refused(text: str) -> None:
    assert is_one_line(refused(parse_size, text, ConfigError))
