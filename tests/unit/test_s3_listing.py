"""S3 listings against a model of the rule that the module's docstring states."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fusestripe.errors import BadAnswer
from fusestripe.origins.base import Entry, is_component
from fusestripe.origins.key_listing import ListPage, children, tree
from fusestripe.origins.s3_listing import parse_page
from tests.support.s3_pages import as_xml, listed, pages_of

LONG = "L" * 256
components = st.sampled_from(
    ["a", "b", "a!", "a-", "a0", "b.bin", "é", "\n", "", ".", "..", LONG, "a b", "+%20"]
)
keys = st.lists(st.lists(components, min_size=1, max_size=4).map("/".join).filter(bool), max_size=25)
page_sizes = st.integers(1, 6)


def model(keys: list[str]) -> tuple[set[str], set[str]]:
    """The files and the directories that ``keys`` make."""
    files: set[str] = set()
    directories = {""}
    for key in keys:
        path: list[str] = []
        for component in key.split("/"):
            if path:
                directories.add("/".join(path))
            if not is_component(component):
                break
            path.append(component)
        else:
            files.add("/".join(path))
    return files - directories, directories


def parent(path: str) -> str:
    return path.rpartition("/")[0]


@given(keys, page_sizes, st.booleans())
@example(["a", "a!", "a-", "a/b"], 1, False)
@example(["a", "a/b", "a!"], 1, True)
@example(["/a", "+%20/a", "+%20"], 2, True)
@example(["a//b", "a"], 2, False)
def test_a_directory_shows_what_the_model_says(keys: list[str], page_size: int, tree_order: bool) -> None:
    files, directories = model(keys)
    for directory in directories:
        prefix = directory + "/" if directory else ""
        pages = list(children(pages_of(keys, prefix, "/", page_size, tree_order=tree_order), prefix))
        assert all(pages), "an empty page is no page"
        found = [entry for page in pages for entry in page]
        names = [entry.name for entry in found]
        assert len(names) == len(set(names))
        shown = {(prefix + entry.name, entry.is_dir) for entry in found}
        expected = {(path, False) for path in files if parent(path) == directory}
        expected |= {(path, True) for path in directories if path and parent(path) == directory}
        assert shown == expected


@given(keys, page_sizes, st.booleans())
@example(["d/.", "d/a"], 1, False)
@example(["d/a", "d/a//x"], 1, False)
@example(["a", "a!", "a/b"], 1, False)
def test_a_tree_shows_what_the_model_says(keys: list[str], page_size: int, tree_order: bool) -> None:
    files, directories = model(keys)
    for directory in directories:
        prefix = directory + "/" if directory else ""
        found = [
            item
            for page in tree(pages_of(keys, prefix, "", page_size, tree_order=tree_order), prefix)
            for item in page
        ]
        paths = [path for path, _ in found]
        assert len(paths) == len(set(paths))
        everything = files | directories
        empty = {
            path
            for path in directories
            if path and not any(other.startswith(path + "/") for other in everything)
        }
        expected = {(path[len(prefix) :], False) for path in files if path.startswith(prefix)}
        expected |= {(path[len(prefix) :], True) for path in empty if path.startswith(prefix)}
        assert {(path, entry.is_dir) for path, entry in found} == expected
        assert all(entry.name == path.rpartition("/")[2] for path, entry in found)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), max_size=8))
def test_any_key_survives_the_encoding(keys: list[str]) -> None:
    page = ListPage([listed(key) for key in keys], [key + "/" for key in keys], "next token/+=")
    assert parse_page(as_xml(page).encode()) == page


def test_a_server_that_does_not_encode() -> None:
    page = ListPage([listed("a+b %20é")], ["p&q/"], None)
    assert parse_page(as_xml(page, encoded=False).encode()) == page


def test_attributes_of_a_recorded_answer() -> None:
    body = b"""<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix></Prefix><KeyCount>1</KeyCount>
<MaxKeys>1000</MaxKeys><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated><Contents><Key>a+b/c%2Bd</Key>
<LastModified>2026-11-29T15:31:01.250Z</LastModified><ETag>&quot;9a628eb649bed412956ab87485bdd32d-32&quot;</ETag>
<Size>536870912</Size><StorageClass>STANDARD</StorageClass></Contents></ListBucketResult>"""
    [found] = parse_page(body).objects
    assert found.key == "a b/c+d"
    assert found.entry("c+d") == Entry(
        "c+d",
        is_dir=False,
        size=536870912,
        mtime_ns=1795966261_250000000,
        tag='"9a628eb649bed412956ab87485bdd32d-32"',
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><body>Welcome</body></html>",
        b"not xml",
        as_xml(ListPage([listed("a")], [], None)).encode()[:-30],
        as_xml(ListPage([listed("a")], [], None)).replace("<Size>1<", "<Size>-1<").encode(),
        as_xml(ListPage([listed("a")], [], None)).replace("<Size>1<", "<Size>x<").encode(),
        as_xml(ListPage([listed("a")], [], None)).replace("<Size>1<", f"<Size>{2**63}<").encode(),
        as_xml(ListPage([listed("a")], [], None)).replace("<Size>1</Size>", "").encode(),
        as_xml(ListPage([listed("a")], [], None)).replace("<Key>a</Key>", "<Key>%FF</Key>").encode(),
        as_xml(ListPage([listed("a")], [], None)).replace("2023-11-14T", "yesterday ").encode(),
        as_xml(ListPage([], [], "t")).replace("NextContinuationToken", "Other").encode(),
    ],
)
def test_what_is_no_listing_is_a_bad_answer(body: bytes) -> None:
    with pytest.raises(BadAnswer) as caught:
        parse_page(body)
    assert "\n" not in str(caught.value)
