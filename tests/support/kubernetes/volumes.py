"""The volumes of a pod as kubelet lays them out on its node."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.kubernetes.manifests import Manifest
from tests.support.kubernetes.node import Node

__all__ = ["Secrets", "Volumes"]

Secrets = Mapping[str, Mapping[str, str | bytes]]
"""What is in the Secrets of a namespace, by their names."""


class Volumes:
    """Those of the pod ``name``. ``objects`` has its ConfigMaps.

    With ``group`` (fsGroup) that group may read and write all of them but those of a hostPath.
    """

    def __init__(
        self,
        node: Node,
        name: str,
        spec: Manifest,
        objects: Sequence[Manifest],
        secrets: Secrets,
    ) -> None:
        self.directory = node.directory / "pods" / name / "volumes"
        self._node = node
        self._objects = {one["metadata"]["name"]: one for one in objects if one["kind"] == "ConfigMap"}
        self._secrets = secrets
        group: int | None = spec.get("securityContext", {}).get("fsGroup")
        self._paths: dict[str, Path] = {
            volume["name"]: self._lay_out(volume, group) for volume in spec["volumes"]
        }

    def path(self, name: str) -> Path:
        """Where the volume ``name`` is on the node."""
        return self._paths[name]

    def environment(self, container: Manifest) -> dict[str, str]:
        """What ``envFrom`` and ``env`` of ``container`` give it."""
        found: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            if "configMapRef" in source:
                found |= self._objects[source["configMapRef"]["name"]]["data"]
            else:
                reference = source["secretRef"]
                assert reference["name"] in self._secrets or reference.get("optional")
                secret = self._secrets.get(reference["name"], {})
                found |= {key: str(value) for key, value in secret.items()}
        return found | {each["name"]: each["value"] for each in container.get("env", ())}

    def clear(self) -> None:
        """What kubelet does when a pod is gone. Fails where something is still mounted in there."""
        for path in self._paths.values():
            if path.is_relative_to(self.directory):
                if self._is_mounted(path):
                    self._node.run("umount", str(path))
                self._node.run("rm", "-r", "--one-file-system", str(path))

    def _lay_out(self, volume: Manifest, group: int | None) -> Path:
        path = self.directory / str(volume["name"])
        if "hostPath" in volume:
            return self._of_host(volume["hostPath"])
        path.mkdir(parents=True)
        path.chmod(0o777)
        if "configMap" in volume:
            _write(path, self._objects[volume["configMap"]["name"]]["data"], 0o644, group)
        elif "secret" in volume:
            secret = volume["secret"]
            assert secret["secretName"] in self._secrets or secret.get("optional")
            content = self._secrets.get(secret["secretName"], {})
            _write(path, content, secret.get("defaultMode", 0o644), group)
        elif volume["emptyDir"].get("medium") == "Memory":
            self._node.run("mount", "-t", "tmpfs", "-o", "mode=0777", "tmpfs", str(path))
        if group is not None:
            self._node.run("chgrp", str(group), str(path))
            self._node.run("chmod", "g+rwxs", str(path))
        return path

    def _of_host(self, source: Manifest) -> Path:
        path = self._node.directory / str(source["path"]).lstrip("/")
        if source["type"] == "DirectoryOrCreate":
            path.mkdir(parents=True, exist_ok=True)
        assert source["type"] in ("Directory", "DirectoryOrCreate")
        assert path.is_dir(), f"{source['path']} is not on the node"
        return path

    def _is_mounted(self, path: Path) -> bool:
        return any(mount.mountpoint == str(path) for mount in self._node.mounts())


def _write(directory: Path, files: Mapping[str, str | bytes], mode: int, group: int | None) -> None:
    for name, content in files.items():
        path = directory / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode if group is None else mode | 0o040)
        os.chown(path, 0, group or 0)
