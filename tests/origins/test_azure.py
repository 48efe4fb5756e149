"""Azure Blob Storage as an origin, on Azurite."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fusestripe.origins.base import Origin, OriginOptions
from fusestripe.origins.registry import open_origin
from tests.origins.conformance import MIB, ODD_NAMES, KeyConformance, Store, fetch, pinned
from tests.support.azure_server import AzureServer

PREFIX = "some/prefix with blank"
IN_XML = [name for name in ODD_NAMES if "\x01" not in name]
"""Azurite answers 500 to a listing in which there is a character that XML does not have."""


class Blobs:
    """See conformance.Store: the blobs of a container below PREFIX."""

    def __init__(self, server: AzureServer, container: str) -> None:
        self._server, self._container = server, container

    def put(self, path: str, data: bytes) -> None:
        self._server.put(self._container, f"{PREFIX}/{path}", data)

    def put_many(self, items: Mapping[str, bytes]) -> None:
        self._server.put_many(self._container, {f"{PREFIX}/{path}": data for path, data in items.items()})

    def make_directory(self, path: str) -> None:
        self._server.put(self._container, f"{PREFIX}/{path}/", b"")

    def delete(self, path: str) -> None:
        self._server.delete(self._container, f"{PREFIX}/{path}")


@pytest.mark.usefixtures("azure")
class TestConformance(KeyConformance):
    @pytest.fixture
    def store(self, azure_server: AzureServer, azure_container: str) -> Store:
        return Blobs(azure_server, azure_container)

    @pytest.fixture
    def origin(self, store: Store, azure_server: AzureServer, azure_container: str) -> Origin:
        options = OriginOptions(endpoint=azure_server.endpoint)
        return open_origin(f"az://{azure_container}/{PREFIX}", options)

    @pytest.mark.parametrize("name", IN_XML, ids=ascii)
    def test_odd_names(self, store: Store, origin: Origin, name: str) -> None:
        super().test_odd_names(store, origin, name)

    @pytest.mark.timeout(900)
    def test_ten_thousand_files_come_in_pages(self, store: Store, origin: Origin) -> None:
        """Azurite takes some ten milliseconds to store one, and more of them the more there are."""
        super().test_ten_thousand_files_come_in_pages(store, origin)


class FolderBlobs(Blobs):
    """Directories as Hadoop, rclone and hierarchical namespaces leave them in a listing."""

    def make_directory(self, path: str) -> None:
        above = path
        while above:
            folder = {"hdi_isfolder": "true"}
            self._server.put(self._container, f"{PREFIX}/{above}", b"", folder)
            above = above.rpartition("/")[0]


class TestDirectoriesThatAreBlobs(TestConformance):
    @pytest.fixture
    def store(self, azure_server: AzureServer, azure_container: str) -> Store:
        return FolderBlobs(azure_server, azure_container)

    def test_ten_thousand_files_come_in_pages(self, store: Store, origin: Origin) -> None:
        """A thousand with a directory on every page."""
        store.put_many({f"many/file-{number:04}": b"" for number in range(100)})
        store.make_directory("many/file-0050-dir")
        pages = list(origin.list_dir("many"))
        entries = {entry.name: entry.is_dir for page in pages for entry in page}
        assert [name for name, is_dir in entries.items() if is_dir] == ["file-0050-dir"]
        assert len(entries) == 101


@pytest.mark.usefixtures("azure")
def test_offsets_beyond_four_gib(azure_server: AzureServer, azure_container: str) -> None:
    block, times, last = b"begin" + bytes(8 * MIB - 8) + b"end", 640, b"the last"
    azure_server.put_repeated(azure_container, "large", block, times, last)
    origin = open_origin(f"az://{azure_container}", OriginOptions(endpoint=azure_server.endpoint))
    version = pinned(origin, "large")
    assert version.size == 5 * 1024 * MIB + len(last)
    assert fetch(origin, version, 4 * 1024 * MIB - 4, 10) == b"\0endbegin\0"
    assert fetch(origin, version, 5 * 1024 * MIB - 3, 11) == b"endthe last"
