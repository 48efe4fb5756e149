"""A directory of a test cluster, written to by Hadoop's own client."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.hadoop.cluster import HdfsCluster

__all__ = ["HdfsDirectory"]


class HdfsDirectory:
    """See conformance.Store. ``root`` is absolute."""

    def __init__(self, cluster: HdfsCluster, root: str) -> None:
        self.cluster = cluster
        self.root = root
        self.shell = cluster.shell
        self.shell("make-directory", root)

    @property
    def url(self) -> str:
        """Of this directory."""
        return self.cluster.url + self.root

    def path(self, path: str) -> str:
        """Absolute in the cluster."""
        return f"{self.root}/{path}"

    def put(self, path: str, data: bytes) -> None:
        """Create or replace a file."""
        self.shell.put(self.path(path), data)

    def put_many(self, items: Mapping[str, bytes]) -> None:
        """Many small files, one replica of each."""
        fields: list[str | bytes] = []
        for path, data in items.items():
            fields += (self.path(path), data)
        self.shell("put-many", *fields)

    def make_directory(self, path: str) -> None:
        """With its parents."""
        self.shell("make-directory", self.path(path))

    def delete(self, path: str) -> None:
        """A file, or a tree."""
        assert self.shell("delete", self.path(path)) == "true"
