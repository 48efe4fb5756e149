"""What a web server's page about a directory lists: links in HTML, or nginx's JSON. Pure."""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit

import msgspec

from fusestripe.errors import OriginError
from fusestripe.origins.base import is_path

__all__ = ["Link", "links_in"]


class Link(msgspec.Struct, frozen=True, order=True):
    """A name directly below the directory. ``is_dir`` by the "/" at its end, as every server writes it."""

    name: str
    is_dir: bool


def links_in(body: bytes, content_type: str, base: str) -> list[Link]:
    """The names in ``body``, the page at the URL ``base``, which ends in "/"; each once, sorted.

    Links that lead anywhere else than directly below are none of them: the parent, the orders of a table.
    Raises OriginError where the page is neither HTML nor nginx's JSON.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json":
        found = _in_json(body)
    elif kind in ("text/html", "application/xhtml+xml"):
        found = _in_html(body.decode("utf-8", "replace"), base)
    else:
        raise OriginError(f"the server's page about a directory is {kind or 'of no type'}", mend=_MEND)
    directories = {link.name for link in found if link.is_dir}
    return sorted({link for link in found if link.is_dir or link.name not in directories})


_MEND = "have it send HTML with links, or nginx's autoindex_format json"


class _Item(msgspec.Struct, frozen=True):
    """https://nginx.org/en/docs/http/ngx_http_autoindex_module.html"""

    name: str
    type: str


def _in_json(body: bytes) -> set[Link]:
    try:
        items = msgspec.json.decode(body, type=list[_Item])
    except msgspec.DecodeError as error:
        raise OriginError("the server's JSON about a directory is not nginx's", mend=_MEND) from error
    kinds = {"file": False, "directory": True}
    return {
        Link(item.name, kinds[item.type])
        for item in items
        if item.type in kinds and "/" not in item.name and is_path(item.name)
    }


def _in_html(text: str, base: str) -> set[Link]:
    parser = _Links()
    parser.feed(text)
    parser.close()
    return {link for href in parser.targets if (link := _below(href, base)) is not None}


def _below(href: str, base: str) -> Link | None:
    """What ``href`` names directly below ``base``; None for anything else."""
    try:
        target, root = urlsplit(urljoin(base, href)), urlsplit(base)
    except ValueError:
        return None
    if target.query or target.fragment or target.netloc != root.netloc:
        return None
    if not target.path.startswith(root.path):
        return None
    rest = target.path[len(root.path) :]
    try:
        name = unquote(rest.removesuffix("/"), errors="strict")
    except UnicodeDecodeError:
        return None
    return Link(name, rest.endswith("/")) if "/" not in name and is_path(name) else None


class _Links(HTMLParser):
    """Collects where the page's links lead."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See HTMLParser."""
        if tag == "a":
            self.targets.extend(value for name, value in attrs if name == "href" and value)
