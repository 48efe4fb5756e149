"""mount(8), umount(8) and findmnt(8) themselves, with entries of an fstab: what they say holds."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machine import ADA, BOB, CODE, Machine
from tests.support.mounted import until
from tests.support.seaweed import SECRET_KEY, SeaweedServer

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can make namespaces of mounts and users")

SOURCE = "file:///srv/source"
SEVERAL = """
[cache]
dir = "/srv/tmp/several"
[[route]]
path = "/one"
source = "file:///srv/source"
[[route]]
path = "/two"
source = "file:///srv/a source"
"""


@pytest.fixture(scope="module")
def whole_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A source with a text, a program and one that is root's by its mode."""
    with Machine(tmp_path_factory.mktemp("machine")) as machine:
        for name in ("source", "a source"):
            (machine.directory / name).mkdir()
            (machine.directory / name / "text").write_text(name)
        program = machine.directory / "source/program"
        program.write_text("#!/bin/sh\necho it runs\n")
        program.chmod(0o755)
        shutil.copy("/usr/bin/id", machine.directory / "source/id")
        (machine.directory / "source/id").chmod(0o4755)
        (machine.directory / "several.toml").write_text(SEVERAL)
        yield machine


@pytest.fixture
def machine(whole_machine: Machine) -> Iterator[Machine]:
    """With nothing mounted, and an empty fstab."""
    yield whole_machine
    whole_machine.umount_all()


def caching(name: str) -> str:
    return f"cache_dir=/srv/tmp/{name}"


def found(machine: Machine, path: str) -> list[str]:
    """What findmnt(8) tells of it: source, type and options."""
    told = machine.run("findmnt", "--noheadings", "--raw", "--output", "SOURCE,FSTYPE,OPTIONS", path).stdout
    return told.split()


def test_by_hand(machine: Machine) -> None:
    path = machine.mountpoint("hand")
    done = machine.run(
        "mount", "-t", "fusestripe", SOURCE, path, "-o", f"{caching('hand')},allow_other,_netdev"
    )
    assert done.stdout + done.stderr == ""
    assert machine.run("cat", f"{path}/text", user=ADA).stdout == "source"
    source, kind, options = found(machine, path)
    assert (source, kind) == (SOURCE, "fuse.fusestripe")
    assert {"ro", "nosuid", "nodev", "allow_other", "user_id=0"} <= set(options.split(","))
    assert f"{SOURCE} {path} fuse.fusestripe ro," in machine.run("cat", "/proc/mounts").stdout
    machine.run("umount", path)
    assert machine.mounts() == {}
    until(lambda: machine.daemons() == [])


def test_everything_in_fstab(machine: Machine) -> None:
    """Once: what is there already is recognised, whether it is a URL or a file of settings."""
    paths = [machine.mountpoint(name) for name in ("all-1", "all 2", "all-3", "all-4")]
    machine.fstab(
        "# what this machine mounts",
        f"{SOURCE}  {paths[0]}  fusestripe  defaults,_netdev,nofail,{caching('all-1')},comment=x,x-a.b=c",
        "file:///srv/a%20source /srv/mnt/all\\0402 fusestripe ro,cache_dir=/srv/tmp/all\\0402 0 0",
        f"/srv/several.toml {paths[2]} fusestripe ro,ttl=5,x-systemd.automount 0 0",
        f"{SOURCE} {paths[3]} fusestripe noauto,{caching('all-4')} 0 0",
    )
    daemons: list[set[int]] = []
    for _ in range(2):
        machine.run("mount", "-a")
        assert {path: mount.source for path, mount in machine.mounts().items()} == {
            paths[0]: SOURCE,
            paths[1]: "file:///srv/a%20source",
            paths[2]: "/srv/several.toml",
        }
        daemons.append({process.pid for process in machine.daemons()})
    assert daemons[0] == daemons[1]
    assert machine.run("cat", f"{paths[1]}/text", f"{paths[2]}/two/text").stdout == "a source" * 2
    assert (machine.directory / "tmp/all 2/objects").is_dir()
    assert found(machine, paths[2])[0] == "/srv/several.toml"
    machine.run("umount", "/srv/several.toml")
    machine.run("umount", "-a", "-t", "fuse.fusestripe")
    assert machine.mounts() == {}
    machine.run("mount", paths[3])
    assert list(machine.mounts()) == [paths[3]]


