"""One TOML file, one tree: HDFS, S3, Google, Azure and the web beside each other, each on its real server."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fusestripe
from tests.support.azure_server import AzureServer
from tests.support.far_sides import FarSide, azure_side, google_side, hdfs_side, s3_side, web_side
from tests.support.google_server import GoogleServer
from tests.support.hadoop.store import HdfsDirectory
from tests.support.mounted import Mounted, mounted
from tests.support.seaweed import SeaweedServer
from tests.support.web_server import WebServer

ROUTES = ("ckpt", "models", "gcs", "azure", "hub")
STRIPE = "1MiB"
ODD = "step 1/wéights #50%+~[a].bin"


@pytest.fixture
def far_sides(
    hdfs_directory: HdfsDirectory,
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
        "ckpt": hdfs_side(hdfs_directory),
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

    def mount(self, *, complaints: bool = False, **settings: Any) -> AbstractContextManager[Mounted]:
        environment: dict[str, str] = {}
        for side in self._far_sides.values():
            environment |= side.environment
        return mounted(
            self._config,
            self._directory / "mnt",
            cache_dir=self._directory / "cache",
            environment=environment,
            complaints=complaints,
            stripe_size=STRIPE,
            **settings,
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


def test_prefetch_brings_all_of_every_store(tree: Tree) -> None:
    """After it no store is asked for a byte, in this mount or the next."""
    random = np.random.default_rng(6)
    files = {"run/a": random.bytes(3 * 1024 * 1024 + 1), "run/deep/b": random.bytes(1000), "empty": b""}
    for path, content in files.items():
        tree.put(path, content)
    with tree.mount() as mount:
        reports = fusestripe.prefetch(mount.path)
        wanted = {str(mount.path / route / path): len(files[path]) for route in ROUTES for path in files}
        assert {report.path: report.size for report in reports if report.state == "done"} == wanted
        asked = mount.status()["origin"]["bytes"]
        assert asked == sum(map(len, files.values())) * len(ROUTES)
        for path in wanted:
            assert Path(path).read_bytes() == files["/".join(Path(path).relative_to(mount.path).parts[1:])]
        assert mount.status()["origin"]["bytes"] == asked
    with tree.mount() as mount:
        assert {report.state for report in fusestripe.prefetch(mount.path, check=True)} == {"done"}
        assert mount.status()["origin"]["bytes"] == 0


def test_a_file_that_is_replaced_while_it_is_open(tree: Tree) -> None:
    """ESTALE from each store for what the handle does not have yet; the next open has the new file."""
    random = np.random.default_rng(8)
    old, new = random.bytes(24 * 1024 * 1024), random.bytes(3 * 1024 * 1024)
    tree.put("run/model", old)
    with tree.mount(complaints=True, stripe_count=2) as mount:
        paths = [mount.path / route / "run/model" for route in ROUTES]
        descriptors = [os.open(path, os.O_RDONLY) for path in paths]
        try:
            for descriptor in descriptors:
                assert os.pread(descriptor, 4096, 0) == old[:4096]
            tree.put("run/model", new)
            for path, descriptor in zip(paths, descriptors, strict=True):
                with pytest.raises(OSError, match=r"Errno \d+") as caught:
                    os.pread(descriptor, 4096, 20 * 1024 * 1024)
                assert caught.value.errno == errno.ESTALE, path
                assert path.read_bytes() == new
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        assert all("run/model" in line for line in mount.complaints())


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


def test_a_name_that_an_index_leaves_out(web_server: WebServer, tmp_path: Path) -> None:
    """nginx lists no name that begins with a dot, and gives what has one."""
    for path in (".cache/file", "run/.hidden", "run/shown"):
        web_server.put(f"dotted/{path}", path.encode())
    source = f"{web_server.endpoint}/html/dotted"
    with mounted(source, tmp_path / "mnt", cache_dir=tmp_path / "cache") as mount:
        assert os.listdir(mount.path / "run") == ["shown"]
        for path in (".cache/file", "run/.hidden", "run/shown"):
            assert (mount.path / path).read_bytes() == path.encode()
        assert not (mount.path / "run/.other").exists()


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
