"""Every store in one form: a real server, where it speaks HTTP with or without a proxy before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fusestripe.origins.base import Origin, OriginOptions
from fusestripe.origins.registry import open_origin
from tests.support.azure_server import ACCOUNT, AzureServer
from tests.support.google_server import GoogleServer
from tests.support.hadoop.store import HdfsDirectory
from tests.support.seaweed import SeaweedServer
from tests.support.web_server import WebServer

__all__ = ["FarSide", "azure_side", "google_side", "hdfs_side", "s3_side", "web_side"]


@dataclass(frozen=True)
class FarSide:
    """``put`` stores a file. ``server`` is the URL of the server alone, which a proxy can stand before.

    ``source`` is the route's URL, ``endpoint`` its setting ("": none); "{server}" in either is the server's
    or the proxy's URL. ``version_header`` is what an answer says its version in.
    """

    server: str
    put: Callable[[str, bytes], None]
    source: str
    endpoint: str = ""
    anonymous: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    version_header: str = "ETag"

    def open(self, server: str = "", *, timeout: float = 30.0) -> Origin:
        """Its origin by way of ``server``. ``environment`` has to be set."""
        where = server or self.server
        options = OriginOptions(
            endpoint=self.endpoint.format(server=where) or None, anonymous=self.anonymous, timeout=timeout
        )
        return open_origin(self.source.format(server=where), options)

    def route(self, path: str, server: str = "") -> str:
        """The same as a route of a TOML file."""
        where = server or self.server
        lines = [f'path = "{path}"', f'source = "{self.source.format(server=where)}"']
        if self.endpoint:
            lines.append(f'endpoint = "{self.endpoint.format(server=where)}"')
        if self.anonymous:
            lines.append("anonymous = true")
        return "\n".join(["[[route]]", *lines, ""])


def s3_side(server: SeaweedServer, bucket: str) -> FarSide:
    """A bucket of SeaweedFS."""
    environment = {name: value for name, value in server.environment.items() if "ENDPOINT" not in name}
    return FarSide(
        server.endpoint,
        lambda key, data: server.put(bucket, key, data),
        f"s3://{bucket}",
        endpoint="{server}",
        environment=environment,
    )


def google_side(server: GoogleServer, bucket: str) -> FarSide:
    """A bucket of fake-gcs-server."""
    return FarSide(
        server.endpoint,
        lambda key, data: server.put(bucket, key, data),
        f"gs://{bucket}",
        endpoint="{server}",
        anonymous=True,
        version_header="X-Goog-Generation",
    )


def azure_side(server: AzureServer, container: str) -> FarSide:
    """A container of Azurite."""
    return FarSide(
        server.endpoint.removesuffix(f"/{ACCOUNT}"),
        lambda key, data: server.put(container, key, data),
        f"az://{container}",
        endpoint="{server}/" + ACCOUNT,
        environment=server.environment,
    )


def web_side(server: WebServer, directory: str) -> FarSide:
    """A directory on nginx, with its index."""
    (server.root / directory).mkdir(parents=True, exist_ok=True)
    return FarSide(
        server.endpoint,
        lambda path, data: server.put(f"{directory}/{path}", data),
        "{server}/html/" + directory,
    )


def hdfs_side(directory: HdfsDirectory) -> FarSide:
    """A directory of HDFS. No HTTP proxy can stand before it."""
    environment = {**directory.cluster.environment, "HADOOP_USER_NAME": "root"}
    return FarSide(directory.cluster.url, directory.put, "{server}" + directory.root, environment=environment)
