"""The manifests of mount/kubernetes as the API server would get them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

__all__ = ["KUBERNETES", "Manifest", "build", "one", "own_overlay"]

Manifest = dict[str, Any]
KUBERNETES = Path(__file__).parents[3] / "mount" / "kubernetes"


def build(directory: Path) -> list[Manifest]:
    """What `kubectl apply -k` would send of ``directory``."""
    command = [_kustomize(), "build", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.safe_load_all(done.stdout))


def one(manifests: Sequence[Manifest], kind: str, name: str = "") -> Manifest:
    """The only one of its ``kind`` whose name begins with ``name``."""
    (found,) = (
        manifest
        for manifest in manifests
        if manifest["kind"] == kind and manifest["metadata"]["name"].startswith(name)
    )
    return found


def own_overlay(
    directory: Path,
    base: str,
    components: Sequence[str],
    files: Mapping[str, str],
    environment: Mapping[str, str],
) -> list[Manifest]:
    """What comes of base and components with ``files`` (config.toml) and an ``environment`` of one's own."""
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_text(content)
    (directory / "environment").write_text("".join(f"{key}={value}\n" for key, value in environment.items()))
    here = os.path.relpath(KUBERNETES, directory.resolve())
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{here}/base/{base}"],
        "components": [f"{here}/components/{component}" for component in components],
        "configMapGenerator": [
            {"name": "fusestripe-config", "behavior": "merge", "files": list(files)},
            {"name": "fusestripe-environment", "behavior": "merge", "envs": ["environment"]},
        ],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return build(directory)


def _kustomize() -> str:
    """Where tests/support/environment.sh installs it, else on PATH."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    installed = Path(cache) / "fusestripe-dev" / "kustomize"
    found = shutil.which("kustomize", path=f"{installed}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if found is None:
        raise FileNotFoundError("kustomize is not installed: tests/run.sh brings it")
    return found
