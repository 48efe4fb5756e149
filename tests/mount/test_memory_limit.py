"""A mount in a control group with a limit of memory: it keeps below it, or says so before it begins."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusestripe.kernel.mounting import find_mount
from fusestripe.launch import stop
from fusestripe.telemetry.client import request
from fusestripe.telemetry.rundir import socket_path
from fusestripe.units import MIB
from tests.support.memory_group import MemoryGroup, memory_hierarchy

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can make a control group anywhere")

LIMIT = 320 * MIB
SIZE = 400 * MIB


def run(group: MemoryGroup, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`fusestripe ARGUMENTS` in ``group``."""
    command = group.inside(sys.executable, "-m", "fusestripe", *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[MemoryGroup]:
    with memory_hierarchy(tmp_path / "groups") as (hierarchy, is_v2):
        made = MemoryGroup(hierarchy, f"fusestripe-test-{os.getpid()}", LIMIT, is_v2=is_v2)
        try:
            yield made
        finally:
            made.remove()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    return path


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mnt"
    path.mkdir()
    yield path
    if find_mount(str(path)) is not None:
        stop(str(path))


def test_the_default_budget_keeps_a_mount_below_the_limit(
    group: MemoryGroup, source: Path, mountpoint: Path, tmp_path: Path
) -> None:
    """Of a file larger than the limit every byte is read and nobody is killed."""
    digest = hashlib.sha256()
    with (source / "file").open("wb") as file:
        for number in range(SIZE // (16 * MIB)):
            block = random.Random(number).randbytes(16 * MIB)
            digest.update(block)
            file.write(block)
    done = run(group, "mount", source.as_uri(), str(mountpoint), "--cache-dir", str(tmp_path / "cache"))
    assert (done.returncode, done.stderr) == (0, "")
    (status,) = request(socket_path(str(mountpoint)), "status")
    assert status["memory"]["limit"] == 32 * MIB
    for _ in range(2):
        seen = hashlib.sha256()
        with (mountpoint / "file").open("rb", buffering=0) as file:
            while data := file.read(MIB):
                seen.update(data)
        assert seen.digest() == digest.digest()
    assert group.kills() == 0
    shutil.rmtree(tmp_path / "source")


def test_a_budget_beyond_the_limit_is_refused(group: MemoryGroup, source: Path, mountpoint: Path) -> None:
    done = run(group, "mount", source.as_uri(), str(mountpoint), "--memory", "1GiB")
    assert (done.returncode, done.stdout) == (1, "")
    said, _, rest = done.stderr.partition(f"/{group.path.name}/{group.limit_file.name} ")
    assert said.startswith(
        "fusestripe: memory: a memory budget of 1 GiB, and 256 MiB that fusestripe takes beside it, are more "
        "than the 320 MiB that /"
    )
    assert rest == "allows: take 64MiB or less, or raise the limit\n"
    assert find_mount(str(mountpoint)) is None


def test_doctor_says_what_the_limit_leaves(group: MemoryGroup, tmp_path: Path) -> None:
    looked = run(group, "doctor", "--json", "--cache-dir", str(tmp_path))
    (found,) = (each for each in json.loads(looked.stdout) if each["what"] == "memory")
    assert found["level"] == "warning"
    file = f"{group.path.name}/{group.limit_file.name}"
    assert re.match(rf"320 MiB are all that \S*/{file} allows, which leaves 64 MiB to ", found["text"])
    assert "MemoryMax=" in found["mend"]


def test_doctor_names_a_budget_that_does_not_fit(group: MemoryGroup, tmp_path: Path) -> None:
    """And looks at the rest all the same."""
    arguments = ("doctor", tmp_path.as_uri(), "--json", "-o", f"cache_dir={tmp_path}/cache,memory=1GiB")
    looked = run(group, *arguments)
    findings = {each["what"]: each for each in json.loads(looked.stdout)}
    assert looked.returncode == 1
    assert findings["settings"]["level"] == "fail"
    assert str(group.limit_file.name) in findings["settings"]["text"]
    assert findings["fuse"]["level"] == "ok"
