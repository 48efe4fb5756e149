"""The unit in a real systemd, with a real journal: enabled, killed, stopped, and refused."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.mounted import until
from tests.support.other_user import OTHER_UID
from tests.support.systemd.machine import Machine, booted

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be a machine's first process")

SERVICE = "fusestripe@ckpt.service"
CAPABILITIES = (1, 2, 12, 19, 21)
"""CAP_DAC_OVERRIDE, DAC_READ_SEARCH, NET_ADMIN, SYS_PTRACE, SYS_ADMIN (include/uapi/linux/capability.h)."""
DATA = random.Random(3).randbytes(3_000_000)


class Site:
    """A directory to mount, its configuration, and the machine that mounts it."""

    def __init__(self, directory: Path) -> None:
        self.source, self.point = directory / "source", directory / "mnt"
        self.cache = directory / "cache"
        self.machine_directory = directory / "machine"
        self.configuration = self.machine_directory / "etc/fusestripe/ckpt.toml"
        for path in (self.source, self.point, self.configuration.parent):
            path.mkdir(parents=True)
        (self.source / "file").write_bytes(DATA)
        self.configure(self.source.as_uri())

    def watch(self, seconds: int) -> None:
        """Before the machine is up: how long the unit may be silent."""
        directory = self.machine_directory / "units/fusestripe@.service.d"
        directory.mkdir(parents=True)
        (directory / "watchdog.conf").write_text(f"[Service]\nWatchdogSec={seconds}\n")

    def configure(self, source: str, more: str = "") -> None:
        """Before the machine is up: what its file says."""
        self.configuration.write_text(
            f'[mount]\npoint = "{self.point}"\nallow_other = true\n{more}\n'
            f'[cache]\ndir = "{self.cache}"\nreserve = 0\n\n[[route]]\nsource = "{source}"\n'
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def machine(site: Site) -> Iterator[Machine]:
    with booted(site.machine_directory) as up:
        yield up


def read(machine: Machine, site: Site) -> bytes:
    """What a process of the machine reads there, which is no part of the service."""
    machine.run("cp", f"{site.point}/file", f"{site.source.parent}/read")
    return (site.source.parent / "read").read_bytes()


def mounts(machine: Machine, site: Site) -> list[str]:
    """What the machine's first process sees mounted there."""
    lines = Path(f"/proc/{machine.pid}/mountinfo").read_text().splitlines()
    return [line for line in lines if line.split()[4] == str(site.point)]


def status(machine: Machine, site: Site) -> dict[str, Any]:
    found = json.loads(machine.run("fusestripe", "status", str(site.point), "--json").stdout)
    return dict(found)


def daemon_of(machine: Machine, site: Site) -> psutil.Process:
    (daemon,) = (p for p in machine.processes(str(site.point)) if "fusestripe.daemon" in p.cmdline())
    return daemon


def keeper_of(machine: Machine, site: Site) -> psutil.Process:
    (keeper,) = (p for p in machine.processes(str(site.point)) if "fusestripe.keeper" in p.cmdline())
    return keeper


@pytest.mark.parametrize("keeper", ["true", "false"])
def test_enabled_and_started_it_is_there_for_the_whole_machine(site: Site, keeper: str) -> None:
    site.configure(site.source.as_uri(), f"keeper = {keeper}")
    with booted(site.machine_directory) as machine:
        machine.run("systemctl", "enable", "--now", SERVICE)
        properties = machine.properties(SERVICE)
        assert (properties["ActiveState"], properties["SubState"]) == ("active", "running")
        assert properties["StatusText"] == f"{site.source.as_uri()} at {site.point}"
        assert len(mounts(machine, site)) == 1
        assert read(machine, site) == DATA
        wanted = machine.run("systemctl", "list-dependencies", "--plain", "remote-fs.target").stdout
        assert SERVICE in wanted


