"""S3 listings: the XML of ListObjectsV2. Pure."""

from __future__ import annotations

from urllib.parse import unquote_plus
from xml.etree import ElementTree

from fusestripe.errors import BadAnswer
from fusestripe.origins.key_listing import ListedObject, ListPage, byte_count
from fusestripe.origins.timestamps import nanoseconds_of

__all__ = ["parse_page"]


def parse_page(body: bytes) -> ListPage:
    """The page in ``body``, an answer of ListObjectsV2. Raises BadAnswer where it is none.

    https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
    """
    try:
        root = ElementTree.fromstring(body)
        if _local(root.tag) != "ListBucketResult":
            raise BadAnswer(f"the server answered <{_local(root.tag)[:40]}> to a listing", mend=_NOT_S3)
        return _page(root)
    except (ElementTree.ParseError, UnicodeDecodeError) as error:
        raise BadAnswer("the server's listing is not XML", mend=_NOT_S3) from error
    except (KeyError, ValueError) as error:
        raise BadAnswer(f"the server's listing lacks or garbles {error}", mend=_NOT_S3) from error


_NOT_S3 = "is this an S3 endpoint?"


def _page(root: ElementTree.Element) -> ListPage:
    fields: dict[str, str] = {}
    contents: list[dict[str, str]] = []
    prefixes: list[str] = []
    for child in root:
        tag = _local(child.tag)
        if tag == "Contents":
            contents.append({_local(item.tag): item.text or "" for item in child})
        elif tag == "CommonPrefixes":
            prefixes.extend(item.text or "" for item in child if _local(item.tag) == "Prefix")
        else:
            fields[tag] = child.text or ""
    encoded = fields.get("EncodingType") == "url"
    truncated = fields.get("IsTruncated", "false").strip() == "true"
    token = fields.get("NextContinuationToken")
    if truncated and not token:
        raise ValueError("NextContinuationToken")
    return ListPage(
        [_listed(item, encoded) for item in contents],
        [_decoded(prefix, encoded) for prefix in prefixes],
        token if truncated else None,
    )


def _listed(item: dict[str, str], encoded: bool) -> ListedObject:
    size = byte_count(item["Size"])
    if not item["ETag"]:
        raise ValueError("ETag")
    return ListedObject(
        _decoded(item["Key"], encoded), size, nanoseconds_of(item["LastModified"]), item["ETag"]
    )


def _decoded(key: str, encoded: bool) -> str:
    """S3 writes a blank as "+" where it encodes (botocore decodes it so too)."""
    return unquote_plus(key, errors="strict") if encoded else key


def _local(tag: str) -> str:
    """A tag without its namespace; some servers leave that out."""
    return tag.rpartition("}")[2]
