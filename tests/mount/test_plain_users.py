"""Two users of one machine, neither of them root: each has mounts, and knows nothing of the other's."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machine import ADA, BOB, Machine
from tests.support.mounted import until

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be two others")

SOURCE = "file:///srv/source"


@pytest.fixture(scope="module")
def whole_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine(tmp_path_factory.mktemp("machine")) as machine:
        (machine.directory / "source").mkdir()
        (machine.directory / "source/text").write_text("source")
        yield machine


@pytest.fixture
def machine(whole_machine: Machine) -> Iterator[Machine]:
    yield whole_machine
    whole_machine.umount_all()


def not_closed(directory: Path) -> list[str]:
    """What is in ``directory``, and itself, that its user's group or others have any right to."""
    found = [directory, *directory.rglob("*")]
    return [str(path) for path in found if stat.S_IMODE(path.lstat().st_mode) & 0o077]


def await_cached(cache: Path) -> None:
    """Return once what was read is in ``cache``."""
    until(lambda: any(cache.rglob("*.data")))


def test_the_cache_is_where_the_user_keeps_such_things(machine: Machine) -> None:
    """In $XDG_CACHE_HOME, or in ~/.cache; with all that is in it for the user alone."""
    for name, environment, cache in (
        ("xdg", {"XDG_CACHE_HOME": "/srv/home/ada/caches"}, "caches/fusestripe"),
        ("relative", {"XDG_CACHE_HOME": "caches"}, ".cache/fusestripe"),  # which the standard has ignored
        ("none", {}, ".cache/fusestripe"),
    ):
        path = machine.mountpoint(f"cache-{name}", ADA)
        machine.run("fusestripe", "mount", SOURCE, path, user=ADA, environment=environment)
        assert machine.run("cat", f"{path}/text", user=ADA).stdout == "source"
        await_cached(machine.directory / "home/ada" / cache)
        assert not_closed(machine.directory / "home/ada" / cache) == []
        machine.run("fusestripe", "unmount", path, user=ADA, environment=environment)


def test_each_sees_their_own_alone(machine: Machine) -> None:
    paths = {user: machine.mountpoint(f"own-{user}", user) for user in (ADA, BOB)}
    for user, path in paths.items():
        machine.run("fusestripe", "mount", SOURCE, path, user=user)
    for user, other in ((ADA, BOB), (BOB, ADA)):
        told = machine.run("fusestripe", "status", user=user).stdout
        assert paths[user] in told
        assert paths[other] not in told
        assert machine.run("cat", f"{paths[user]}/text", user=user).stdout == "source"
        assert "Permission denied" in machine.refused("ls", paths[other], user=user)[1]
        for command in (("status",), ("unmount",), ("prefetch",)):
            code, line = machine.refused("fusestripe", *command, paths[other], user=user)
            assert (code, line.count("\n")) == (1, 1), line
            assert f"({other})" in line, line
    for user, other in ((ADA, BOB), (BOB, ADA)):
        home = f"/srv/home/{'ada' if other == ADA else 'bob'}"
        inside = machine.run("pgrep", "-u", str(other), "-f", "fusestripe.daemon").stdout.split()[0]
        for place in (home, f"{home}/.cache/fusestripe/run", f"/run/user/{other}", f"/proc/{inside}/fd"):
            assert "Permission denied" in machine.refused("ls", place, user=user)[1]
    # Root looks after all of them.
    told = machine.run("fusestripe", "status").stdout
    assert paths[ADA] in told
    assert paths[BOB] in told


def test_a_home_that_is_open_to_others_opens_nothing_of_it(machine: Machine) -> None:
    path = machine.mountpoint("open-home", ADA)
    home = machine.directory / "home/ada"
    home.chmod(0o755)
    try:
        machine.run("fusestripe", "mount", SOURCE, path, user=ADA)
        assert machine.run("cat", f"{path}/text", user=ADA).stdout == "source"
        await_cached(home / ".cache/fusestripe")
        for place in ("", "/run", "/objects"):
            place = f"/srv/home/ada/.cache/fusestripe{place}"
            assert "Permission denied" in machine.refused("ls", place, user=BOB)[1]
    finally:
        home.chmod(0o700)


