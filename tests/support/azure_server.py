"""Azurite, Microsoft's emulator of Azure Blob Storage, from npm, filled by Microsoft's own client."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import TracebackType

import obstore
import urllib3
from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.storage.blob import (
    AccountSasPermissions,
    BlobBlock,
    BlobServiceClient,
    PublicAccess,
    ResourceTypes,
    generate_account_sas,
)
from obstore.store import AzureStore

from tests.support.seaweed import free_ports
from tests.support.server_process import ServerProcess

__all__ = ["ACCOUNT", "KEY", "AzureServer"]

# Azurite's own, which everybody knows:
# https://learn.microsoft.com/azure/storage/common/storage-use-azurite
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class AzureServer:
    """Azurite, which keeps all in memory. Use as a context manager."""

    def __init__(self, directory: Path) -> None:
        (self.port,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{self.port}/{ACCOUNT}"
        self._process = ServerProcess(
            "azurite",
            [
                _program(),
                *("--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--inMemoryPersistence"),
                *("--silent", "--disableTelemetry", "--skipApiVersionCheck"),
            ],
            directory,
        )
        self._process.await_ready(self._answers)
        self.client = BlobServiceClient(self.endpoint, credential=KEY)

    def __enter__(self) -> AzureServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that name the account and its key."""
        return {"AZURE_STORAGE_ACCOUNT": ACCOUNT, "AZURE_STORAGE_KEY": KEY}

    @contextmanager
    def container(self, name: str, *, public: bool = False) -> Iterator[str]:
        """A container that goes away with the block."""
        # The client asks twice where the first answer was lost, and is told that it is done already.
        with suppress(ResourceExistsError):
            self.client.create_container(name, public_access=PublicAccess.CONTAINER if public else None)
        try:
            yield name
        finally:
            with suppress(ResourceNotFoundError):
                self.client.delete_container(name)

    def put(self, container: str, key: str, data: bytes, metadata: Mapping[str, str] | None = None) -> None:
        """Store ``data`` at ``key``."""
        blob = self.client.get_blob_client(container, key)
        blob.upload_blob(data, overwrite=True, metadata=dict(metadata or {}))

    def put_many(self, container: str, items: Mapping[str, bytes]) -> None:
        """Store many small objects, a few at a time; keys as obstore's paths can express them."""
        store = AzureStore(
            container,
            account_name=ACCOUNT,
            account_key=KEY,
            endpoint=self.endpoint,
            client_options={"allow_http": True},
        )
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(lambda pair: obstore.put(store, pair[0], pair[1]), items.items()):
                pass

    def put_repeated(self, container: str, key: str, block: bytes, times: int, last: bytes) -> None:
        """A large blob of few bytes: ``block`` as often as that, and ``last`` behind."""
        blob = self.client.get_blob_client(container, key)
        for name, data in (("body", block), ("tail", last)):
            blob.stage_block(name, data)
        blob.commit_block_list([BlobBlock(name) for name in ["body"] * times + ["tail"]])

    def delete(self, container: str, key: str) -> None:
        """Delete the object at ``key``."""
        self.client.get_blob_client(container, key).delete_blob()

    def sas(self, *, read: bool = True, listing: bool = True) -> str:
        """A shared access signature for the account's objects."""
        return generate_account_sas(
            ACCOUNT,
            KEY,
            ResourceTypes(container=True, object=True),
            AccountSasPermissions(read=read, list=listing),
            datetime.now(timezone.utc) + timedelta(hours=1),
        )

    def close(self) -> None:
        """Stop the server."""
        self._process.close()

    def _answers(self) -> bool:
        try:
            return urllib3.request("GET", self.endpoint, retries=False).status in (400, 403)
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError from error


def _program() -> str:
    """Path of azurite-blob: where tests/support/environment.sh installs it, else on PATH."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    installed = Path(cache) / "fusestripe-dev" / "azurite" / "node_modules" / ".bin"
    found = shutil.which("azurite-blob", path=f"{installed}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if found is None:
        raise FileNotFoundError("azurite-blob is not installed: tests/run.sh brings it")
    return found
