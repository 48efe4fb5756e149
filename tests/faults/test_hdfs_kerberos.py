"""HDFS behind Kerberos, with calls and blocks encrypted; tickets that are missing, expire and come anew."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusestripe.errors import MountError
from tests.support.hadoop.cluster import MIB, HdfsCluster
from tests.support.hadoop.kerberos import SERVERS, Realm, secure_core, secure_settings
from tests.support.kubernetes.manifests import one, own_overlay
from tests.support.kubernetes.node import Node
from tests.support.kubernetes.pod import Pod
from tests.support.mounted import mounted, until
from tests.support.mounted_store import content

CONTENT = content(16 * MIB + 12_345, 1)
BOUND = 60.0
"""Seconds within which a read must have failed: nothing hangs."""


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with Realm(tmp_path_factory.mktemp("realm")) as realm:
        yield realm


@pytest.fixture(scope="module")
def cluster(realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    options = [
        f"-Djava.security.krb5.conf={realm.environment['KRB5_CONFIG']}",
        f"-Dshell.principal={SERVERS}",
        f"-Dshell.keytab={realm.servers_keytab}",
    ]
    with HdfsCluster(
        tmp_path_factory.mktemp("secure"),
        core=secure_core(),
        settings=secure_settings(realm),
        environment=realm.environment,
        java_options=options,
    ) as cluster:
        cluster.shell.put("/data/file", CONTENT)
        yield cluster


def environment(cluster: HdfsCluster, realm: Realm, cache: Path) -> dict[str, str]:
    return {**cluster.environment, **realm.environment, "KRB5CCNAME": f"FILE:{cache}"}


def test_with_a_ticket(cluster: HdfsCluster, realm: Realm, tmp_path: Path) -> None:
    cache = tmp_path / "ticket"
    realm.ticket(cache, "1h")
    with mounted(
        f"{cluster.url}/data",
        tmp_path / "mnt",
        cache_dir=tmp_path / "cache",
        environment=environment(cluster, realm, cache),
        stripe_size="1MiB",
    ) as mount:
        assert (mount.path / "file").read_bytes() == CONTENT


def test_with_a_keytab(cluster: HdfsCluster, realm: Realm, tmp_path: Path) -> None:
    """MIT Kerberos gets and renews the ticket itself (krb5.conf(5), default_client_keytab_name)."""
    given = environment(cluster, realm, tmp_path / "made-by-the-library")
    with mounted(
        f"{cluster.url}/data",
        tmp_path / "mnt",
        cache_dir=tmp_path / "cache",
        environment={**given, "KRB5_CLIENT_KTNAME": f"FILE:{realm.alice_keytab}"},
        stripe_size="1MiB",
    ) as mount:
        assert (mount.path / "file").read_bytes() == CONTENT


def test_a_pod_with_its_keytab_from_a_secret(cluster: HdfsCluster, realm: Realm, tmp_path: Path) -> None:
    """mount/kubernetes as it is, but for the names of this cluster."""
    conf = Path(cluster.environment["HADOOP_CONF_DIR"])
    files = {
        "config.toml": f'[[route]]\nsource = "{cluster.url}/data"\n',
        "core-site.xml": (conf / "core-site.xml").read_text(),
        "hdfs-site.xml": (conf / "hdfs-site.xml").read_text(),
        "krb5.conf": Path(realm.environment["KRB5_CONFIG"]).read_text(),
    }
    size = {"FUSESTRIPE_CACHE_SIZE": "1GiB"}
    manifests = own_overlay(tmp_path / "overlay", "sidecar", ["hdfs"], files, size)
    secrets = {"fusestripe-secret": {"keytab": realm.alice_keytab.read_bytes()}}
    with (
        Node(tmp_path) as node,
        Pod(node, one(manifests, "Job"), manifests, secrets, {"train": ("sleep", "600")}) as pod,
    ):
        pod.start()
        read = pod["train"].execute(["sha256sum", "/mnt/fusestripe/ckpt/file"])
        assert read.returncode == 0, (read.stderr, pod["fusestripe"].log())
        assert read.stdout.split()[0] == hashlib.sha256(CONTENT).hexdigest()
        pod["train"].kill()
        assert pod.end() == {"fusestripe": 0}


def test_without_a_ticket(cluster: HdfsCluster, realm: Realm, tmp_path: Path) -> None:
    with (
        pytest.raises(MountError, match="Kerberos ticket") as caught,
        mounted(
            f"{cluster.url}/data",
            tmp_path / "mnt",
            cache_dir=tmp_path / "cache",
            environment=environment(cluster, realm, tmp_path / "none"),
        ),
    ):
        pass
    assert "kinit" in caught.value.mend
    assert not os.path.ismount(tmp_path / "mnt")


def test_a_ticket_that_expires_in_the_middle_of_a_read(
    cluster: HdfsCluster, realm: Realm, tmp_path: Path
) -> None:
    """Refused at once when it is needed, and with a new one the same handle reads on."""
    cache = tmp_path / "ticket"
    realm.ticket(cache, "30s")
    with mounted(
        f"{cluster.url}/data",
        tmp_path / "mnt",
        cache_dir=tmp_path / "cache",
        environment=environment(cluster, realm, cache),
        complaints=True,
        stripe_size="256KiB",
        stripe_count=1,
        memory="1MiB",
        timeout=30,
    ) as mount:
        descriptor = os.open(mount.path / "file", os.O_RDONLY)
        try:
            assert os.pread(descriptor, 4096, 0) == CONTENT[:4096]
            until(lambda: not realm.is_valid(cache), timeout=60)
            # The connection that it opened is gone too.
            cluster.namenodes[0].kill()
            cluster.namenodes[0].start()
            cluster.wait_for(lambda: cluster.shell("live") == "3")
            start = time.monotonic()
            with pytest.raises(PermissionError) as caught:
                os.pread(descriptor, 4096, 12 * MIB)
            assert caught.value.errno == errno.EACCES
            assert time.monotonic() - start < BOUND
            realm.ticket(cache, "1h")
            assert os.pread(descriptor, 4096, 12 * MIB) == CONTENT[12 * MIB : 12 * MIB + 4096]
        finally:
            os.close(descriptor)
        assert any("ticket" in line for line in mount.complaints())
