"""Entries of an fstab under a real systemd: mounted at boot, when they are looked at, or when asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounted import until
from tests.support.systemd.machine import ROOT, Machine, booted

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be a machine's first process")

GENERATOR = "/usr/lib/systemd/system-generators/systemd-fstab-generator"
TABLE = """\
{source}     {at}/now    fusestripe  ro,_netdev,cache_dir={at}/cache-now                             0  0
{source}     {at}/later  fusestripe  _netdev,nofail,x-systemd.automount,cache_dir={at}/cache-later   0  0
{source}     {at}/plain  fusestripe  _netdev,nofail,x-systemd.automount,channel=no                   0  0
{source}/no  {at}/never  fusestripe  _netdev,nofail,x-systemd.automount                              0  0
{source}     {at}/asked  fusestripe  noauto,cache_dir={at}/cache-asked                               0  0
{source}/no  {at}/fails  fusestripe  _netdev,nofail,cache_dir={at}/cache-fails                       0  0
s3://bucket/a%20b  {at}/url  fusestripe  noauto,ttl=5  0  0
"""


class Booted:
    """The machine, and units by the name of their directory."""

    def __init__(self, machine: Machine, at: Path) -> None:
        self.machine = machine
        self.at = at

    def unit(self, name: str, kind: str = "mount") -> str:
        path = str(self.at / name)
        return self.machine.run("systemd-escape", "--path", f"--suffix={kind}", path).stdout.strip()

    def groups_of(self, word: Path | None = None) -> set[int]:
        """The process groups of what has ``word`` on its command line; without one, of the first process."""
        pids = [self.machine.pid] if word is None else [p.pid for p in self.machine.processes(str(word))]
        return {os.getpgid(pid) for pid in pids}

    def read(self, name: str) -> str:
        return self.machine.run("cat", f"{self.at / name}/text").stdout

    def mounted(self) -> list[str]:
        """The directories where fusestripe is mounted, by name."""
        command = ["findmnt", "--noheadings", "--raw", "--output", "TARGET", "--types", "fuse.fusestripe"]
        lines = self.machine.run(*command, check=False).stdout.splitlines()
        return sorted(Path(line).name for line in lines if line.startswith(f"{self.at}/"))


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    at = tmp_path_factory.mktemp("boot")
    for name in (
        "source",
        "now",
        "later",
        "asked",
        "fails",
        "url",
        "machine/units",
        "machine/sbin",
        "early",
        "late",
    ):
        (at / name).mkdir(parents=True)
    (at / "source/text").write_text("from the store")
    shutil.copy(ROOT / "mount/mount.fusestripe", at / "machine/sbin")
    (at / "fstab").write_text(TABLE.format(source=(at / "source").as_uri(), at=at))
    units = at / "machine/units"
    subprocess.run(
        [GENERATOR, units, at / "early", at / "late"],
        env={**os.environ, "SYSTEMD_FSTAB": str(at / "fstab")},
        check=True,
        timeout=30,
    )
    shutil.rmtree(units / "local-fs.target.wants", ignore_errors=True)  # for the root of the machine
    with booted(at / "machine") as machine:
        machine.run("systemctl", "start", "remote-fs.target")
        yield Booted(machine, at)


def test_what_boot_asks_for_is_mounted_and_what_fails_does_not_stop_it(up: Booted) -> None:
    assert up.machine.run("systemctl", "is-active", "remote-fs.target").stdout == "active\n"
    assert up.mounted() == ["now"]
    assert up.read("now") == "from the store"
    properties = up.machine.properties(up.unit("now"))
    assert (properties["ActiveState"], properties["What"]) == ("active", (up.at / "source").as_uri())
    failed = up.unit("fails")
    until(lambda: up.machine.properties(failed)["ActiveState"] == "failed")  # nobody waits for it
    assert up.machine.properties(failed)["Result"] == "exit-code"
    said = [entry["MESSAGE"] for entry in up.machine.journal("-u", failed)]
    assert any(f"{up.at}/source/no does not exist" in line for line in said), said


@pytest.mark.parametrize("name", ["later", "plain"])
def test_the_first_who_looks_has_it_mounted_again_and_again(name: str, up: Booted) -> None:
    """While its automounter waits, it lets only its own process group through."""
    unit = up.unit(name)
    for _ in range(2):
        assert name not in up.mounted()
        assert up.read(name) == "from the store"
        assert name in up.mounted()
        until(lambda: up.groups_of(up.at / name).isdisjoint(up.groups_of()))
        up.machine.run("systemctl", "stop", unit)
        until(lambda: up.machine.processes(str(up.at / name)) == [])
    assert up.machine.properties(up.unit(name, "automount"))["ActiveState"] == "active"


def test_who_looks_at_what_cannot_be_mounted_gets_an_error(up: Booted) -> None:
    done = up.machine.run("cat", f"{up.at}/never/text", check=False)
    assert done.returncode == 1
    assert "never" not in up.mounted()
    assert up.machine.processes(str(up.at / "never")) == []


def test_what_is_not_asked_for_at_boot_is_there_when_it_is(up: Booted) -> None:
    assert "asked" not in up.mounted()
    unit = up.unit("asked")
    up.machine.run("systemctl", "start", unit)
    assert up.read("asked") == "from the store"
    for process in up.machine.processes(str(up.at / "asked")):
        assert up.machine.properties(unit)["ControlGroup"] in Path(f"/proc/{process.pid}/cgroup").read_text()
    up.machine.run("umount", str(up.at / "asked"))
    until(lambda: up.machine.processes(str(up.at / "asked")) == [])
    until(lambda: up.machine.properties(unit)["ActiveState"] == "inactive")


def test_a_url_comes_through_as_it_is(up: Booted) -> None:
    """Neither its slashes nor its per cent are systemd's."""
    properties = up.machine.properties(up.unit("url"))
    assert (properties["What"], properties["Type"]) == ("s3://bucket/a%20b", "fusestripe")
