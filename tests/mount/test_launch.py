"""Starting and ending a daemon, with a small real FUSE daemon in its place."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import msgspec
import psutil
import pytest

from fusestripe.config import Settings, load
from fusestripe.errors import MountError
from fusestripe.kernel import mounting
from fusestripe.launch import Order, launch, log_path, read_order, stop
from fusestripe.leftovers import LEFT_SECONDS, sweep
from fusestripe.telemetry.client import daemon_pid
from fusestripe.telemetry.rundir import socket_path
from tests.support.mounted import until


def command(behaviour: str) -> list[str]:
    return [sys.executable, "-m", "tests.support.small_daemon", behaviour]


@pytest.fixture
def settings() -> Settings:
    return load("file:///usr/share", {"keeper": "no"}, environ={})


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "mount point"
    path.mkdir()
    yield str(path)
    while mounting.find_mount(str(path)) is not None:
        stop(str(path))


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def test_a_daemon_starts_and_ends(settings: Settings, mountpoint: str) -> None:
    pid = launch(settings, mountpoint, command=command("serve"))
    mount = mounting.find_mount(mountpoint)
    assert mount is not None
    assert (mount.fstype, mount.source, mount.owner) == (mounting.FSTYPE, "small", os.geteuid())
    assert mount in mounting.our_mounts()
    assert daemon_pid(socket_path(mountpoint)) == pid
    assert os.getsid(pid) == pid
    stop(mountpoint)
    assert mounting.find_mount(mountpoint) is None
    assert not psutil.pid_exists(pid)
    assert not os.path.exists(socket_path(mountpoint))


def test_ps_shows_what_is_served_and_no_more(mountpoint: str) -> None:
    flags = {"endpoint": "http://a-secret-place", "profile": "a-secret-name", "keeper": "no"}
    settings = load("s3://bucket/prefix", flags, environ={})
    pid = launch(settings, mountpoint, command=command("serve"))
    process = psutil.Process(pid)
    shown = process.cmdline()
    assert shown[-2:] == [mountpoint, "s3://bucket/prefix"]
    assert "a-secret" not in " ".join([*shown, *process.environ().values()])
    assert process.environ()["MALLOC_ARENA_MAX"] == "2"
    assert process.cwd() == "/"


def test_a_daemon_in_the_foreground_writes_to_stderr(
    settings: Settings, mountpoint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    script = "import sys; sys.exit('out of luck')"
    with pytest.raises(MountError, match=r"ended with status 1 before the tree answered$"):
        launch(settings, mountpoint, foreground=True, command=[sys.executable, "-c", script])
    assert capfd.readouterr().err == "out of luck\n"


@pytest.mark.parametrize(
    ("behaviour", "timeout", "words"),
    [
        ("refuse", 30, r"^the store says no: log in$"),
        ("die", 30, r"^the daemon ended with status 3 before the tree answered: see .*\.log$"),
        ("sulk", 3, r"^the daemon did not answer in 3 s: see .*\.log$"),
    ],
)
def test_a_failed_start_says_why_and_leaves_nothing(
    settings: Settings, mountpoint: str, behaviour: str, timeout: float, words: str
) -> None:
    before = children()
    with pytest.raises(MountError, match=words):
        launch(settings, mountpoint, command=command(behaviour), timeout=timeout)
    assert mounting.find_mount(mountpoint) is None
    assert children() == before


@pytest.mark.parametrize("keeper", ["yes", "no"])
@pytest.mark.parametrize("is_automount", [True, False])
def test_one_that_never_answers_is_ended_with_all_that_it_started(
    mountpoint: str, keeper: str, is_automount: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an automount point it leads no group of processes."""
    monkeypatch.setattr(mounting, "is_automount", lambda path: is_automount)
    settings = load("file:///usr/share", {"keeper": keeper}, environ={})
    before = children()
    with pytest.raises(MountError, match="the daemon did not answer in 2 s"):
        launch(settings, mountpoint, command=command("sulk"), timeout=2)
    until(lambda: children() == before)
    assert mounting.find_mount(mountpoint) is None


def test_a_daemon_killed_at_start_is_named_by_its_signal(settings: Settings, mountpoint: str) -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(MountError, match="was killed by SIGKILL before the tree answered"):
        launch(settings, mountpoint, command=[sys.executable, "-c", script])


def test_what_a_daemon_prints_is_in_its_log(settings: Settings, mountpoint: str) -> None:
    with pytest.raises(MountError, match=re.escape(log_path(mountpoint))):
        launch(settings, mountpoint, command=[sys.executable, "-c", "raise SystemExit('out of luck')"])
    assert Path(log_path(mountpoint)).read_text() == "out of luck\n"
    assert Path(log_path(mountpoint)).stat().st_mode & 0o777 == 0o600


