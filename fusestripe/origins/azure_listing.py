"""Azure's listings: the XML of List Blobs. Pure.

A directory of its own (of a hierarchical namespace, or the marker that Hadoop and rclone leave) is a key that
ends in "/".
"""

from __future__ import annotations

from urllib.parse import unquote
from xml.etree import ElementTree

from fusestripe.errors import BadAnswer
from fusestripe.origins.key_listing import ListedObject, ListPage, byte_count
from fusestripe.origins.timestamps import nanoseconds_of_http_date

__all__ = ["parse_blobs"]

_NOT_AZURE = "is this an Azure Blob endpoint?"


def parse_blobs(body: bytes) -> ListPage:
    """The page in ``body``, an answer of List Blobs. Raises BadAnswer where it is none.

    https://learn.microsoft.com/rest/api/storageservices/list-blobs
    """
    try:
        root = ElementTree.fromstring(body)
        if root.tag != "EnumerationResults":
            raise BadAnswer(f"the server answered <{root.tag[:40]}> to a listing", mend=_NOT_AZURE)
        return _page(root)
    except (ElementTree.ParseError, UnicodeDecodeError) as error:
        raise BadAnswer("the server's listing is not XML", mend=_NOT_AZURE) from error
    except ValueError as error:
        raise BadAnswer(f"the server's listing lacks or garbles {error}", mend=_NOT_AZURE) from error


def _page(root: ElementTree.Element) -> ListPage:
    delimited = bool(root.findtext("Delimiter"))
    objects: list[ListedObject] = []
    prefixes = [_name(found) for found in root.iterfind("Blobs/BlobPrefix")]
    for blob in root.iterfind("Blobs/Blob"):
        listed = _listed(blob)
        if delimited and listed.key.endswith("/") and _is_directory(blob):
            prefixes.append(listed.key)
        else:
            objects.append(listed)
    return ListPage(objects, prefixes, root.findtext("NextMarker") or None)


def _listed(blob: ElementTree.Element) -> ListedObject:
    size = byte_count(_text(blob, "Properties/Content-Length"))
    slash = "/" if _is_directory(blob) else ""
    etag = _text(blob, "Properties/Etag").strip('"')
    mtime = nanoseconds_of_http_date(_text(blob, "Properties/Last-Modified"))
    return ListedObject(_name(blob).rstrip(slash) + slash, size, mtime, f'"{etag}"')


def _is_directory(blob: ElementTree.Element) -> bool:
    """https://learn.microsoft.com/azure/storage/blobs/data-lake-storage-known-issues tells of both ways."""
    return (
        blob.findtext("Properties/ResourceType") == "directory"
        or (blob.findtext("Metadata/hdi_isfolder") or "").lower() == "true"
    )


def _name(found: ElementTree.Element) -> str:
    """From version 2021-02-12 on a name that XML cannot hold comes percent-encoded and says so."""
    name = found.find("Name")
    if name is None or name.text is None:
        raise ValueError("Name")
    return unquote(name.text, errors="strict") if name.get("Encoded") == "true" else name.text


def _text(found: ElementTree.Element, path: str) -> str:
    text = found.findtext(path)
    if not text:
        raise ValueError(path.rpartition("/")[2])
    return text
