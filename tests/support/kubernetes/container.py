"""A container as containerd would have it made of its part of a pod, by crun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.kubernetes.manifests import Manifest
from tests.support.kubernetes.node import Node
from tests.support.memory_group import MemoryGroup
from tests.support.mounted import until

__all__ = ["Container"]

_REPOSITORY = Path(__file__).parents[3]
_STOP_SECONDS = 20.0
_PROPAGATION = {"Bidirectional": "rshared", "HostToContainer": "rslave", "None": "rprivate"}
"""As containerd has it (internal/cri/opts/spec_linux_opts.go, WithMounts)."""
_DEFAULT_CAPABILITIES = (
    "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT"
    " KILL AUDIT_WRITE"
)
"""Of a container that says nothing of them (containerd, pkg/oci/spec.go)."""
_NUMBERED = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE"
    " NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT"
    " SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE"
    " AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ"
    " PERFMON BPF CHECKPOINT_RESTORE"
)
"""By their numbers (include/uapi/linux/capability.h)."""
_DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
}
_FUSE = {"fuse": (10, 229)}
"""Major and minor numbers (Documentation/admin-guide/devices.txt)."""


class Container:
    """One container of a pod on ``node``. ``volumes`` has the place of each on the node.

    Its image is this machine: all of it can be read, what is written goes to a layer of the container's own.
    That of fusestripe is the unpacked one at $FUSESTRIPE_TEST_IMAGE, where that is set (mount/kubernetes).
    ``hosts`` is its /etc/hosts, ``network`` its network namespace; without, both are this machine's.
    ``group`` has its limit of memory.
    """

    def __init__(
        self,
        node: Node,
        name: str,
        spec: Manifest,
        pod: Manifest,
        volumes: Mapping[str, Path],
        environment: Mapping[str, str],
        *,
        hosts: Path | None = None,
        network: str | None = None,
        group: MemoryGroup | None = None,
    ) -> None:
        self.name = name
        self.spec = spec
        self._node = node
        self._id = f"{name}-{os.getpid()}"
        self._bundle = node.layers / name
        self._state = str(node.layers / "crun")
        self._config = _config(spec, pod, volumes, environment)
        if hosts is not None:
            self._config["mounts"].append(_bind(hosts, "/etc/hosts", "rprivate", "ro"))
        if network is not None:
            self._config["linux"]["namespaces"].append({"type": "network", "path": network})
        if group is not None:
            self._config["mounts"] += _group_mounts(group)
        self._group = group
        self._log = node.directory.parent / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, be it for the first time or anew: then with a new layer."""
        bundle = self._bundle
        layers = [str(bundle / each) for each in ("upper", "work", "rootfs")]
        self._node.run("rm", "-rf", str(bundle))
        self._node.run("mkdir", "-p", *layers)
        lowest = _image(self.spec) or "/"
        options = f"lowerdir={lowest},upperdir={layers[0]},workdir={layers[1]}"
        self._node.run("mount", "-t", "overlay", "-o", options, "overlay", layers[2])
        self._node.run("chmod", "755", f"{layers[2]}/root")  # the environment of the tests may be in there
        write = f"cat >{bundle}/config.json"
        config = json.dumps(self._config).encode()
        subprocess.run(self._node.inside("sh", "-c", write), input=config, check=True, timeout=30)
        with open(self._log, "ab") as log:
            run = self._crun("run", "--bundle", str(bundle), self._id)
            self._process = subprocess.Popen(
                run if self._group is None else self._group.inside(*run),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(lambda: self._has_begun() or not self.is_running)

    @property
    def is_running(self) -> bool:
        """Whether it has been started and not ended."""
        return self._process is not None and self._process.poll() is None

    def execute(self, command: Sequence[str], *, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run ``command`` in it, as probes and hooks are and `kubectl exec` does."""
        user = self._config["process"]["user"]
        return subprocess.run(
            self._crun("exec", f"--user={user['uid']}:{user['gid']}", self._id, *command),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its first process."""
        subprocess.run(self._crun("kill", self._id, str(int(number))), check=True, timeout=30)

    def wait(self, timeout: float = _STOP_SECONDS) -> int:
        """Its exit status once it has ended; what it leaves behind is cleared away."""
        assert self._process is not None
        status = self._process.wait(timeout)
        self._node.run("umount", "-l", str(self._bundle / "rootfs"))
        return status

    def kill(self) -> int:
        """kill -9 of its first process and so of all of it; the exit status."""
        self.signal(signal.SIGKILL)
        return self.wait()

    def close(self) -> None:
        """End it if it still runs."""
        if self.is_running:
            with suppress(subprocess.CalledProcessError):
                self.kill()

    def log(self) -> str:
        """What it has written so far, in all its lives."""
        return self._log.read_text()

    def _has_begun(self) -> bool:
        state = subprocess.run(self._crun("state", self._id), capture_output=True, check=False, timeout=30)
        return state.returncode == 0 and json.loads(state.stdout)["status"] == "running"

    def _crun(self, *arguments: str) -> list[str]:
        return self._node.inside("crun", "--root", self._state, "--cgroup-manager=disabled", *arguments)


def _config(
    spec: Manifest,
    pod: Manifest,
    volumes: Mapping[str, Path],
    environment: Mapping[str, str],
) -> Manifest:
    """The runtime's configuration (runtime-spec, config.md) of one container."""
    security = {**pod.get("securityContext", {}), **spec.get("securityContext", {})}
    privileged: bool = security.get("privileged", False)
    mounts = [_volume_mount(mount, volumes[mount["name"]]) for mount in spec.get("volumeMounts", ())]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": _user(security),
            "args": [*spec.get("command", ()), *spec.get("args", ())],
            "env": [f"{key}={value}" for key, value in {**_image_environment(spec), **environment}.items()],
            "cwd": "/",
            "capabilities": _capabilities(security, privileged=privileged),
            "noNewPrivileges": not security.get("allowPrivilegeEscalation", True),
        },
        "root": {"path": "rootfs", "readonly": security.get("readOnlyRootFilesystem", False)},
        "mounts": [*_system_mounts(privileged=privileged), *_image_mounts(spec), *mounts],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "mount")],
            "devices": [
                {"path": f"/dev/{name}", "type": "c", "major": major, "minor": minor, "fileMode": 0o666}
                for name, (major, minor) in (_DEVICES | (_FUSE if privileged else {})).items()
            ],
            "rootfsPropagation": _root_propagation(spec),
        },
    }


