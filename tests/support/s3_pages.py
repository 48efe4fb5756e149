"""How an S3 server pages its keys, as a model, and the XML it answers with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote_plus
from xml.sax.saxutils import escape

from fusestripe.origins.key_listing import ListedObject, ListPage

__all__ = ["as_xml", "listed", "pages_of"]


def listed(key: str) -> ListedObject:
    """A key with made-up attributes that depend on it alone."""
    return ListedObject(key, len(key), 1_700_000_000 * 10**9, f'"{len(key):032x}"')


def pages_of(
    keys: Sequence[str], prefix: str, delimiter: str, page_keys: int, *, tree_order: bool = False
) -> Iterator[ListPage]:
    """The pages of ListObjectsV2 for a bucket of ``keys``: in the order of S3 (by bytes), or of a tree.

    In the order of a tree, as SeaweedFS has it, "a/b" comes before "a!".
    """
    rows: dict[str, ListedObject | None] = {}
    for key in sorted(set(keys), key=lambda key: key.split("/") if tree_order else key.encode()):
        if not key.startswith(prefix):
            continue
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        rows[key if cut < 0 else key[: cut + 1]] = listed(key) if cut < 0 else None
    items = list(rows.items())
    for start in range(0, len(items) or 1, page_keys):
        part = items[start : start + page_keys]
        yield ListPage(
            [found for _, found in part if found is not None],
            [name for name, found in part if found is None],
            str(start) if start + page_keys < len(items) else None,
        )


def as_xml(page: ListPage, *, encoded: bool = True) -> str:
    """``page`` as AWS writes it."""

    def text(key: str) -> str:
        return quote_plus(key, safe="/") if encoded else escape(key)

    contents = "".join(
        f"<Contents><Key>{text(found.key)}</Key><LastModified>2023-11-14T22:13:20.000Z</LastModified>"
        f"<ETag>{escape(found.etag)}</ETag><Size>{found.size}</Size></Contents>"
        for found in page.objects
    )
    prefixes = "".join(
        f"<CommonPrefixes><Prefix>{text(key)}</Prefix></CommonPrefixes>" for key in page.prefixes
    )
    token = f"<NextContinuationToken>{page.next_token}</NextContinuationToken>" if page.next_token else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>{'true' if page.next_token else 'false'}</IsTruncated>{token}"
        f"{'<EncodingType>url</EncodingType>' if encoded else ''}{contents}{prefixes}</ListBucketResult>"
    )
