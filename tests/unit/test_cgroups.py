"""What control groups leave of the memory: read from trees of files as they are found on machines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from fusestripe.cgroups import MemoryLimit, memory_limit
from fusestripe.units import GIB, MIB

V2 = "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
NO_LIMIT_V1 = "9223372036854771712\n"


def machine(root: Path, mountinfo: str, groups: str, files: Mapping[str, str]) -> str:
    """A tree below ``root`` with /proc/self and ``files`` below /sys/fs/cgroup."""
    texts = {"proc/self/mountinfo": mountinfo, "proc/self/cgroup": groups}
    texts |= {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_the_group_itself(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        V2,
        "0::/system.slice/fusestripe.service\n",
        {
            "system.slice/fusestripe.service/memory.max": f"{2 * GIB}\n",
            "system.slice/fusestripe.service/memory.high": "max\n",
            "system.slice/memory.max": "max\n",
            "system.slice/memory.high": "max\n",
        },
    )
    said_by = "/sys/fs/cgroup/system.slice/fusestripe.service/memory.max"
    assert memory_limit(root) == MemoryLimit(2 * GIB, said_by)


@pytest.mark.parametrize("name", ["a/b/memory.max", "a/b/memory.high", "a/memory.max", "a/memory.high"])
def test_the_tightest_counts_and_is_named(tmp_path: Path, name: str) -> None:
    files = {f"{group}/memory.{kind}": f"{3 * GIB}\n" for group in ("a", "a/b") for kind in ("max", "high")}
    root = machine(tmp_path, V2, "0::/a/b\n", files | {name: f"{GIB}\n"})
    assert memory_limit(root) == MemoryLimit(GIB, f"/sys/fs/cgroup/{name}")


def test_a_group_beside_limits_nothing(tmp_path: Path) -> None:
    root = machine(tmp_path, V2, "0::/a\n", {"a/memory.max": "max\n", "b/memory.max": f"{MIB}\n"})
    assert memory_limit(root) is None


def test_a_container_sees_its_group_at_the_top(tmp_path: Path) -> None:
    root = machine(tmp_path, V2, "0::/\n", {"memory.max": f"{512 * MIB}\n"})
    assert memory_limit(root) == MemoryLimit(512 * MIB, "/sys/fs/cgroup/memory.max")


def test_a_container_that_knows_its_whole_path(tmp_path: Path) -> None:
    mountinfo = V2.replace(" / /sys", " /kubepods/pod1/c1 /sys")
    files = {"memory.max": f"{512 * MIB}\n", "kubepods/pod1/c1/memory.max": f"{MIB}\n"}
    root = machine(tmp_path, mountinfo, "0::/kubepods/pod1/c1\n", files)
    assert memory_limit(root) == MemoryLimit(512 * MIB, "/sys/fs/cgroup/memory.max")


@pytest.mark.parametrize("group", ["/../other", "/elsewhere"])
def test_a_group_outside_of_what_is_mounted(tmp_path: Path, group: str) -> None:
    mountinfo = V2.replace(" / /sys", " /pod /sys")
    files = {"memory.max": f"{GIB}\n", "elsewhere/memory.max": f"{MIB}\n"}
    root = machine(tmp_path, mountinfo, f"0::{group}\n", files)
    (tmp_path / "sys/fs/other").mkdir()
    (tmp_path / "sys/fs/other/memory.max").write_text(f"{MIB}\n")
    assert memory_limit(root) == MemoryLimit(GIB, "/sys/fs/cgroup/memory.max")


def test_version_1(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": NO_LIMIT_V1,
        "memory/job/memory.limit_in_bytes": f"{3 * GIB}\n",
        "memory/job/step/memory.limit_in_bytes": NO_LIMIT_V1,
        "memory/job/step/memory.stat": f"cache 0\nrss 1\nhierarchical_memory_limit {3 * GIB}\n",
    }
    groups = "5:devices:/other\n4:cpu,memory:/job/step\n0::/\n"
    root = machine(tmp_path, V1, groups, files)
    limit = memory_limit(root)
    assert limit is not None
    assert limit.size == 3 * GIB


def test_version_1_tells_of_groups_above_that_are_not_seen(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": NO_LIMIT_V1,
        "memory/memory.stat": f"cache 0\nhierarchical_memory_limit {GIB}\n",
    }
    root = machine(tmp_path, V1.replace(" / /sys", " /docker/c /sys"), "4:memory:/docker/c\n", files)
    assert memory_limit(root) == MemoryLimit(GIB, "/sys/fs/cgroup/memory/memory.stat")


def test_no_limit_in_version_1(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": NO_LIMIT_V1,
        "memory/memory.stat": f"hierarchical_memory_limit {NO_LIMIT_V1}",
    }
    assert memory_limit(machine(tmp_path, V1, "4:memory:/\n", files)) is None


def test_both_versions_at_once(tmp_path: Path) -> None:
    """As systemd's hybrid layout has it: version 2 only to know processes, memory by version 1."""
    mountinfo = V1 + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    files = {"memory/job/memory.limit_in_bytes": f"{GIB}\n", "unified/scope/cgroup.procs": "1\n"}
    root = machine(tmp_path, mountinfo, "4:memory:/job\n0::/scope\n", files)
    assert memory_limit(root) == MemoryLimit(GIB, "/sys/fs/cgroup/memory/job/memory.limit_in_bytes")


@pytest.mark.parametrize("text", ["", "max\n", "garbage\n", "-1\n"])
def test_what_is_no_number_limits_nothing(tmp_path: Path, text: str) -> None:
    assert memory_limit(machine(tmp_path, V2, "0::/\n", {"memory.max": text})) is None


def test_a_machine_without_groups(tmp_path: Path) -> None:
    assert memory_limit(str(tmp_path)) is None
    assert memory_limit(machine(tmp_path, "", "", {})) is None
    assert memory_limit(machine(tmp_path, "odd\n - \n" + V2, "odd\n", {"memory.max": "max\n"})) is None
