"""Pages that web servers make of directories."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusestripe.errors import OriginError
from fusestripe.origins.base import is_component
from fusestripe.origins.web_index import Link, links_in

BASE = "https://host/some/dir/"
APACHE = b"""<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 3.2 Final//EN"><html><body><h1>Index of /some/dir</h1>
<table><tr><th><a href="?C=N;O=D">Name</a></th><th><a href="?C=M;O=A">Last modified</a></th></tr>
<tr><td><a href="/some/">Parent Directory</a></td></tr><tr><td><a href="a%20b.bin">a b.bin</a></td></tr>
<tr><td><a href="sub/">sub/</a></td></tr></table></body></html>"""
PYTHON = b"""<!DOCTYPE HTML><html lang="en"><body><ul><li><a href="model%23.pt">model#.pt</a></li>
<li><a href="link">link@</a></li><li><a href="sub/">sub/</a></li></ul></body></html>"""
ELSEWHERE = b"""<a href="../">up</a> <a href="/">top</a> <a href="https://other/some/dir/x">x</a>
<a href="a/b">b</a> <a href="mailto:a@b">m</a> <a href="#part">p</a> <a href="./">self</a>
<a href="%2e%2e">dots</a> <a href="%ff">no</a> <a href="a%2Fb">slash</a> <a href="http://[/">odd</a>
<a href>none</a> <a name="n">n</a> <a href="/some/dir/in">in</a> <a href="/some/dirt">dirt</a>
<A HREF='https://host/some/dir/full'>full</A> <a href="//host/some/dir/net">net</a>"""


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (APACHE, [Link("a b.bin", False), Link("sub", True)]),
        (PYTHON, [Link("link", False), Link("model#.pt", False), Link("sub", True)]),
        (ELSEWHERE, [Link("full", False), Link("in", False), Link("net", False)]),
        (b"", []),
        (b"<html>Welcome</html>", []),
        (b'<a href="both">1</a><a href="both/">2</a><a href="both">3</a>', [Link("both", True)]),
    ],
    ids=["apache", "python", "elsewhere", "empty", "welcome", "both"],
)
def test_html(page: bytes, expected: list[Link]) -> None:
    assert links_in(page, "text/html; charset=utf-8", BASE) == expected


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)))
def test_any_name_comes_back(names: list[str]) -> None:
    page = "".join(f'<a href="{quote(name, safe="")}">{len(name)}</a>' for name in names)
    expected = sorted({Link(name, False) for name in names if is_component(name)})
    assert links_in(page.encode(), "text/html", BASE) == expected


def test_json() -> None:
    page = b"""[{"name":"sub", "type":"directory", "mtime":"Sun, 29 Nov 2026 15:31:01 GMT"},
    {"name":"..", "type":"directory", "mtime":""}, {"name":"pipe", "type":"other", "mtime":""},
    {"name":"a#b", "type":"file", "mtime":"Sun, 29 Nov 2026 15:31:01 GMT", "size":5},
    {"name":"a/b", "type":"file", "mtime":"", "size":5}]"""
    assert links_in(page, "application/json", BASE) == [Link("a#b", False), Link("sub", True)]


@pytest.mark.parametrize(
    ("page", "kind"),
    [(b"{}", "application/json"), (b"[", "application/json"), (b"x", "text/plain"), (b"x", "")],
)
def test_what_is_no_index_is_refused_for_good(page: bytes, kind: str) -> None:
    with pytest.raises(OriginError) as caught:
        links_in(page, kind, BASE)
    assert caught.value.mend
    assert not caught.value.transient, "asking again would not help"
    assert "\n" not in str(caught.value)