def test_others_are_let_in_where_the_machine_allows_it(machine: Machine) -> None:
    path = machine.mountpoint("other", ADA)
    mount = ["fusestripe", "mount", SOURCE, path, "--allow-other"]
    code, line = machine.refused(*mount, user=ADA)
    told = "fusestripe: allow_other is for root only: /etc/fuse.conf does not say user_allow_other: "
    assert (code, line.count("\n"), line.startswith(told)) == (1, 1, True)
    assert machine.mounts() == {}
    (machine.directory / "fuse.conf").write_text("user_allow_other\n")
    try:
        machine.run(*mount, user=ADA)
    finally:
        (machine.directory / "fuse.conf").write_text("")
    assert machine.run("cat", f"{path}/text", user=BOB).stdout == "source"
    assert paths_of(machine.run("fusestripe", "status", user=BOB).stdout) == []
    assert machine.refused("fusestripe", "unmount", path, user=BOB)[0] == 1
    machine.run("fusestripe", "unmount", path, user=ADA)


def paths_of(told: str) -> list[str]:
    return [line for line in told.splitlines() if line.startswith("/")]


def test_a_mount_is_found_whatever_the_environment_was(machine: Machine) -> None:
    """By cron or `su -` without XDG_RUNTIME_DIR, then asked for in a session; and the other way round."""
    session = {"XDG_RUNTIME_DIR": f"/run/user/{ADA}"}
    for name, mounting, asking in (("cron", {}, session), ("session", session, {})):
        path = machine.mountpoint(f"found-{name}", ADA)
        machine.run("fusestripe", "mount", SOURCE, path, user=ADA, environment=mounting)
        told = machine.run("fusestripe", "status", path, user=ADA, environment=asking)
        assert paths_of(told.stdout) == [path]
        machine.run("fusestripe", "prefetch", path, user=ADA, environment=asking)
        machine.run("fusestripe", "unmount", path, user=ADA, environment=asking)
        assert machine.daemons() == []  # it was waited for


def test_behind_su_the_session_of_who_called_it_is_not_used(machine: Machine) -> None:
    path = machine.mountpoint("su", ADA)
    bobs = {"XDG_RUNTIME_DIR": f"/run/user/{BOB}"}
    machine.run("fusestripe", "mount", SOURCE, path, user=ADA, environment=bobs)
    for environment in (bobs, {}, {"XDG_RUNTIME_DIR": f"/run/user/{ADA}"}):
        told = machine.run("fusestripe", "status", user=ADA, environment=environment)
        assert paths_of(told.stdout) == [path]


def test_a_mountpoint_of_another(machine: Machine) -> None:
    path = machine.mountpoint("not-hers")
    line = machine.refused("fusestripe", "mount", SOURCE, path, user=ADA)[1]
    assert line == f"fusestripe: this user may not write in {path}: as root: chown ada {path}\n"
    assert machine.mounts() == {}
    assert machine.daemons() == []


def test_owners_and_modes_that_a_user_asks_for(machine: Machine) -> None:
    """They are shown, and give no right that the origin does not: the daemon reads as the user."""
    secret = machine.directory / "source/secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    path = machine.mountpoint("asked", ADA)
    machine.run("fusestripe", "mount", SOURCE, path, "-o", "uid=ada,umask=077,noexec", user=ADA)
    told = machine.run("stat", "-c", "%U %a", f"{path}/text", f"{path}/secret", user=ADA).stdout
    assert told.splitlines() == ["ada 600", "ada 600"]
    assert "Permission denied" in machine.refused("cat", f"{path}/secret", user=ADA)[1]
    assert "noexec" in machine.mounts()[path].options
