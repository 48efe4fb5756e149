from pathlib import Path

from tests.support.mounted import mounted
from tests.support.seaweed import SeaweedServer


def test_bytes_through_a_real_mount(tmp_path: Path, s3_server: SeaweedServer, s3_bucket: str) -> None:
    content = bytes(range(256)) * 40_000
    s3_server.put(s3_bucket, "run/model.pt", content)
    with mounted(
        f"s3://{s3_bucket}/run",
        tmp_path / "mnt",
        cache_dir=tmp_path / "cache",
        environment=s3_server.environment,
        stripe_size="1MiB",
    ) as mount:
        assert [entry.name for entry in mount.path.iterdir()] == ["model.pt"]
        assert (mount.path / "model.pt").read_bytes() == content
        assert mount.status()["reads"]["bytes"] >= len(content)
