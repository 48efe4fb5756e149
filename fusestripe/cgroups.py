"""The memory that a control group leaves to this process: a container's, a pod's, a unit's, a job's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

__all__ = ["MemoryLimit", "memory_limit"]

_NO_LIMIT = 1 << 60
"""Version 1 says "no limit" by the largest multiple of a page that a counter holds (mm/page_counter.c)."""
_V1_EFFECTIVE = "hierarchical_memory_limit"
"""In version 1's memory.stat: the least of the group and those above it, also of ones not visible here."""


class MemoryLimit(msgspec.Struct, frozen=True):
    """``size`` bytes, and the file that says so."""

    size: int
    said_by: str


class _Hierarchy(msgspec.Struct, frozen=True):
    """A mounted tree of control groups: ``root``, one of its groups, is seen at ``mountpoint``."""

    mountpoint: str
    root: str
    is_v2: bool


def memory_limit(root: str = "/") -> MemoryLimit | None:
    """The tightest limit of this process's control groups and those above them; None where there is none.

    In version 2 memory.max, beyond which the kernel kills, and memory.high, beyond which it slows down
    (Documentation/admin-guide/cgroup-v2.rst); in version 1 memory.limit_in_bytes. ``root`` is where /proc and
    the mounted groups are looked for. What cannot be read limits nothing.
    """
    groups = _text(os.path.join(root, "proc/self/cgroup"))
    found = [
        limit
        for hierarchy in _hierarchies(_text(os.path.join(root, "proc/self/mountinfo")))
        for directory in _directories(hierarchy, _own_group(groups, is_v2=hierarchy.is_v2))
        for limit in _limits(root, directory, is_v2=hierarchy.is_v2)
    ]
    return min(found, key=lambda limit: limit.size, default=None)


def _hierarchies(mountinfo: str) -> Iterator[_Hierarchy]:
    """Those in the lines of /proc/self/mountinfo (proc_pid_mountinfo(5)) that can limit memory."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(rest) < 3:
            continue
        is_v1 = rest[0] == "cgroup" and "memory" in rest[2].split(",")
        if is_v1 or rest[0] == "cgroup2":
            yield _Hierarchy(fields[4], fields[3], is_v2=not is_v1)


def _own_group(groups: str, *, is_v2: bool) -> str:
    """This process's group in the lines of /proc/self/cgroup (cgroups(7)); "" where it has none."""
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (number == "0" and not controllers) if is_v2 else "memory" in controllers.split(","):
            return path
    return ""


def _directories(hierarchy: _Hierarchy, group: str) -> Iterator[str]:
    """Where ``group`` and those above it are seen, from the inside out.

    A container may see its own group at the mountpoint, under a name that is not there: then that one is all.
    """
    top, root = hierarchy.mountpoint, hierarchy.root.rstrip("/")
    is_inside = group.startswith(root + "/") and ".." not in group.split("/")
    parts = [part for part in group[len(root) :].split("/") if part] if is_inside else []
    for count in range(len(parts), -1, -1):
        yield os.path.join(top, *parts[:count])


def _limits(root: str, directory: str, *, is_v2: bool) -> Iterator[MemoryLimit]:
    """What the files of one group say."""
    inside = os.path.join(root, directory.lstrip("/"))
    for name in ("memory.max", "memory.high") if is_v2 else ("memory.limit_in_bytes",):
        yield from _limit(_text(os.path.join(inside, name)), os.path.join(directory, name))
    if not is_v2:
        stat = dict(line.split(" ", 1) for line in _text(f"{inside}/memory.stat").splitlines() if " " in line)
        yield from _limit(stat.get(_V1_EFFECTIVE, ""), os.path.join(directory, "memory.stat"))


def _limit(text: str, said_by: str) -> Iterator[MemoryLimit]:
    text = text.strip()
    if text.isdecimal() and int(text) < _NO_LIMIT:  # version 2 writes "max" for none
        yield MemoryLimit(int(text), said_by)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""
