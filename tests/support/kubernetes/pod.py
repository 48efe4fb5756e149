"""The life of a pod, as kubelet leads it."""

from __future__ import annotations

import copy
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

from tests.support.kubernetes.container import Container
from tests.support.kubernetes.manifests import Manifest
from tests.support.kubernetes.node import Node
from tests.support.kubernetes.volumes import Secrets, Volumes
from tests.support.memory_group import MemoryGroup

__all__ = ["Pod"]

IMPATIENCE = 0.2
"""Probes come this often (seconds), for the time that they would have with the period in the manifest."""


class Pod:
    """A pod of ``workload`` (a Job, a DaemonSet) on ``node``.

    ``objects``: the ConfigMaps that it names; ``secrets``: what is in its Secrets; ``commands``: of
    containers whose image this project does not bring. ``events`` are what happened, in order.
    ``hosts``, ``network`` and, by containers, ``groups``: see Container.
    """

    def __init__(
        self,
        node: Node,
        workload: Manifest,
        objects: Sequence[Manifest],
        secrets: Secrets,
        commands: Mapping[str, Sequence[str]],
        *,
        name: str = "pod",
        hosts: Path | None = None,
        network: str | None = None,
        groups: Mapping[str, MemoryGroup] = MappingProxyType({}),
    ) -> None:
        spec = copy.deepcopy(workload["spec"]["template"]["spec"])
        self.events: list[str] = []
        self.volumes = Volumes(node, name, spec, objects, secrets)
        places = {volume["name"]: self.volumes.path(volume["name"]) for volume in spec["volumes"]}
        self._grace = spec.get("terminationGracePeriodSeconds", 30)
        self._containers: dict[str, Container] = {}
        for one in (*spec.get("initContainers", ()), *spec["containers"]):
            if one["name"] in commands:
                one |= {"command": list(commands[one["name"]]), "args": []}
            environment = self.volumes.environment(one)
            self._containers[one["name"]] = Container(
                node,
                f"{name}-{one['name']}",
                one,
                spec,
                places,
                environment,
                hosts=hosts,
                network=network,
                group=groups.get(one["name"]),
            )
        self._first = [one["name"] for one in spec.get("initContainers", ())]
        self._main = [one["name"] for one in spec["containers"]]

    def __enter__(self) -> Pod:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for container in reversed(self._containers.values()):
            container.close()

    def __getitem__(self, name: str) -> Container:
        return self._containers[name]

    def start(self) -> None:
        """All containers in their order."""
        self.start_first()
        self.start_main()

    def start_first(self) -> None:
        """Init containers one after the other, a sidecar until its startup probe passes."""
        for name in self._first:
            self.start_one(name)
            if not self._is_sidecar(name):
                assert self[name].wait(60) == 0, self[name].log()
                self.events.append(f"{name} has ended")

    def start_main(self) -> None:
        """The others, at once."""
        for name in self._main:
            self.start_one(name)

    def start_one(self, name: str) -> None:
        """Start the container ``name``, for the first time or after it has ended."""
        self.events.append(f"{name} starts")
        self[name].start()
        if "startupProbe" in self[name].spec:
            self._await_started(name)
            self.events.append(f"{name} has started")

    def end(self) -> dict[str, int]:
        """Hooks at once, SIGTERM to the main containers, then to sidecars in reverse order; exit statuses.

        Whoever is not gone in terminationGracePeriodSeconds is killed (Pod Lifecycle, "Termination of Pods").
        """
        deadline = time.monotonic() + self._grace
        hooks = {name: threading.Thread(target=self._call_hook, args=(name,)) for name in self._containers}
        for hook in hooks.values():
            hook.start()
        sidecars = [name for name in self._first if self._is_sidecar(name)]
        statuses: dict[str, int] = {}
        for together in (self._main, *([name] for name in reversed(sidecars))):
            running = [name for name in together if self[name].is_running]
            for name in running:
                hooks[name].join(max(0.0, deadline - time.monotonic()))
                self.events.append(f"{name} is told to end")
                self[name].signal(signal.SIGTERM)
            statuses |= {name: self._await_end(name, deadline) for name in running}
        return statuses

    def _is_sidecar(self, name: str) -> bool:
        return self[name].spec.get("restartPolicy") == "Always"

    def _await_started(self, name: str) -> None:
        container, probe = self[name], self[name].spec["startupProbe"]
        allowed = probe.get("failureThreshold", 3) * probe.get("periodSeconds", 10)
        deadline = time.monotonic() + allowed
        while time.monotonic() < deadline:
            assert container.is_running, container.log()
            done = container.execute(probe["exec"]["command"], timeout=probe.get("timeoutSeconds", 1))
            if done.returncode == 0:
                return
            time.sleep(IMPATIENCE)
        raise AssertionError(f"the startup probe does not pass: {done.stdout}{done.stderr}")

    def _call_hook(self, name: str) -> None:
        hook = self[name].spec.get("lifecycle", {}).get("preStop")
        if hook is not None and self[name].is_running:
            done = self[name].execute(hook["exec"]["command"], timeout=self._grace)
            self.events.append(f"{name}: preStop ended with {done.returncode}")

    def _await_end(self, name: str, deadline: float) -> int:
        try:
            status = self[name].wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = self[name].kill()
        self.events.append(f"{name} has ended")
        return status