def test_of_another_table(machine: Machine) -> None:
    path = machine.mountpoint("table")
    (machine.directory / "table").write_text(f"{SOURCE} {path} fuse.fusestripe {caching('table')} 0 0\n")
    machine.run("mount", "-a", "-T", "/srv/table")
    assert found(machine, path)[0] == SOURCE
    machine.run("umount", path)
    machine.run("mount", "-T", "/srv/table", path)
    assert found(machine, path)[0] == SOURCE


def test_who_owns_what_with_which_modes(machine: Machine) -> None:
    path = machine.mountpoint("owned")
    machine.fstab(f"{SOURCE} {path} fusestripe {caching('owned')},allow_other,uid=ada,gid=bob,umask=027 0 0")
    machine.run("mount", path)
    told = machine.run("stat", "-c", "%U %G %a", path, f"{path}/text", f"{path}/program", user=ADA).stdout
    assert told.splitlines() == ["ada bob 750", "ada bob 640", "ada bob 750"]
    assert machine.run("cat", f"{path}/text", user=ADA).stdout == "source"
    assert machine.run("cat", f"{path}/text", user=BOB).stdout == "source"
    other = ["setpriv", "--reuid=1", "--regid=1", "--clear-groups", "cat", f"{path}/text"]
    assert "Permission denied" in machine.refused(*other)[1]


def test_an_owner_who_cannot_look_into_it_is_told_of(machine: Machine) -> None:
    path = machine.mountpoint("closed")
    done = machine.run("mount", "-t", "fusestripe", SOURCE, path, "-o", f"{caching('closed')},uid=ada")
    assert done.stderr == f"mount.fusestripe: ada cannot look into {path}: that takes allow_other\n"


@pytest.mark.parametrize("more", ["", "passthrough=no,", "channel=no,"])
def test_programs_run_or_do_not_and_are_never_set_user_id(more: str, machine: Machine) -> None:
    options = f"{more}{caching('programs')},allow_other"
    for said, runs in (("suid,dev,exec", True), ("noexec", False)):
        path = machine.mountpoint(f"exec-{said}-{more}")
        machine.run("mount", "-t", "fusestripe", SOURCE, path, "-o", f"{options},{said}")
        for _ in range(2):  # the second time from the cache
            if runs:
                assert machine.run(f"{path}/program").stdout == "it runs\n"
                assert machine.run(f"{path}/id", "-u", user=ADA).stdout == f"{ADA}\n"
            else:
                assert "Permission denied" in machine.refused(f"{path}/program")[1]
                assert "Permission denied" in machine.refused(f"{path}/id", user=ADA)[1]
        assert machine.run("cat", f"{path}/text").stdout == "source"
        machine.run("umount", path)


REFUSED = [
    ("cache_dirr=/x", 1, 'unknown option "cache_dirr": did you mean cache_dir?'),
    ("noexc", 1, 'unknown option "noexc": did you mean noexec?'),
    ("allow_root", 1, "allow_root: only who mounts can be let in, or all: take allow_other, "),
    ("stripe_size=1", 1, "stripe_size: a stripe size of 1 bytes is not a multiple of 4 KiB: take one, like"),
    ("uid=nobody-here", 1, "uid: 'nobody-here' is not a user of this machine: name a user, or write the"),
    ("umask=8", 1, "umask: '8' is not a umask: write it in octal and, in TOML, as text: \"022\""),
    ("noatime=1", 1, "noatime takes no value: write noatime"),
    ("config=/srv/none.toml", 1, "/srv/none.toml: no such file or directory: "),
    ("env_file=/srv/none", 1, "/srv/none: no such file or directory: "),
    ("cache_dir=/proc/x", 32, "/proc/x"),
]


