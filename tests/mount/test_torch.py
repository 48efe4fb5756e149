"""What training loads: every loader gives through the mount the bits it gives from disk, cold and warm.

Torch is large, so these tests have the marker ``torch``: without the extra, leave them out by name with
``pytest -m "not torch"``. Where they run, a missing torch fails them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from tests.support.mounted import mounted
from tests.support.proxy import Proxy
from tests.support.seaweed import SeaweedServer

pytestmark = [
    pytest.mark.torch,
    # What no_dist=True asks for, torch warns of.
    pytest.mark.filterwarnings(
        "ignore:torch.distributed is disabled, unavailable or uninitialized:UserWarning"
    ),
]

MIB = 1024 * 1024
STRIPE = "1MiB"

Bits: TypeAlias = tuple[str, tuple[int, ...], bytes]
"""A tensor as dtype, shape and bytes: NaNs too are equal only to the same NaN."""

Loaded: TypeAlias = dict[str, Bits]


def bits(tensor: Any) -> Bits:
    import torch

    raw = tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
    return str(tensor.dtype), tuple(tensor.shape), raw


def array_bits(array: Any) -> Bits:
    return str(array.dtype), tuple(array.shape), array.tobytes()


def all_bits(tensors: Mapping[str, Any]) -> Loaded:
    return {name: bits(tensor) for name, tensor in tensors.items()}


def state() -> dict[str, Any]:
    """Some tens of MiB of tensors of several types and sizes, a view and a scalar among them."""
    import torch

    generator = torch.Generator().manual_seed(7)
    large = torch.randn(2048, 2048, generator=generator)  # 16 MiB
    large[0, 0] = float("nan")
    return {
        "embedding": large,
        "head": large.t(),
        "layer.0": torch.randn(1500, 1111, generator=generator),
        "layer.1": torch.randn(3000, 1500, generator=generator).to(torch.bfloat16),
        "ids": torch.randint(0, 2**60, (300_001,), generator=generator),
        "mask": torch.rand(77_777, generator=generator) > 0.5,
        "step": torch.tensor(1234),
    }


def load_plain(root: Path) -> Loaded:
    import torch

    return all_bits(torch.load(root / "model.pt", weights_only=True))


def load_pickled(root: Path) -> Loaded:
    import torch

    return all_bits(torch.load(root / "model.pt", weights_only=False))


def load_mapped(root: Path) -> Loaded:
    import torch

    return all_bits(torch.load(root / "model.pt", mmap=True, weights_only=True))


def load_legacy(root: Path) -> Loaded:
    """The format before zip files, read by many small seeks and reads."""
    import torch

    return all_bits(torch.load(root / "legacy.pt", weights_only=True))


def load_safetensors(root: Path) -> Loaded:
    from safetensors.torch import load_file

    return all_bits(load_file(root / "model.safetensors"))


def load_npy_mapped(root: Path) -> Loaded:
    return {"array": array_bits(np.load(root / "array.npy", mmap_mode="r"))}


def load_memmap(root: Path) -> Loaded:
    return {
        "array": array_bits(np.memmap(root / "array.raw", dtype=np.float32, mode="r", shape=(3001, 1023)))
    }


def load_npz(root: Path) -> Loaded:
    with np.load(root / "arrays.npz") as arrays:
        return {name: array_bits(arrays[name]) for name in arrays.files}


def load_distributed(root: Path) -> Loaded:
    import torch
    import torch.distributed.checkpoint as dcp

    into = {name: torch.zeros_like(tensor) for name, tensor in state().items()}
    dcp.load(into, storage_reader=dcp.FileSystemReader(root / "distributed"), no_dist=True)
    return all_bits(into)


LOADERS: dict[str, Callable[[Path], Loaded]] = {
    "torch.load": load_plain,
    "torch.load, any pickle": load_pickled,
    "torch.load, mmap": load_mapped,
    "torch.load, old format": load_legacy,
    "safetensors": load_safetensors,
    "numpy.load, mmap_mode": load_npy_mapped,
    "numpy.memmap": load_memmap,
    "numpy.load, npz": load_npz,
    "torch.distributed.checkpoint": load_distributed,
}


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One checkpoint in every format."""
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file

    root = tmp_path_factory.mktemp("checkpoint")
    tensors = state()
    torch.save(tensors, root / "model.pt")
    torch.save(tensors, root / "legacy.pt", _use_new_zipfile_serialization=False)
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in tensors.items()}, root / "model.safetensors"
    )
    array = np.random.default_rng(7).standard_normal((3001, 1023), dtype=np.float32)
    np.save(root / "array.npy", array)
    array.tofile(root / "array.raw")
    np.savez(root / "arrays.npz", a=array, b=np.arange(2_000_003))
    writer = dcp.FileSystemWriter(root / "distributed", single_file_per_rank=False)
    dcp.save(tensors, storage_writer=writer, no_dist=True)
    return root


@pytest.fixture(scope="module")
def bucket(on_disk: Path, s3_server: SeaweedServer) -> Iterator[str]:
    """The same files on the S3 server."""
    with s3_server.bucket("torch") as name:
        for path in sorted(on_disk.rglob("*")):
            if path.is_file():
                s3_server.put_file(name, f"run/step-1/{path.relative_to(on_disk)}", path)
        yield name


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_gives_the_same_bits_cold_and_warm(
    name: str, on_disk: Path, bucket: str, s3_proxy: Proxy, tmp_path: Path
) -> None:
    load = LOADERS[name]
    expected = load(on_disk)
    assert sum(len(raw) for _dtype, _shape, raw in expected.values()) > 10 * MIB

    def load_through_a_mount() -> int:
        """The number of GETs it took."""
        s3_proxy.reset()
        with mounted(
            f"s3://{bucket}/run",
            tmp_path / "mnt",
            cache_dir=tmp_path / "cache",
            environment=s3_proxy.environment,
            stripe_size=STRIPE,
        ) as mount:
            loaded = load(mount.path / "step-1")
        # Compared by name first: pytest would print tens of MiB of difference.
        assert loaded.keys() == expected.keys()
        assert [key for key in expected if loaded[key] != expected[key]] == []
        return s3_proxy.statistics().count("GET")

    assert load_through_a_mount() > 10
    assert load_through_a_mount() == 0
