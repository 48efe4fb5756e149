"""One TOML file, one tree: S3, Google, Azure and the web beside each other, each on its real server."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.support.azure_server import AzureServer
from tests.support.far_sides import FarSide, azure_side, google_side, s3_side, web_side
from tests.support.google_server import GoogleServer
from tests.support.mounted import mounted
from tests.support.seaweed import SeaweedServer
from tests.support.web_server import WebServer

ROUTES = ("models", "gcs", "azure", "hub")
STRIPE = "1MiB"
ODD = "step 1/wéights #50%+~[a].bin"


@pytest.fixture
def far_sides(
    s3_server: SeaweedServer,
    s3_bucket: str,
    google_server: GoogleServer,
    google_bucket: str,
    azure_server: AzureServer,
    azure_container: str,
    web_server: WebServer,
    tmp_path: Path,
) -> Mapping[str, FarSide]:
    """An empty place in each store, by the name of its route."""
    return {
        "models": s3_side(s3_server, s3_bucket),
        "gcs": google_side(google_server, google_bucket),
        "azure": azure_side(azure_server, azure_container),
        "hub": web_side(web_server, f"hub-{s3_bucket}"),
    }


class Tree:
    """The stores as one tree. Whenever it is mounted, the cache is the same."""

    def __init__(self, far_sides: Mapping[str, FarSide], directory: Path) -> None:
        self._far_sides = far_sides
        self._directory = directory
        self._config = directory / "config.toml"
        self._config.write_text(
            "\n".join(side.route(f"/{name}") for name, side in far_sides.items()), encoding="utf-8"
        )

    def put(self, path: str, data: bytes) -> None:
        """The same file in every store."""
        for side in self._far_sides.values():
            side.put(path, data)

    def mount(self) -> Any:
        environment: dict[str, str] = {}
        for side in self._far_sides.values():
            environment |= side.environment
        return mounted(
            self._config,
            self._directory / "mnt",
            cache_dir=self._directory / "cache",
            environment=environment,
            stripe_size=STRIPE,
        )


@pytest.fixture
def tree(far_sides: Mapping[str, FarSide], tmp_path: Path) -> Tree:
    return Tree(far_sides, tmp_path)


def test_one_tree(tree: Tree) -> None:
    """The same names, sizes and bytes from each store, cold and warm."""
    data = np.random.default_rng(3).bytes(5 * 1024 * 1024 + 77)
    for path, content in ((ODD, data), ("step 1/empty", b""), ("step 2/small", b"hello")):
        tree.put(path, content)
    digest = hashlib.md5(data).hexdigest()
    for _ in ("cold", "warm"):
        with tree.mount() as mount:
            assert sorted(os.listdir(mount.path)) == sorted(ROUTES)
            for route in ROUTES:
                root = mount.path / route
                found = {
                    str(path.relative_to(root)): path.stat().st_size
                    for path in root.rglob("*")
                    if path.is_file()
                }
                assert found == {ODD: len(data), "step 1/empty": 0, "step 2/small": 5}, route
                assert hashlib.md5((root / ODD).read_bytes()).hexdigest() == digest, route
                assert (root / "step 1/empty").read_bytes() == b""
                with pytest.raises(FileNotFoundError):
                    (root / "step 3").stat()
                with pytest.raises(OSError, match="Read-only"):
                    (root / "new").write_bytes(b"x")


def test_a_directory_that_a_web_server_does_not_list(web_server: WebServer, tmp_path: Path) -> None:
    """What is in it can be opened by name; asking what there is fails."""
    data = np.random.default_rng(5).bytes(2 * 1024 * 1024)
    web_server.put("unlisted tree/run/model", data)
    source = f"{web_server.endpoint}/unlisted/unlisted%20tree"
    with mounted(source, tmp_path / "mnt", cache_dir=tmp_path / "cache", complaints=True) as mount:
        assert (mount.path / "run/model").read_bytes() == data
        with pytest.raises(FileNotFoundError):
            (mount.path / "run/other").stat()
        with pytest.raises(PermissionError):
            os.listdir(mount.path / "run")


def test_safetensors_and_numpy(tree: Tree, tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    tensors: dict[str, np.ndarray[Any, Any]] = {
        "large": random.standard_normal((1024, 1024), dtype=np.float32),
        "ids": random.integers(0, 2**60, 100_001),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    np.save(tmp_path / "array.npy", tensors["large"])
    for name in ("model.safetensors", "array.npy"):
        tree.put(f"run/{name}", (tmp_path / name).read_bytes())
    with tree.mount() as mount:
        for route in ROUTES:
            loaded = load_file(mount.path / route / "run/model.safetensors")
            assert loaded.keys() == tensors.keys()
            for name, tensor in tensors.items():
                assert loaded[name].tobytes() == tensor.tobytes(), (route, name)
            mapped = np.load(mount.path / route / "run/array.npy", mmap_mode="r")
            assert mapped.tobytes() == tensors["large"].tobytes(), route
            del mapped, loaded


@pytest.mark.torch
def test_torch_load_is_bit_equal_from_each(tree: Tree, tmp_path: Path) -> None:
    import torch

    generator = torch.Generator().manual_seed(7)
    state = {
        "large": torch.randn(1500, 1111, generator=generator),
        "half": torch.randn(300, 1000, generator=generator).to(torch.bfloat16),
        "ids": torch.randint(0, 2**60, (100_001,), generator=generator),
    }
    torch.save(state, tmp_path / "model.pt")
    tree.put("run/model.pt", (tmp_path / "model.pt").read_bytes())
    for _ in ("cold", "warm"):
        with tree.mount() as mount:
            for route in ROUTES:
                for mmap in (False, True):
                    path = mount.path / route / "run/model.pt"
                    loaded = torch.load(path, weights_only=True, mmap=mmap)
                    assert loaded.keys() == state.keys()
                    for name, tensor in state.items():
                        same = loaded[name].view(torch.uint8).equal(tensor.view(torch.uint8))
                        assert same, (route, name, mmap)
                    del loaded
