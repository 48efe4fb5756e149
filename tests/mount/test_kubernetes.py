"""The manifests of mount/kubernetes: what the API takes, and the lives of pods in real containers (crun)."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import metadata
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import kubernetes_validate
import pytest

from fusestripe.config.machine import OWN_MEMORY
from fusestripe.units import GIB
from tests.support.kubernetes.container import Container
from tests.support.kubernetes.manifests import KUBERNETES, Manifest, build, one, own_overlay
from tests.support.kubernetes.node import Node
from tests.support.kubernetes.pod import Pod
from tests.support.kubernetes.training import COMMAND, content
from tests.support.kubernetes.volumes import Secrets
from tests.support.memory_group import MemoryGroup, memory_hierarchy
from tests.support.mounted import until
from tests.support.mounted_store import MIB
from tests.support.network import NAMESPACES, Hosts
from tests.support.seaweed import SeaweedServer

READER = KUBERNETES / "examples/reader"
OVERLAYS = sorted((KUBERNETES / "overlays").iterdir())
APPLIED = pytest.mark.parametrize("directory", [*OVERLAYS, READER], ids=lambda path: path.name)
OLDEST, NEWEST = "1.29", "1.37"
"""Native sidecars are on from 1.29; 1.37 is the newest that there are schemas of."""
POINT = "/mnt/fusestripe/ckpt"
COLD, WARM = 16 * MIB, 2 * MIB
TRAINING = {"train": (*COMMAND, POINT)}
OPENED = "cold.bin: open\nwarm.bin: open\n"


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@APPLIED
def test_the_api_takes_every_manifest(directory: Path, version: str) -> None:
    for manifest in build(directory):
        assert kubernetes_validate.validate(manifest, version, strict=True) == version


@APPLIED
def test_what_no_schema_says(directory: Path) -> None:
    """The rules of the API beyond schemas (pkg/apis/core/validation), and this project's own."""
    for manifest in build(directory):
        if "template" not in manifest.get("spec", {}):
            continue
        pod = manifest["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            privileged = container.get("securityContext", {}).get("privileged", False)
            for mount in container.get("volumeMounts", ()):
                assert mount["name"] in volumes
                # A mount at the volume itself, once dead, would keep every container from starting.
                assert mount["mountPath"] != POINT
                assert privileged or mount.get("mountPropagation") != "Bidirectional"


@pytest.mark.parametrize("directory", OVERLAYS, ids=lambda path: path.name)
def test_an_overlay_runs_what_it_is_for_and_no_more(directory: Path) -> None:
    """Who wants a mount on each node gets no job of training with it."""
    runs = [manifest["kind"] for manifest in build(directory) if "template" in manifest.get("spec", {})]
    assert runs == (["DaemonSet"] if directory.name.startswith("daemonset") else ["Job"])


def test_the_image_has_what_the_project_has() -> None:
    said = (KUBERNETES / "Containerfile").read_text()
    extras = re.search(r"^ARG EXTRAS=(.*)$", said, re.MULTILINE)
    assert extras is not None
    known = metadata("fusestripe").get_all("Provides-Extra") or []
    assert set(extras[1].split(",")) <= set(known)
    stages = re.findall(r"^FROM (\S+)", said, re.MULTILINE)
    assert stages == ["${BASE}", "${BASE}"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as node:
        yield node


@pytest.fixture
def bucket(s3_server: SeaweedServer, s3_bucket: str) -> str:
    s3_server.put(s3_bucket, "cold.bin", content(COLD))
    s3_server.put(s3_bucket, "warm.bin", content(WARM))
    return s3_bucket


def manifests_of(
    tmp_path: Path, base: str, bucket: str, components: Sequence[str] = ("s3",)
) -> list[Manifest]:
    files = {"config.toml": f'[[route]]\nsource = "s3://{bucket}"\n'}
    environment = {"FUSESTRIPE_CACHE_SIZE": "1GiB", "FUSESTRIPE_STRIPE_SIZE": "1MiB"}
    return own_overlay(tmp_path / f"overlay-{base}", base, components, files, environment)


def credentials(environment: Mapping[str, str]) -> Secrets:
    return {"fusestripe-credentials": environment}


def status(container: Container) -> dict[str, Any]:
    answer = status_or_none(container)
    assert answer is not None
    return answer


def status_or_none(container: Container) -> dict[str, Any] | None:
    done = container.execute(["fusestripe", "status", POINT, "--json"])
    answer = json.loads(done.stdout) if done.returncode == 0 else None
    assert isinstance(answer, dict | None)
    return answer


def fuse_mounts(container: Container) -> int:
    return container.execute(["cat", "/proc/mounts"]).stdout.count("fuse.fusestripe")


@pytest.fixture
def sidecar(node: Node, tmp_path: Path, s3_server: SeaweedServer, bucket: str) -> Iterator[Pod]:
    """A training pod of base/sidecar."""
    manifests = manifests_of(tmp_path, "sidecar", bucket)
    job = one(manifests, "Job")
    with Pod(node, job, manifests, credentials(s3_server.environment), TRAINING) as pod:
        yield pod


def test_a_sidecar_from_its_start_to_its_end(sidecar: Pod, node: Node) -> None:
    sidecar.start_first()
    directory = sidecar.volumes.path("mount")
    assert node.fuse_mounts(directory) == [str(directory / "ckpt")]
    features = status(sidecar["fusestripe"])["features"]
    assert [feature["name"] for feature in features if not feature["on"]] == []
    sidecar.start_main()
    until(lambda: OPENED in sidecar["train"].log())
    assert sidecar.end() == {"train": 0, "fusestripe": 0}
    assert sidecar["train"].log() == OPENED + "saved\n"
    assert sidecar.events == [
        "fusestripe starts",
        "fusestripe has started",
        "train starts",
        "train is told to end",
        "train has ended",
        "fusestripe: preStop ended with 0",
        "fusestripe is told to end",
        "fusestripe has ended",
    ]
    assert node.fuse_mounts(directory) == []
    assert list(directory.iterdir()) == [directory / "ckpt"]
    sidecar.volumes.clear()


def test_the_budget_is_chosen_by_the_limit_of_the_container(
    tmp_path: Path, s3_server: SeaweedServer, bucket: str
) -> None:
    manifests = manifests_of(tmp_path, "sidecar", bucket)
    job = one(manifests, "Job")
    (container,) = job["spec"]["template"]["spec"]["initContainers"]
    assert container["resources"]["limits"] == {"memory": "2Gi"}
    secrets = credentials(s3_server.environment)
    with memory_hierarchy(tmp_path / "groups") as (hierarchy, is_v2):
        group = MemoryGroup(hierarchy, f"fusestripe-pod-{os.getpid()}", 2 * GIB, is_v2=is_v2)
        try:
            with (
                Node(tmp_path) as node,
                Pod(node, job, manifests, secrets, TRAINING, groups={"fusestripe": group}) as pod,
            ):
                pod.start()
                assert status(pod["fusestripe"])["memory"]["limit"] == (2 * GIB - OWN_MEMORY) // 2
                assert pod.end() == {"train": 0, "fusestripe": 0}
        finally:
            group.remove()


def test_a_daemon_that_dies_in_its_container(sidecar: Pod) -> None:
    """Training sees a pause."""
    sidecar.start()
    training, container = sidecar["train"], sidecar["fusestripe"]
    until(lambda: OPENED in training.log())
    before = status(container)["pid"]
    assert container.execute(["sh", "-c", f"kill -9 {before}"]).returncode == 0
    until(lambda: (now := status_or_none(container)) is not None and now["pid"] != before)
    assert container.execute(["cat", f"{POINT}/warm.bin"]).stdout.encode() == content(WARM)
    assert sidecar.end() == {"train": 0, "fusestripe": 0}
    assert training.log() == OPENED + "saved\n"


def test_a_sidecar_that_is_killed_and_started_anew(sidecar: Pod, node: Node) -> None:
    """Open files end with it, but for those that the kernel reads itself; opened anew, all is there again."""
    sidecar.start_first()
    assert sidecar["fusestripe"].execute(["fusestripe", "prefetch", f"{POINT}/warm.bin"]).returncode == 0
    sidecar.start_main()
    training = sidecar["train"]
    until(lambda: OPENED in training.log())
    assert status(sidecar["fusestripe"])["passed_through"] == 1
    assert sidecar["fusestripe"].kill() == 128 + 9
    until(lambda: f"cold.bin: error {errno.ENOTCONN}\n" in training.log())
    sidecar.start_one("fusestripe")
    until(lambda: training.log().count("cold.bin: open\n") == 2)
    assert "warm.bin: error" not in training.log()
    assert "wrong bytes" not in training.log()
    directory = sidecar.volumes.path("mount")
    assert node.fuse_mounts(directory) == [str(directory / "ckpt")]
    assert fuse_mounts(training) == fuse_mounts(sidecar["fusestripe"]) == 1
    assert sidecar.end() == {"train": 0, "fusestripe": 0}
    assert node.fuse_mounts(directory) == []
    sidecar.volumes.clear()


@pytest.fixture
def unprivileged(node: Node, tmp_path: Path, s3_server: SeaweedServer, bucket: str) -> Iterator[Pod]:
    """The same with components/unprivileged, and training has its files open."""
    manifests = manifests_of(tmp_path, "sidecar", bucket, ["s3", "unprivileged"])
    job = one(manifests, "Job")
    with Pod(node, job, manifests, credentials(s3_server.environment), TRAINING) as pod:
        pod.start()
        until(lambda: OPENED in pod["train"].log())
        yield pod


def test_a_sidecar_without_privileges(unprivileged: Pod, node: Node) -> None:
    """Even where all of its container is killed, training sees a pause. What is lost is passthrough."""
    pod = unprivileged
    training, container = pod["train"], pod["fusestripe"]
    features = status(container)["features"]
    assert [feature["name"] for feature in features if not feature["on"]] == ["passthrough"]
    rights = container.execute(["grep", "-E", "^(Uid|CapBnd|NoNewPrivs):", "/proc/1/status"]).stdout
    assert rights.split() == ["Uid:", *["10001"] * 4, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"]
    assert container.kill() == 128 + 9
    pod.start_one("fusestripe")
    assert training.execute(["cat", f"{POINT}/warm.bin"]).stdout.encode() == content(WARM)
    assert pod.end() == {"train": 0, "fusestripe": 0, "mounter": 0}
    assert training.log() == OPENED + "saved\n"
    assert [event for event in pod.events if "told" in event] == [
        "train is told to end",
        "fusestripe is told to end",
        "mounter is told to end",
    ]
    assert node.fuse_mounts(node.directory) == []
    pod.volumes.clear()


def test_who_has_mounted_is_started_anew(unprivileged: Pod, node: Node) -> None:
    """What is handed over ends with it, and so does who has it; then all is there again."""
    pod = unprivileged
    training = pod["train"]
    pod["mounter"].kill()
    assert pod["fusestripe"].wait() == 0
    for name in ("mounter", "fusestripe"):
        pod.start_one(name)
    until(lambda: training.log().count("cold.bin: open\n") == 2)
    assert f"cold.bin: error {errno.ENOTCONN}\n" in training.log()
    assert fuse_mounts(training) == 1
    assert pod.end() == {"train": 0, "fusestripe": 0, "mounter": 0}
    assert node.fuse_mounts(node.directory) == []


def test_training_does_not_start_without_the_tree(
    node: Node, tmp_path: Path, s3_server: SeaweedServer
) -> None:
    manifests = manifests_of(tmp_path, "sidecar", "there-is-no-such-bucket")
    secrets = credentials(s3_server.environment)
    with Pod(node, one(manifests, "Job"), manifests, secrets, TRAINING) as pod:
        with pytest.raises(AssertionError, match="there-is-no-such-bucket"):
            pod.start()
        assert pod["fusestripe"].wait() == 1
        assert pod.events == ["fusestripe starts"]
        pod.volumes.clear()


def test_one_mount_a_node_for_many_pods(
    node: Node, tmp_path: Path, s3_server: SeaweedServer, bucket: str
) -> None:
    """The node's pod is replaced, as for an update: it waits for who reads; others find the new mount."""
    (node.directory / "mnt" / "nvme").mkdir(parents=True)
    manifests = manifests_of(tmp_path, "daemonset", bucket)
    secrets = credentials(s3_server.environment)
    daemonset, job = one(manifests, "DaemonSet"), one(build(READER), "Job")
    idle = {"train": ("sleep", "600")}
    with ExitStack() as stack:

        def pod(name: str, workload: Manifest, commands: Mapping[str, Sequence[str]]) -> Pod:
            return stack.enter_context(Pod(node, workload, manifests, secrets, commands, name=name))

        first = pod("first", daemonset, {})
        first.start()
        reads, waits = pod("reads", job, TRAINING), pod("waits", job, idle)
        for reader in (reads, waits):
            reader.start()
        until(lambda: OPENED in reads["train"].log())
        assert waits["train"].execute(["cat", f"{POINT}/warm.bin"]).stdout.encode() == content(WARM)
        hook = daemonset["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"][
            "command"
        ]
        with pytest.raises(TimeoutExpired):
            first["fusestripe"].execute(hook, timeout=2)
        assert reads.end() == {"train": 0}
        assert first.end() == {"fusestripe": 0}
        assert node.fuse_mounts(node.directory) == []
        second = pod("second", daemonset, {})
        second.start()
        assert waits["train"].execute(["cat", f"{POINT}/warm.bin"]).stdout.encode() == content(WARM)
        assert fuse_mounts(waits["train"]) == 1
        assert status(second["fusestripe"])["served"]["origin"] == 0  # the cache stays on the node
        waits["train"].kill()
        assert second.end() == {"fusestripe": 0}
        assert node.fuse_mounts(node.directory) == []
        for each in (first, reads, waits, second):
            each.volumes.clear()


def test_pods_share_what_they_fetch(tmp_path: Path) -> None:
    """Each on a node and an address of its own; the name of the headless service has both."""
    manifests = manifests_of(tmp_path, "sidecar", "shared", ["s3", "peers"])
    hosts = tmp_path / "hosts"
    with ExitStack() as stack:
        network = stack.enter_context(Hosts(2))
        server = stack.enter_context(SeaweedServer(tmp_path / "s3", address=network.gateway))
        server.create_bucket("shared")
        server.put("shared", "cold.bin", content(COLD))
        name = one(manifests, "Service")["metadata"]["name"]
        lines = ("127.0.0.1 localhost", *(f"{address} {name}" for address in network.addresses))
        hosts.write_text("".join(f"{line}\n" for line in lines))
        secrets = {**credentials(server.environment), "fusestripe-secret": {"token": "0123456789abcdef"}}
        pods = []
        for number, namespace in enumerate(network.names):
            (tmp_path / namespace).mkdir()
            node = stack.enter_context(Node(tmp_path / namespace))
            job, where = one(manifests, "Job"), f"{NAMESPACES}/{namespace}"
            pod = Pod(node, job, manifests, secrets, {}, name=f"pod-{number}", hosts=hosts, network=where)
            pods.append(stack.enter_context(pod))
        sidecars = [pod["fusestripe"] for pod in pods]
        for pod in pods:
            pod.start_first()
        until(lambda: all(status(sidecar)["peers"]["members"][0]["live"] for sidecar in sidecars))
        for sidecar in sidecars:
            told = sidecar.execute(["sha256sum", f"{POINT}/cold.bin"]).stdout
            assert told.startswith(hashlib.sha256(content(COLD)).hexdigest())
        found = [status(sidecar) for sidecar in sidecars]
        assert sum(one["origin"]["bytes"] for one in found) == COLD
        assert all(one["served"]["peers"] > 0 for one in found)
        for pod in pods:
            assert pod.end() == {"fusestripe": 0}