def _user(security: Manifest) -> Manifest:
    uid = security.get("runAsUser", 0)
    groups = [security["fsGroup"]] if "fsGroup" in security else []
    return {"uid": uid, "gid": security.get("runAsGroup", uid), "additionalGids": groups}


def _capabilities(security: Manifest, *, privileged: bool) -> dict[str, list[str]]:
    here = _capabilities_here()
    names = here if privileged else [name for name in _DEFAULT_CAPABILITIES.split() if name in here]
    wanted = security.get("capabilities", {})
    assert wanted.get("drop", ["ALL"]) == ["ALL"]
    kept = [] if "drop" in wanted else [f"CAP_{name}" for name in names]
    kept += [f"CAP_{name}" for name in wanted.get("add", ())]
    # Those of a user other than root are in the bounding set alone (capabilities(7), "execve").
    mine = kept if security.get("runAsUser", 0) == 0 else []
    return {"bounding": kept, "effective": mine, "permitted": mine}


def _capabilities_here() -> list[str]:
    """Those of this process: a privileged container has all that its runtime has."""
    with open("/proc/self/status", encoding="ascii") as file:
        mask = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    return [name for number, name in enumerate(_NUMBERED.split()) if mask >> number & 1]


def _volume_mount(mount: Manifest, source: Path) -> Manifest:
    propagation = _PROPAGATION[mount.get("mountPropagation", "None")]
    return _bind(source, mount["mountPath"], propagation, "ro" if mount.get("readOnly") else "rw")


def _bind(source: Path, target: str, *options: str) -> Manifest:
    return {"destination": target, "type": "bind", "source": str(source), "options": ["rbind", *options]}


def _group_mounts(group: MemoryGroup) -> list[Manifest]:
    """A container sees its own group where groups are, and none of the others."""
    groups = "/sys/fs/cgroup"
    tmpfs = {"destination": groups, "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]}
    return [tmpfs, _bind(group.path, f"{groups}/memory", "rprivate", "ro")]


def _root_propagation(spec: Manifest) -> str:
    """The widest that a volume asks for."""
    wanted = {mount.get("mountPropagation", "None") for mount in spec.get("volumeMounts", ())}
    return next(name for kind, name in _PROPAGATION.items() if kind in wanted | {"None"})


def _system_mounts(*, privileged: bool) -> list[Manifest]:
    safe = ["nosuid", "noexec", "nodev"]
    kinds = [
        ("/proc", "proc", safe),
        ("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        ("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
        ("/dev/shm", "tmpfs", [*safe, "mode=1777", "size=65536k"]),
        ("/sys", "sysfs", [*safe, "rw" if privileged else "ro"]),
    ]
    return [
        {"destination": target, "type": kind, "source": kind, "options": options}
        for target, kind, options in kinds
    ]


def _image(spec: Manifest) -> str:
    """The unpacked image of the container; "" where that is this machine."""
    return os.environ.get("FUSESTRIPE_TEST_IMAGE", "") if "fusestripe" in spec["image"] else ""


def _image_mounts(spec: Manifest) -> list[Manifest]:
    """What of this machine may be on a filesystem of its own: the layer below shows that of / alone."""
    if _image(spec):
        return []
    root = os.stat("/").st_dev
    own = sorted({Path(sys.prefix), Path(sys.base_prefix), _REPOSITORY})
    return [_bind(path, str(path), "rprivate", "ro") for path in own if os.stat(path).st_dev != root]


def _image_environment(spec: Manifest) -> dict[str, str]:
    """The ENV of the image: where its `fusestripe` is."""
    if _image(spec):
        return {"PATH": f"/opt/fusestripe/bin:/usr/sbin:/sbin:{os.defpath}", "HOME": "/"}
    path = f"{Path(sys.executable).parent}:{os.defpath}:/usr/sbin:/sbin"
    return {"PATH": path, "PYTHONPATH": str(_REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/"}