def test_a_daemon_that_dies_is_no_matter_for_the_unit(machine: Machine, site: Site) -> None:
    machine.run("systemctl", "start", SERVICE)
    with open(f"/proc/{machine.pid}/root{site.point}/file", "rb", buffering=0) as file:
        assert file.read(10) == DATA[:10]
        daemon_of(machine, site).kill()
        assert file.read(1000) == DATA[10:1010]
        assert read(machine, site) == DATA
    properties = machine.properties(SERVICE)
    assert (properties["ActiveState"], properties["NRestarts"]) == ("active", "0")
    (entry,) = machine.journal("-u", SERVICE, "--priority=warning")
    assert entry["PRIORITY"] == "4"
    assert entry["MESSAGE"] == (
        "fusestripe.keeper: the daemon was killed by SIGKILL; another takes the mount over"
    )


def test_reload_has_what_is_installed_now_serve_on(machine: Machine, site: Site) -> None:
    machine.run("systemctl", "start", SERVICE)
    before, daemon = machine.properties(SERVICE), daemon_of(machine, site)
    with open(f"/proc/{machine.pid}/root{site.point}/file", "rb", buffering=0) as file:
        assert file.read(10) == DATA[:10]
        machine.run("systemctl", "reload", SERVICE)
        assert file.read(1000) == DATA[10:1010]
    assert daemon_of(machine, site).pid != daemon.pid
    after = machine.properties(SERVICE)
    assert (after["ActiveState"], after["MainPID"]) == ("active", before["MainPID"])
    assert machine.journal("-u", SERVICE, "--priority=warning") == []


@pytest.mark.parametrize(("keeper", "restarts"), [("true", "0"), ("false", "1")])
def test_a_daemon_that_hangs_is_ended(site: Site, keeper: str, restarts: str) -> None:
    """By its keeper, and another takes over; without one by systemd."""
    site.configure(site.source.as_uri(), f"keeper = {keeper}")
    site.watch(5)
    with booted(site.machine_directory) as machine:
        machine.run("systemctl", "start", SERVICE)
        daemon = daemon_of(machine, site)
        daemon.suspend()
        daemon.wait(40)
        until(lambda: machine.properties(SERVICE)["NRestarts"] == restarts, timeout=30)
        until(lambda: machine.properties(SERVICE)["ActiveState"] == "active", timeout=30)
        assert read(machine, site) == DATA


def test_a_keeper_that_hangs_is_ended_by_systemd(site: Site) -> None:
    site.watch(5)
    with booted(site.machine_directory) as machine:
        machine.run("systemctl", "start", SERVICE)
        keeper = keeper_of(machine, site)
        keeper.suspend()
        keeper.wait(40)
        until(lambda: machine.properties(SERVICE)["NRestarts"] == "1", timeout=30)
        until(lambda: machine.properties(SERVICE)["ActiveState"] == "active", timeout=30)
        assert read(machine, site) == DATA


def test_all_that_root_can_do_is_done_though_it_is_closed_in(machine: Machine, site: Site) -> None:
    """Nothing that the unit forbids is missed: read-ahead, the channel, passthrough; another user reads."""
    machine.run("fusestripe", "mount", "/etc/fusestripe/ckpt.toml")
    without = status(machine, site)["features"]
    machine.run("fusestripe", "unmount", "/etc/fusestripe/ckpt.toml")
    machine.run("systemctl", "start", SERVICE)
    assert status(machine, site)["features"] == without
    assert {"read-ahead", "channel", "passthrough"} <= {feature["name"] for feature in without}
    machine.run("fusestripe", "prefetch", str(site.point))
    until(lambda: status(machine, site)["open_files"] == 0)
    assert read(machine, site) == DATA
    # From there on: pytest keeps the way to it closed.
    as_other = f"setpriv --reuid={OTHER_UID} --regid={OTHER_UID} --clear-groups"
    other = machine.run("sh", "-c", f'cd "{site.point}" && exec {as_other} ls')
    assert other.stdout == "file\n"
    processes = machine.processes(str(site.point))
    assert processes != []
    for process in processes:
        said = Path(f"/proc/{process.pid}/status").read_text()
        assert "NoNewPrivs:\t1\n" in said
        assert "Seccomp:\t2\n" in said
        bounding = int(said.partition("CapBnd:")[2].split()[0], 16)
        assert bounding == sum(1 << number for number in CAPABILITIES)


