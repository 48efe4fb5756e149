"""The examples do what they say, as a reader would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fusestripe.config import load
from fusestripe.kernel.mounting import mounts
from fusestripe.units import GIB, MIB
from tests.support.mounted import mounted
from tests.support.seaweed import SeaweedServer

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(tmp_path: Path, server: SeaweedServer, *command: str) -> str:
    """What it prints; fails the test where it fails, and where it leaves a mount."""
    environment = {
        **os.environ,
        **server.environment,
        "FUSESTRIPE_CACHE_DIR": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [mount for mount in mounts() if mount.mountpoint.startswith(str(tmp_path.resolve()))] == []
    return done.stdout


@pytest.mark.torch
def test_load_torch(tmp_path: Path, s3_server: SeaweedServer, s3_bucket: str) -> None:
    import torch

    torch.save({"weight": torch.ones(3000, 1000), "bias": torch.zeros(1000)}, tmp_path / "model.pt")
    s3_server.put_file(s3_bucket, "run-7/step-1/model.pt", tmp_path / "model.pt")
    script = str(EXAMPLES / "load_torch.py")
    said = run(tmp_path, s3_server, script, f"s3://{s3_bucket}/run-7", "step-1/model.pt")
    assert said == "2 tensors, 3,001,000 parameters\n"


def test_prefetch_then_load(tmp_path: Path, s3_server: SeaweedServer, s3_bucket: str) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "model.safetensors"
    save_file({f"layer.{number}": np.ones((1000, 1000), np.float32) for number in range(5)}, path)
    s3_server.put_file(s3_bucket, "run-7/step-1/model.safetensors", path)
    script = str(EXAMPLES / "prefetch_then_load.py")
    said = run(tmp_path, s3_server, script, f"s3://{s3_bucket}/run-7", "step-1/model.safetensors")
    lines = said.splitlines()
    assert lines[0].endswith(f"step-1/model.safetensors: done, {path.stat().st_size:,} bytes")
    assert lines[1:] == ["5 tensors"]


def test_several_stores(tmp_path: Path, s3_server: SeaweedServer, s3_bucket: str) -> None:
    """The file is right as it stands; and with the stores of a test put in, it is one tree."""
    text = (EXAMPLES / "several_stores.toml").read_text()
    settings = load(str(EXAMPLES / "several_stores.toml"), {}, environ={})
    assert [route.path for route in settings.routes] == ["/ckpt", "/models", "/data/small"]
    assert (settings.cache.size, settings.stripes.size, settings.metadata.ttl) == (500 * GIB, 8 * MIB, 60)

    s3_server.put(s3_bucket, "run-7/a", b"from a prefix")
    local = tmp_path / "local"
    local.mkdir()
    (local / "b").write_bytes(b"from a directory")
    for theirs, ours in (
        ("s3://checkpoints/run-7", f"s3://{s3_bucket}/run-7"),
        ("s3://models", f"s3://{s3_bucket}"),
        ("http://minio.example:9000", s3_server.endpoint),
        ("file:///srv/datasets", local.as_uri()),
        ('profile = "training"', ""),
    ):
        assert theirs in text
        text = text.replace(theirs, ours)
    config = tmp_path / "stores.toml"
    config.write_text(text)
    with mounted(
        config, tmp_path / "mnt", cache_dir=tmp_path / "cache", environment=s3_server.environment
    ) as mount:
        assert sorted(entry.name for entry in mount.path.iterdir()) == ["ckpt", "data", "models"]
        assert (mount.path / "ckpt/a").read_bytes() == b"from a prefix"
        assert (mount.path / "models/run-7/a").read_bytes() == b"from a prefix"
        assert (mount.path / "data/small/b").read_bytes() == b"from a directory"


@pytest.mark.parametrize("format_", ["safetensors", pytest.param("torch", marks=pytest.mark.torch)])
def test_the_demo(tmp_path: Path, s3_server: SeaweedServer, format_: str) -> None:
    said = run(tmp_path, s3_server, "-m", "examples.demo", "--size", "48MiB", "--format", format_)
    assert "times one stream" in said
    assert said.count("$ fusestripe mount s3://checkpoints") == 2
    assert said.count("$ fusestripe unmount") == 2
    assert ("model.pt" in said) is (format_ == "torch")
    assert [path.name for path in tmp_path.iterdir()] == []
