"""The unit for systemd, read by systemd's own tools."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.systemd.machine import UNIT

# Any of them takes a service out of the host's namespaces (systemd.exec(5)), where its mounts are not seen.
OWN_NAMESPACE = re.compile(
    r"(Private(Tmp|Devices|Mounts|IPC|Users)|Protect(System|Home|Proc|Kernel\w+|ControlGroups|Hostname)"
    r"|\w*Paths|TemporaryFileSystem|MountFlags|MountImages|Root\w+|Extension\w+|ProcSubset|LogNamespace"
    r"|DynamicUser|NetworkNamespacePath|PrivateNetwork)="
)


@pytest.fixture
def instance(tmp_path: Path) -> Path:
    """The unit as fusestripe@ckpt.service, with a program that is there."""
    path = tmp_path / "fusestripe@ckpt.service"
    program = f"{sys.executable} -m fusestripe"
    text, count = re.subn(r"^(Exec\w+)=fusestripe ", rf"\1={program} ", UNIT.read_text(), flags=re.MULTILINE)
    assert count == 2
    path.write_text(text)
    return path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0"},
    )


def test_systemd_has_nothing_to_say_of_it(instance: Path) -> None:
    """But for its page of the manual, which need not be installed here."""
    done = analyze("verify", "--man=no", "--recursive-errors=yes", str(instance))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_mistake_in_it_would_be_told(instance: Path) -> None:
    instance.write_text(instance.read_text().replace("KillMode=mixed", "KillMode=kindly"))
    assert "kindly" in analyze("verify", "--man=no", str(instance)).stderr


def test_it_is_as_closed_as_one_that_mounts_for_the_host_can_be(instance: Path) -> None:
    """systemd's sum is of 10, and less is better; CAP_SYS_ADMIN, root and the network make most of it."""
    done = analyze("security", "--offline=yes", "--threshold=52", "--no-pager", str(instance))
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_it_mounts_is_for_the_host() -> None:
    said = [line for line in UNIT.read_text().splitlines() if not line.startswith("#")]
    assert [line for line in said if OWN_NAMESPACE.match(line)] == []