@pytest.mark.parametrize(("options", "status", "says"), REFUSED, ids=[options for options, *_ in REFUSED])
def test_what_is_refused_by_name(options: str, status: int, says: str, machine: Machine) -> None:
    path = machine.mountpoint(f"refused-{status}-{options.partition('=')[0]}")
    code, line = machine.refused("mount", "-t", "fusestripe", SOURCE, path, "-o", options)
    assert (code, line.count("\n")) == (status, 1)
    assert line.startswith("mount.fusestripe: ")
    assert says in line
    assert machine.mounts() == {}
    assert machine.daemons() == []


def test_a_source_that_is_not_there_is_a_mount_that_fails(machine: Machine) -> None:
    path = machine.mountpoint("nothing")
    code, line = machine.refused(
        "mount", "-t", "fusestripe", "file:///srv/nothing", path, "-o", caching("no")
    )
    assert (code, "/srv/nothing does not exist" in line) == (32, True)
    machine.fstab(
        f"file:///srv/nothing {path} fusestripe nofail,{caching('no')} 0 0",
        f"{SOURCE} {machine.mountpoint('something')} fusestripe {caching('some')} 0 0",
    )
    assert machine.run("mount", "-a", check=False).returncode == 64  # mount(8): some mount succeeded
    assert list(machine.mounts()) == ["/srv/mnt/something"]


def test_a_mount_is_not_changed_by_remount(machine: Machine) -> None:
    path = machine.mountpoint("again")
    machine.run("mount", "-t", "fusestripe", SOURCE, path, "-o", caching("again"))
    before = machine.mounts()
    code, line = machine.refused("mount", "-o", "remount,ttl=5", path)
    assert code == 1
    assert line.startswith(
        "mount.fusestripe: remount: a mount cannot be changed while it is there: umount it"
    )
    assert machine.mounts() == before


def test_the_switches_of_mount(machine: Machine) -> None:
    path = machine.mountpoint("switches")
    mount = ["mount", "-t", "fusestripe", SOURCE, path, "-o", f"{caching('switches')},whatever=3"]
    fake = machine.run(*mount, "-f", "-s", "-v")
    assert fake.stderr.splitlines() == [
        "mount.fusestripe: ignored: whatever",
        f"mount.fusestripe: {SOURCE} would be mounted on {path}, read-only",
    ]
    assert machine.mounts() == {}
    assert machine.run(*mount, "-s", "-n").stderr == ""
    assert list(machine.mounts()) == [path]