def test_the_journal_has_its_fields(machine: Machine, site: Site) -> None:
    machine.run("systemctl", "start", SERVICE)
    (entry,) = machine.journal(f"FUSESTRIPE_MOUNTPOINT={site.point}", "PRIORITY=6")
    assert entry["MESSAGE"] == f"{site.point} is mounted"
    assert entry["SYSLOG_IDENTIFIER"] == "fusestripe"
    assert entry["_SYSTEMD_UNIT"] == SERVICE
    assert entry["LOGGER"] == "fusestripe"
    assert entry["CODE_FUNC"] == "_announce"
    assert machine.journal("-u", SERVICE, "--priority=warning") == []


def test_stopped_it_leaves_no_mount_though_a_file_is_open(machine: Machine, site: Site) -> None:
    machine.run("systemctl", "start", SERVICE)
    with open(f"/proc/{machine.pid}/root{site.point}/file", "rb"):
        machine.run("systemctl", "stop", SERVICE)
        properties = machine.properties(SERVICE)
        assert (properties["ActiveState"], properties["Result"]) == ("inactive", "success")
        assert mounts(machine, site) == []
        machine.run("systemctl", "start", SERVICE)
        assert read(machine, site) == DATA


def test_killed_as_a_whole_it_comes_back_and_clears_the_dead_mount(machine: Machine, site: Site) -> None:
    machine.run("systemctl", "start", SERVICE)
    before = machine.properties(SERVICE)
    # Without systemd to see it: the mount is dead, and the unit is failed.
    machine.run("systemctl", "kill", "--signal=KILL", "--kill-whom=all", SERVICE)
    until(lambda: machine.properties(SERVICE)["ActiveState"] != "active")
    assert len(mounts(machine, site)) == 1
    until(lambda: machine.properties(SERVICE)["ActiveState"] == "active", timeout=30)
    after = machine.properties(SERVICE)
    assert after["NRestarts"] == "1"
    assert after["InvocationID"] != before["InvocationID"]
    assert len(mounts(machine, site)) == 1
    assert read(machine, site) == DATA


def test_a_mount_that_died_before_the_unit_is_cleared(machine: Machine, site: Site) -> None:
    machine.run("fusestripe", "mount", "/etc/fusestripe/ckpt.toml")
    for process in machine.processes(str(site.point)):
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    assert len(mounts(machine, site)) == 1
    assert machine.run("ls", str(site.point), check=False).returncode != 0
    machine.run("systemctl", "start", SERVICE)
    assert len(mounts(machine, site)) == 1
    assert read(machine, site) == DATA


@pytest.mark.parametrize(
    ("source", "more", "message"),
    [
        ("s4://bucket", "", "unknown scheme s4://"),
        ("s3://bucket", "pont = 1", 'unknown key "pont" in [mount]'),
    ],
)
def test_what_only_a_person_can_mend_is_said_once(
    tmp_path: Path, site: Site, source: str, more: str, message: str
) -> None:
    site.configure(source, more)
    with booted(site.machine_directory) as machine:
        assert machine.run("systemctl", "start", SERVICE, check=False).returncode != 0
        properties = machine.properties(SERVICE)
        assert (properties["ActiveState"], properties["NRestarts"]) == ("failed", "0")
        (entry,) = machine.journal("-u", SERVICE, "--priority=err", "_COMM=python")
        assert entry["MESSAGE"].startswith("fusestripe: /etc/fusestripe/ckpt.toml:")
        assert message in entry["MESSAGE"]
        assert mounts(machine, site) == []


def test_an_origin_that_is_away_is_tried_until_it_is_there(site: Site) -> None:
    (site.source / "file").unlink()
    site.source.rmdir()
    with booted(site.machine_directory) as machine:
        machine.run("systemctl", "start", "--no-block", SERVICE)
        until(lambda: machine.properties(SERVICE)["NRestarts"] == "1", timeout=30)
        assert mounts(machine, site) == []
        site.source.mkdir()
        (site.source / "file").write_bytes(DATA)
        until(lambda: machine.properties(SERVICE)["ActiveState"] == "active", timeout=30)
        assert read(machine, site) == DATA


def test_the_scripts_of_this_test_are_clean() -> None:
    script = Path(__file__).parents[1] / "support/systemd/boot.sh"
    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
