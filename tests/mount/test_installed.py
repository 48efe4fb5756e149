"""The wheel in an empty environment, with what pip brings: it mounts, and each extra is what it says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.support.distribution import ROOT, Installed, build, install_with_dependencies
from tests.support.seaweed import ACCESS_KEY, SECRET_KEY, SeaweedServer


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    wheel = build(ROOT, tmp_path_factory.mktemp("wheel"), "--wheel")
    return install_with_dependencies(wheel, tmp_path_factory.mktemp("installed"), "hdfs", "aws")


def test_pip_finds_nothing_broken(installed: Installed) -> None:
    assert installed.run("pip", "check").stdout.strip() == "No broken requirements found."


def test_what_was_not_asked_for_is_not_there(installed: Installed) -> None:
    told = json.loads(installed.run("pip", "list", "--format=json").stdout)
    names = {package["name"] for package in told}
    assert {"fusestripe", "hdfs-native", "awscrt", "botocore", "pyfuse3"} <= names
    assert names & {"pyarrow", "azure-identity", "google-auth", "numpy", "torch", "pytest"} == set()


def test_it_mounts_and_unmounts(installed: Installed, tmp_path: Path) -> None:
    for name in ("source", "mnt"):
        (tmp_path / name).mkdir()
    (tmp_path / "source" / "model.pt").write_bytes(b"weights")
    cache = ("--cache-dir", str(tmp_path / "cache"))
    installed.run("fusestripe", "mount", f"file://{tmp_path}/source", str(tmp_path / "mnt"), *cache)
    try:
        assert (tmp_path / "mnt" / "model.pt").read_bytes() == b"weights"
        status = json.loads(installed.run("fusestripe", "status", str(tmp_path / "mnt"), "--json").stdout)
        assert status["mountpoint"] == str(tmp_path / "mnt")
    finally:
        installed.run("fusestripe", "unmount", str(tmp_path / "mnt"))


@pytest.mark.parametrize(
    ("source", "mend"),
    [
        ("hdfs+libhdfs://nameservice/ckpt", "pip install 'fusestripe[arrow]'"),
        ("hdfs://nameservice/ckpt", ""),
    ],
)
def test_what_lacks_an_extra_says_so_in_one_line(
    installed: Installed, tmp_path: Path, source: str, mend: str
) -> None:
    (tmp_path / "mnt").mkdir()
    refused = installed.run("fusestripe", "mount", source, str(tmp_path / "mnt"), check=False)
    (line,) = refused.stderr.splitlines()
    assert refused.returncode == 1
    assert line.endswith(mend)
    assert ("pip install" in line) == bool(mend)


def test_doctor_names_the_extras_that_lack(installed: Installed, tmp_path: Path) -> None:
    looked = installed.run("fusestripe", "doctor", "--json", "--cache-dir", str(tmp_path), check=False)
    findings = {finding["what"]: finding for finding in json.loads(looked.stdout)}
    assert findings["extras"]["mend"] == "pip install 'fusestripe[arrow,gcs,azure,peers]'"


def test_the_session_of_aws_login_is_used(
    installed: Installed, s3_server: SeaweedServer, s3_bucket: str, tmp_path: Path
) -> None:
    """What `aws login` leaves in its cache (botocore.credentials.LoginCredentialFetcher)."""
    s3_server.put(s3_bucket, "model.pt", b"weights")
    session = "arn:aws:sts::123456789012:assumed-role/me"
    (tmp_path / "config").write_text(f"[default]\nlogin_session = {session}\n")
    token = {
        "accessToken": {
            "accessKeyId": ACCESS_KEY,
            "secretAccessKey": SECRET_KEY,
            "sessionToken": "",
            "expiresAt": "2100-01-01T00:00:00Z",
            "accountId": "123456789012",
        },
        "refreshToken": "",
        "dpopKey": "",
        "clientId": "client",
    }
    (tmp_path / f"{hashlib.sha256(session.encode()).hexdigest()}.json").write_text(json.dumps(token))
    looked = installed.run(
        *("fusestripe", "doctor", f"s3://{s3_bucket}", "--json", "--cache-dir", str(tmp_path / "cache")),
        environment={
            "AWS_CONFIG_FILE": str(tmp_path / "config"),
            "AWS_LOGIN_CACHE_DIRECTORY": str(tmp_path),
            "AWS_ENDPOINT_URL": s3_server.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        },
        check=False,
    )
    findings = {finding["what"]: finding for finding in json.loads(looked.stdout)}
    assert findings["route /"]["level"] == "ok"
    assert "model.pt can be read" in findings["route /"]["text"]