def test_a_log_of_a_daemon_before_is_not_written_over(settings: Settings, mountpoint: str) -> None:
    """The one before may yet write its last words, or throw its log away."""
    path = Path(log_path(mountpoint))
    path.write_text("the one before")
    with path.open() as before:
        launch(settings, mountpoint, command=command("serve"))
        assert before.read() == "the one before"
        assert not os.path.samestat(os.fstat(before.fileno()), path.stat())


def test_a_mounted_mountpoint_is_refused(settings: Settings, mountpoint: str) -> None:
    launch(settings, mountpoint, command=command("serve"))
    with pytest.raises(MountError, match=r"already mounted \(fuse\.fusestripe from small\): fusestripe "):
        launch(settings, mountpoint, command=command("serve"))


def test_of_two_at_once_one_mounts(settings: Settings, mountpoint: str) -> None:
    results: list[object] = []

    def start() -> None:
        try:
            results.append(launch(settings, mountpoint, command=command("serve")))
        except MountError as error:
            results.append(error.message)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(isinstance(result, int) for result in results) == [False, True]
    assert len([mount for mount in mounting.mounts() if mount.mountpoint == mountpoint]) == 1
    assert not os.path.exists(socket_path(mountpoint).removesuffix(".sock") + ".lock")


def test_a_lock_that_another_has_thrown_away_is_not_held(
    settings: Settings, mountpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening it and locking it the one before ended, and its file is no longer what others lock."""
    name = socket_path(mountpoint).removesuffix(".sock") + ".lock"
    opened: list[int] = []
    flock = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        opened.append(os.fstat(descriptor).st_ino)
        if len(opened) == 1:
            os.unlink(name)
        flock(descriptor, operation)
        assert len(opened) == 1 or os.stat(name).st_ino == opened[-1]

    monkeypatch.setattr(fcntl, "flock", late)
    launch(settings, mountpoint, command=command("serve"))
    assert len(opened) == 2


def test_a_mount_left_by_a_killed_daemon_is_removed_and_used(settings: Settings, mountpoint: str) -> None:
    pid = launch(settings, mountpoint, command=command("serve"))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with pytest.raises(OSError, match="not connected"):
        os.listdir(mountpoint)
    second = launch(settings, mountpoint, command=command("serve"))
    assert second != pid
    assert os.listdir(os.path.dirname(mountpoint)) == ["mount point"]
    assert len([mount for mount in mounting.mounts() if mount.mountpoint == mountpoint]) == 1


def test_a_mount_left_by_a_killed_daemon_is_unmounted(settings: Settings, mountpoint: str) -> None:
    pid = launch(settings, mountpoint, command=command("serve"))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    stop(mountpoint)
    assert mounting.find_mount(mountpoint) is None
    assert os.listdir(mountpoint) == []


def test_a_path_inside_a_dead_mount_is_refused(settings: Settings, mountpoint: str) -> None:
    pid = launch(settings, mountpoint, command=command("serve"))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with pytest.raises(MountError, match=r"lies in .*mount point, whose daemon is dead"):
        launch(settings, os.path.join(mountpoint, "below"), command=command("serve"))


def test_a_busy_mount_names_who_holds_it(settings: Settings, mountpoint: str) -> None:
    pid = launch(settings, mountpoint, command=command("serve"))
    with subprocess.Popen(["sleep", "60"], cwd=mountpoint) as holder:
        try:
            with pytest.raises(MountError, match=rf"is in use by sleep \({holder.pid}\): end them first"):
                stop(mountpoint)
            assert psutil.pid_exists(pid)
        finally:
            holder.kill()
    stop(mountpoint)
    assert not psutil.pid_exists(pid)


def test_what_is_not_mounted_is_refused(mountpoint: str) -> None:
    with pytest.raises(MountError, match="is not mounted"):
        stop(mountpoint)


def test_another_programs_mount_is_refused(tmp_path: Path, settings: Settings) -> None:
    path = tmp_path / "tmpfs"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "mine", str(path)], check=True)
    try:
        with pytest.raises(MountError, match=r"is no fusestripe mount \(tmpfs\): umount "):
            stop(str(path))
        with pytest.raises(MountError, match=r"is already mounted \(tmpfs from mine\)"):
            launch(settings, str(path), command=command("serve"))
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_daemon_that_does_not_end_is_told(
    settings: Settings, mountpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = launch(settings, mountpoint, command=command("serve"))
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr("fusestripe.launch.END_SECONDS", 0.1)
    try:
        with pytest.raises(MountError, match=f"its daemon still runs after .*then kill {pid}$"):
            stop(mountpoint)
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: not os.path.exists(socket_path(mountpoint)))
    os.waitpid(pid, 0)


def test_a_mount_whose_daemon_hangs_holds_nobody_up(settings: Settings, mountpoint: str) -> None:
    pid = launch(settings, mountpoint, command=command("serve"))
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(MountError, match=r"already mounted .*, and its daemon does not answer: "):
            launch(settings, mountpoint, command=command("serve"))
        with pytest.raises(MountError, match="is in use and its daemon does not answer: kill the daemon"):
            stop(mountpoint)  # the look that was not answered is itself the user
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: os.listdir(mountpoint) == [])


def left(directory: Path, name: str, *, age: float = LEFT_SECONDS + 60) -> Path:
    path = directory / name
    path.touch()
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def test_what_was_left_long_ago_is_swept(tmp_path: Path) -> None:
    killed = [left(tmp_path, f"{'a' * 16}.{suffix}") for suffix in ("log", "lock", "sock", "sock.new")]
    spare = tmp_path / f"{'e' * 16}.cache"
    spare.mkdir()
    left(spare, "a.data")
    old = time.time() - LEFT_SECONDS - 3600
    os.utime(spare, (old, old))
    killed.append(spare)
    kept = [
        left(tmp_path, f"{'b' * 16}.log", age=LEFT_SECONDS - 3600),  # somebody may want to know why
        left(tmp_path, "notes.log"),
        left(tmp_path, f"{'c' * 16}.log"),
        left(tmp_path, f"{'d' * 16}.log"),
        left(tmp_path, f"{'d' * 16}.lock"),
    ]
    with socket.socket(socket.AF_UNIX) as alive, open(kept[-1], "rb") as mounting_now:
        alive.bind(str(tmp_path / f"{'c' * 16}.sock"))
        alive.listen(0)
        fcntl.flock(mounting_now, fcntl.LOCK_EX)
        for _ in range(3):  # a daemon that hangs does not take who knocks, and is alive
            sweep(str(tmp_path))
    assert [path for path in killed if path.exists()] == []
    assert [path for path in kept if not path.exists()] == []
    assert len(list(tmp_path.iterdir())) == len(kept) + 1  # the socket


def test_a_mount_sweeps(settings: Settings, mountpoint: str) -> None:
    runtime = Path(log_path(mountpoint)).parent
    old = left(runtime, f"{os.getpid():016x}.log")
    launch(settings, mountpoint, command=command("serve"))
    assert not old.exists()
    stop(mountpoint)


def test_an_order_of_a_version_before_has_the_defaults_of_what_is_new(settings: Settings) -> None:
    order = msgspec.json.decode(msgspec.json.encode(Order(settings, "/mnt", -1, False, ("x",))))
    del order["settings"]["mount"]["noexec"], order["settings"]["peers"]["token_file"]
    assert read_order(BytesIO(msgspec.json.encode(order))).settings == settings


def test_a_mountpoint_whose_name_is_not_utf8_is_refused(settings: Settings, tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(path)
    with pytest.raises(MountError, match="is not in UTF-8: mount at one that is"):
        launch(settings, path, command=command("serve"))


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace of one's own is root's")
def test_a_place_that_is_mounted_in_another_namespace(settings: Settings, mountpoint: str) -> None:
    """Both would have one socket, and commands would reach the wrong daemon."""
    inside = (
        "import sys; from fusestripe.config import load; from fusestripe.launch import launch\n"
        "settings = load('file:///usr/share', {'keeper': 'no'}, environ={})\n"
        f"print(launch(settings, sys.argv[1], command={command('serve')}), flush=True)\n"
        "input()"
    )
    with subprocess.Popen(
        ["unshare", "--mount", sys.executable, "-c", inside, mountpoint],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        daemon = int(shell.stdout.readline())
        try:
            assert mounting.find_mount(mountpoint) is None
            with pytest.raises(MountError, match=f"process {daemon} serves .* another mount namespace"):
                launch(settings, mountpoint, command=command("serve"))
            assert daemon_pid(socket_path(mountpoint)) == daemon
        finally:
            os.kill(daemon, signal.SIGTERM)
            until(lambda: daemon_pid(socket_path(mountpoint)) is None)
            shell.stdin.close()
    launch(settings, mountpoint, command=command("serve"))