def test_in_the_namespace_of_another_process(machine: Machine) -> None:
    path = machine.mountpoint("namespace")
    sleep = "echo $$ && exec sleep infinity"
    holder = subprocess.Popen(
        machine.command("unshare", "--mount", "--propagation=private", "sh", "-c", sleep),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert holder.stdout is not None
        pid = holder.stdout.readline().strip()
        machine.run("mount", "-N", pid, "-t", "fusestripe", SOURCE, path, "-o", caching("namespace"))
        assert machine.mounts() == {}
        assert machine.run("nsenter", "-t", pid, "-m", "cat", f"{path}/text").stdout == "source"
        machine.run("umount", "-N", pid, path)
    finally:
        machine.run("kill", pid)
        holder.wait(20)
        assert holder.stdout is not None
        holder.stdout.close()
    until(lambda: machine.daemons() == [])


class TestUsers:
    """Who is not root, with an entry that lets him."""

    def test_one_who_may(self, machine: Machine) -> None:
        path = machine.mountpoint("user", ADA)
        machine.fstab(f"{SOURCE} {path} fusestripe user,noauto 0 0")
        machine.run("mount", path, user=ADA)
        assert machine.run("cat", f"{path}/text", user=ADA).stdout == "source"
        source, _, options = found(machine, path)
        assert source == SOURCE
        # What mount(8) makes of "user".
        assert {"noexec", "nosuid", "nodev", f"user_id={ADA}"} <= set(options.split(","))
        assert {uid for process in machine.daemons() for uid in process.uids()} == {ADA}
        assert (machine.directory / "home/ada/.cache/fusestripe/objects").is_dir()
        assert "Permission denied" in machine.refused("ls", path)[1]  # root is another here
        assert machine.refused("umount", path, user=BOB) == (
            32,
            f"umount: {path}: must be superuser to unmount.\n",
        )
        machine.run("umount", path, user=ADA)
        assert machine.mounts() == {}
        until(lambda: machine.daemons() == [])

    def test_by_any_of_them(self, machine: Machine) -> None:
        path = machine.mountpoint("users", ADA)
        machine.fstab(f"{SOURCE} {path} fusestripe users,noauto 0 0")
        machine.run("mount", path, user=ADA)
        machine.run("umount", path, user=BOB)
        assert machine.mounts() == {}

    def test_on_a_directory_that_is_not_theirs(self, machine: Machine) -> None:
        path = machine.mountpoint("roots-directory")
        machine.fstab(f"{SOURCE} {path} fusestripe user,noauto 0 0")
        assert machine.refused("mount", path, user=ADA) == (
            32,
            f"mount.fusestripe: this user may not write in {path}: as root: chown ada {path}\n",
        )
        assert machine.mounts() == {}

    def test_without_an_entry(self, machine: Machine) -> None:
        """mount(8) gives up its rights then, and FUSE asks for none."""
        path = machine.mountpoint("by-hand", ADA)
        machine.run("mount", "-t", "fusestripe", SOURCE, path, "-o", "ttl=5", user=ADA)
        assert machine.run("cat", f"{path}/text", user=ADA).stdout == "source"
        assert {uid for process in machine.daemons() for uid in process.uids()} == {ADA}
        machine.run("umount", path, user=ADA)

    def test_with_others_let_in(self, machine: Machine) -> None:
        path = machine.mountpoint("user-other", ADA)
        machine.fstab(f"{SOURCE} {path} fusestripe user,noauto,allow_other 0 0")
        code, line = machine.refused("mount", path, user=ADA)
        told = (
            "mount.fusestripe: allow_other is for root only: /etc/fuse.conf does not say user_allow_other: "
        )
        assert (code, line.count("\n"), line.startswith(told)) == (32, 1, True)
        (machine.directory / "fuse.conf").write_text("user_allow_other\n")
        try:
            machine.run("mount", path, user=ADA)
            assert machine.run("cat", f"{path}/text", user=BOB).stdout == "source"
        finally:
            (machine.directory / "fuse.conf").write_text("")


class TestAtBoot:
    """With no environment at all."""

    def mount_all(self, machine: Machine) -> subprocess.CompletedProcess[str]:
        return machine.run("env", "-i", "/usr/bin/mount", "-a", check=False)

    def test_what_is_not_in_any_environment(self, machine: Machine) -> None:
        path = machine.mountpoint("boot")
        machine.fstab(f"{SOURCE} {path} fusestripe _netdev,{caching('boot')} 0 0")
        done = self.mount_all(machine)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        for daemon in machine.daemons():
            environment = daemon.environ()
            assert environment["HOME"] == "/root"
            assert "/usr/bin" in environment["PATH"].split(":")

    def test_credentials_from_a_file(
        self, machine: Machine, s3_server: SeaweedServer, s3_bucket: str
    ) -> None:
        s3_server.put(s3_bucket, "dir/file", b"from the store")
        path = machine.mountpoint("secrets")
        secrets = machine.directory / "secrets"
        lines = [f'{name}="{value}"' for name, value in s3_server.environment.items()]
        secrets.write_text("\n".join(["# of the store", "", *lines, ""]))
        machine.fstab(
            f"s3://{s3_bucket}/dir {path} fusestripe env_file=/srv/secrets,{caching('boot-s3')} 0 0"
        )
        done = self.mount_all(machine)
        assert (
            done.stderr
            == "mount.fusestripe: /srv/secrets: others have rights to it: chmod 600 /srv/secrets\n"
        )
        secrets.chmod(0o600)
        assert self.mount_all(machine).returncode == 0
        assert machine.run("cat", f"{path}/file").stdout == "from the store"
        assert found(machine, path)[0] == f"s3://{s3_bucket}/dir"
        shown = [word for process in machine.daemons() for word in process.cmdline()]
        assert f"s3://{s3_bucket}/dir" in shown
        assert SECRET_KEY not in " ".join(shown) + machine.run("cat", "/proc/mounts").stdout

    def test_credentials_in_a_users_own_files(
        self, machine: Machine, s3_server: SeaweedServer, s3_bucket: str
    ) -> None:
        """Found though mount(8) takes HOME away; and a URL with its endpoint is known by mount -a."""
        s3_server.put(s3_bucket, "file", b"from the store")
        path = machine.mountpoint("profile", ADA)
        endpoint = s3_server.endpoint
        aws = machine.directory / "home/ada/.aws"
        aws.mkdir()
        given = s3_server.environment
        (aws / "credentials").write_text(
            f"[store]\naws_access_key_id = {given['AWS_ACCESS_KEY_ID']}\n"
            f"aws_secret_access_key = {given['AWS_SECRET_ACCESS_KEY']}\n"
        )
        source = f"s3://{s3_bucket}?endpoint={endpoint}"
        machine.fstab(f"{source} {path} fusestripe user,profile=store,region=us-east-1 0 0")
        machine.run("mount", path, user=ADA)
        assert machine.run("cat", f"{path}/file", user=ADA).stdout == "from the store"
        assert machine.run("mount", "-a", "-v").stdout.endswith(": already mounted\n")


def direct(program: Path | str, *arguments: str) -> tuple[int, str]:
    """The status of ``program``, run outside of the machine, and what it says."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=30)
    return done.returncode, done.stderr


def test_the_file_that_is_linked_finds_its_program(tmp_path: Path) -> None:
    """Below the prefix that it was installed to."""
    (tmp_path / "sbin").mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copy(CODE / "mount/mount.fusestripe", tmp_path / "sbin")
    (tmp_path / "elsewhere").symlink_to(tmp_path / "sbin" / "mount.fusestripe")
    (tmp_path / "bin/mount.fusestripe").write_text('#!/bin/sh\necho "$#:$3" >&2\nexit 7\n')
    (tmp_path / "bin/mount.fusestripe").chmod(0o755)
    assert direct(tmp_path / "elsewhere", "a", "b c", "-o x  y") == (7, "3:-o x  y\n")
    assert direct("shellcheck", str(CODE / "mount/mount.fusestripe")) == (0, "")


def test_a_start_that_is_ended_leaves_nothing(machine: Machine) -> None:
    """As when systemd's time for a mount unit is over."""
    path = machine.mountpoint("ended")
    source = machine.directory / "fifo.toml"
    # A store that accepts and is silent: the daemon is still at its check.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source.write_text(
            f'[[route]]\nsource = "s3://bucket"\nendpoint = "http://127.0.0.1:{silent.getsockname()[1]}"\n'
            "anonymous = true\n"
        )
        process = subprocess.Popen(
            machine.command("/sbin/mount.fusestripe", "/srv/fifo.toml", path, "-o", caching("ended")),
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            connection, _ = silent.accept()
            with connection:
                machine.run("pkill", "-TERM", "-f", "fusestripe.mount_helper /srv/fifo.toml")
                assert process.wait(20) == 8
                assert process.stderr is not None
                assert process.stderr.read() == "mount.fusestripe: interrupted\n"
    assert machine.mounts() == {}
    until(lambda: machine.daemons() == [])
