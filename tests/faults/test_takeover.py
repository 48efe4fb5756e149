"""A daemon that dies under its readers: another takes the mount over, and they see a pause and no error."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from fusestripe.api import prefetch
from fusestripe.keeper import FALSE_STARTS
from fusestripe.kernel.mounting import detach, find_mount
from fusestripe.launch import DAEMON, stop
from fusestripe.prefetcher import Report
from fusestripe.telemetry.client import daemon_pid
from fusestripe.telemetry.rundir import socket_path
from tests.support.mounted import Mounted, until
from tests.support.mounted_store import KIB, MIB, MountedStore, content, is_gone

KILLS = int(os.environ.get("FUSESTRIPE_KILLS", "20"))
"""How often the daemon is killed; 200 is the long form."""
SIZE = 6 * MIB + 77
DATA = content(SIZE)
EXPECTED = ("another takes the mount over", "is given up", "has changed since")


def kill_daemon(mount: Mounted) -> None:
    """kill -9, and wait for the next one."""
    pid = mount.kill_daemon()
    until(lambda: daemon_pid(socket_path(str(mount.path))) not in (None, pid))


@contextmanager
def kept(store: MountedStore, **settings: Any) -> Iterator[Mounted]:
    """A mount with a keeper; nothing in its log but deaths that the test meant."""
    with store.mount(complaints=True, keeper="yes", **settings) as mount:
        yield mount
        complaints = [line for line in mount.complaints() if not any(word in line for word in EXPECTED)]
        assert complaints == [], "\n".join(complaints)
    assert mount.keeper is not None
    assert is_gone(mount.keeper)


@contextmanager
def reading(path: Path, data: bytes) -> Iterator[list[int]]:
    """Threads that open ``path``, read it anywhere and compare, until the end; how often each did."""
    is_over = threading.Event()
    failures: list[str] = []
    counts = [0] * 4

    def read(number: int) -> None:
        places = random.Random(number)
        try:
            while not is_over.is_set():
                with path.open("rb", buffering=0) as file:
                    for _ in range(10):
                        offset, length = places.randrange(len(data)), places.randrange(256 * KIB)
                        assert os.pread(file.fileno(), length, offset) == data[offset : offset + length]
                    assert path.name in os.listdir(path.parent)
                    counts[number] += 1
        except (OSError, AssertionError) as error:
            failures.append("".join(traceback.format_exception(error))[-600:])

    threads = [threading.Thread(target=read, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        is_over.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


def test_dd_survives_many_kills(store: MountedStore) -> None:
    store.put("file", DATA)
    with kept(store, memory="4MiB", cache_size="4MiB") as mount:
        command = ["dd", f"if={mount.path}/file", "bs=64k", "status=none"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            digest = hashlib.sha256()
            for _ in range(KILLS):
                digest.update(process.stdout.read(128 * KIB))
                kill_daemon(mount)
            digest.update(process.stdout.read())
        assert process.returncode == 0
        assert digest.digest() == hashlib.sha256(DATA).digest()
        until(lambda: mount.status()["open_files"] == 0)


def test_daemons_killed_before_they_are_ready_cost_no_mount(store: MountedStore) -> None:
    """Who kills them is outside: it says nothing of whether the next one can begin."""
    store.put("file", DATA)
    with kept(store) as mount:
        keeper = psutil.Process(mount.keeper)
        for _ in range(FALSE_STARTS + 2):
            until(lambda: len(keeper.children()) == 1)
            (daemon,) = keeper.children()
            daemon.kill()
            daemon.wait(20)
        assert (mount.path / "file").read_bytes() == DATA


OLD_KERNEL = (sys.executable, "-m", "tests.support.old_kernel_daemon")


@pytest.mark.parametrize("command", [DAEMON, OLD_KERNEL], ids=["resent", "noted"])
def test_readers_survive_kills_at_any_moment(store: MountedStore, command: Sequence[str]) -> None:
    """Of daemons that are just beginning too."""
    store.put("file", DATA)
    moments = random.Random(7)
    with (
        kept(store, memory="4MiB", cache_size="4MiB", command=command) as mount,
        reading(mount.path / "file", DATA) as counts,
    ):
        keeper = psutil.Process(mount.keeper)
        for _ in range(KILLS // 2):
            until(lambda: len(keeper.children()) == 1)
            (daemon,) = keeper.children()
            before, patience = sum(counts), moments.choice([0.3, 1.0, 20.0])
            with suppress(AssertionError):
                until(lambda before=before: sum(counts) > before, patience)  # type: ignore[misc]
            daemon.kill()
            daemon.wait(20)


def test_a_file_in_passthrough_does_not_notice(store: MountedStore) -> None:
    """It is read while there is no daemon at all; who opens it then waits."""
    store.put("file", DATA)
    with kept(store) as mount:
        path = mount.path / "file"
        assert path.read_bytes() == DATA
        until(lambda: passes_through(mount, path))
        with path.open("rb", buffering=0) as file:
            assert mount.status()["passed_through"] == 1
            keeper = psutil.Process(mount.keeper)
            keeper.suspend()
            pid = mount.kill_daemon()
            drop_pages_of(file.fileno())
            assert file.readall() == DATA
            keeper.resume()
            until(lambda: daemon_pid(socket_path(str(mount.path))) not in (None, pid))
            assert mount.status()["passed_through"] == 1
            with path.open("rb", buffering=0) as second:  # with the backing file of the first
                assert second.readall() == DATA
            assert os.pread(file.fileno(), 100, 5) == DATA[5:105]
        until(lambda: mount.status()["open_files"] == 0)
        until(lambda: mount.status()["passed_through"] == 0)
        assert path.read_bytes() == DATA


def passes_through(mount: Mounted, path: Path) -> bool:
    """Whether the kernel reads ``path`` itself, where nobody else has it open."""
    until(lambda: mount.status()["open_files"] == 0)  # as it was opened it stays as long as it is open
    with path.open("rb"):
        return bool(mount.status()["passed_through"] == 1)


def read_all(descriptor: int, into: bytearray) -> None:
    """All of the file to the end of ``into``, also what comes before an error."""
    while part := os.pread(descriptor, SIZE, len(into)):
        into += part


def drop_pages_of(descriptor: int) -> None:
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def test_what_is_open_stays_what_it_was(store: MountedStore) -> None:
    """Files, directories, a map, and what is looked up from a directory that is open."""
    store.put("dir/sub/file", DATA)
    for number in range(300):
        store.put(f"dir/many/{number:03}", b"x")
    with kept(store, passthrough="no", ttl=600) as mount:
        inner = os.open(mount.path / "dir" / "sub", os.O_RDONLY | os.O_DIRECTORY)
        file = os.open("file", os.O_RDONLY, dir_fd=inner)
        before = {name: os.stat(mount.path / name) for name in ("", "dir", "dir/sub", "dir/sub/file")}
        entries = os.scandir(mount.path / "dir" / "many")
        seen = [next(entries).name for _ in range(10)]
        with mmap.mmap(file, 0, prot=mmap.PROT_READ) as view:
            for _ in range(2):
                kill_daemon(mount)
                drop_pages_of(file)
                assert os.pread(file, 100, 70_000) == DATA[70_000:70_100]
                assert view[-5:] == DATA[-5:]
                assert os.fstat(file) == before["dir/sub/file"]
                assert {name: os.stat(mount.path / name) for name in before} == before
                assert os.stat("file", dir_fd=inner) == before["dir/sub/file"]
                assert os.listdir(inner) == ["file"]
                assert mount.status()["open_files"] == 1
        seen += [entry.name for entry in entries]
        assert sorted(seen) == [f"{number:03}" for number in range(300)]
        os.close(file)
        os.close(inner)
        until(lambda: mount.status()["open_files"] == 0)
        kill_daemon(mount)
        assert mount.status()["open_files"] == 0
        assert (mount.path / "dir/sub/file").read_bytes() == DATA


@pytest.mark.parametrize("how", ["killed", "upgraded"])
def test_a_directory_that_changes_while_it_is_listed(store: MountedStore, how: str) -> None:
    """What was listed already goes, and more comes; what is there all the time is seen once."""
    names = [f"{number:04}" for number in range(1, 1200)]
    for name in names:
        store.put(f"dir/{name}", b"x")
    with kept(store, ttl=1) as mount:
        with os.scandir(mount.path / "dir") as entries:
            seen = [next(entries).name for _ in range(400)]
            assert seen == names[:400]
            for name in seen[:300]:
                store.delete(f"dir/{name}")
            store.put("dir/0000", b"new")
            if how == "killed":
                kill_daemon(mount)
            else:
                upgrade(mount)
            seen += [entry.name for entry in entries]
        assert seen == names
        until(lambda: os.listdir(mount.path / "dir") == ["0000", *names[300:]])


def test_a_file_that_is_reached_without_its_name(store: MountedStore, tmp_path: Path) -> None:
    """As by a volume's subPath: the kernel cannot look it up anew."""
    store.put("file", DATA)
    target = tmp_path / "bound"
    target.touch()
    with kept(store) as mount:
        subprocess.run(["mount", "--bind", mount.path / "file", target], check=True)
        try:
            kill_daemon(mount)
            assert target.read_bytes() == DATA
        finally:
            subprocess.run(["umount", target], check=True)


def test_a_mount_that_came_after_is_left_alone(store: MountedStore) -> None:
    """The kernel gives the number of a mount that is gone to the next one."""
    store.put("file", DATA)
    with store.mount(complaints=True, keeper="yes") as first:
        keeper = psutil.Process(first.keeper)
        keeper.suspend()
        first.kill_daemon()
        detach(str(first.path), lazy=False)
        with store.mount(cache="other", keeper="yes") as second:
            keeper.resume()
            until(lambda: is_gone(keeper.pid))
            assert (second.path / "file").read_bytes() == DATA
            assert second.status()["pid"] == second.pid


@pytest.mark.parametrize("way", ["kill", "upgrade"])
def test_it_is_taken_over_with_a_cache_that_cannot_be_used(store: MountedStore, way: str) -> None:
    store.put("file", DATA)
    with store.mount(complaints=True, keeper="yes", passthrough="no") as mount:
        with (mount.path / "file").open("rb", buffering=0) as file:
            assert os.pread(file.fileno(), 100, 0) == DATA[:100]
            (store.directory / "cache").rename(store.directory / "away")
            (store.directory / "cache").write_text("no directory")
            if way == "kill":
                kill_daemon(mount)
            else:
                assert upgrade(mount).returncode == 0
            drop_pages_of(file.fileno())
            assert file.readall() == DATA
        assert any("reads go on without the cache" in line for line in mount.complaints())


def test_a_version_that_was_replaced_is_not_mixed(store: MountedStore) -> None:
    """An open handle is of its version for the next daemon too."""
    store.put("file", DATA)
    with kept(store, passthrough="no", ttl=0) as mount, (mount.path / "file").open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), 64 * KIB, 0) == DATA[: 64 * KIB]
        mount.kill_daemon()
        store.put("file", DATA[::-1])
        drop_pages_of(file.fileno())
        data = bytearray()
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            read_all(file.fileno(), data)
        assert data == DATA[: len(data)]
        assert (mount.path / "file").read_bytes() == DATA[::-1]


def test_status_waits_for_who_follows(store: MountedStore) -> None:
    with kept(store) as mount:
        pid = mount.kill_daemon()
        assert mount.status()["pid"] != pid


@pytest.mark.parametrize("way", ["kill", "upgrade"])
def test_a_prefetch_goes_on_with_who_follows(store: MountedStore, way: str) -> None:
    for number in range(8):
        store.put(f"file{number}", DATA[: 2 * MIB])
    with kept(store) as mount:
        store.proxy.shape(total_rate=4 * MIB)
        reports: list[tuple[Report, ...]] = []
        thread = threading.Thread(target=lambda: reports.append(prefetch(mount.path)))
        thread.start()
        for least in (2, 5):
            done = least * 2 * MIB
            until(lambda done=done: store.proxy.statistics().bytes_sent > done)  # type: ignore[misc]
            if way == "kill":
                kill_daemon(mount)
            else:
                assert upgrade(mount).returncode == 0
        thread.join(60)
        (found,) = reports
        assert sorted(report.path for report in found) == [str(mount.path / f"file{n}") for n in range(8)]
        assert {report.state for report in found} == {"done"}
        assert (
            store.proxy.statistics().bytes_sent < 8 * 2 * MIB * 1.5
        )  # what was there was not asked for again


def test_what_was_whole_before_is_passed_through_after(store: MountedStore) -> None:
    """Who has saved a file had not read it back yet: the next daemon does."""
    store.put("file", DATA)
    with kept(store) as mount, (mount.path / "file").open("rb") as file:
        assert file.read() == DATA
        until(lambda: mount.status()["files"][0]["present"] == SIZE)
        kill_daemon(mount)
        file.close()
        until(lambda: passes_through(mount, mount.path / "file"))


def test_it_is_taken_over_while_the_origin_is_away(store: MountedStore) -> None:
    store.put("file", DATA)
    with kept(store, passthrough="no", timeout=60) as mount:
        with (mount.path / "file").open("rb", buffering=0) as file:
            assert file.readall() == DATA
            until(lambda: mount.status()["files"][0]["present"] == SIZE)
            store.proxy.refuse()
            kill_daemon(mount)
            drop_pages_of(file.fileno())
            assert os.pread(file.fileno(), SIZE, 0) == DATA
        store.proxy.accept()


def test_files_stay_open_where_the_place_itself_is_gone(store: MountedStore) -> None:
    """Unmounted lazily, and its directory removed: the next daemon has nothing to look at."""
    store.put("file", DATA)
    with kept(store, passthrough="no") as mount:
        keeper = psutil.Process(mount.keeper)
        with (mount.path / "file").open("rb", buffering=0) as file:
            stop(str(mount.path), lazy=True)
            mount.path.rmdir()
            for _ in range(2):
                (daemon,) = keeper.children()
                daemon.kill()
                daemon.wait(20)
                drop_pages_of(file.fileno())
                assert os.pread(file.fileno(), SIZE, 0) == DATA
        until(lambda: is_gone(keeper.pid))
        mount.path.mkdir()


def test_a_mount_that_is_taken_away_takes_all_processes_along(store: MountedStore) -> None:
    store.put("file", DATA)
    with kept(store) as mount:
        kill_daemon(mount)
        keeper = psutil.Process(mount.keeper)
        processes = [keeper, *keeper.children()]
        assert len(processes) == 2
        stop(str(mount.path))
        assert not any(process.is_running() for process in processes)
        assert find_mount(str(mount.path)) is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_keeper_ends_the_mount(store: MountedStore, number: int) -> None:
    with store.mount(keeper="yes") as mount:
        keeper = mount.keeper
        assert keeper is not None
        os.kill(keeper, number)
        until(lambda: is_gone(keeper) and is_gone(mount.pid))
        assert find_mount(str(mount.path)) is None


def test_a_signal_between_two_daemons_ends_the_mount(store: MountedStore) -> None:
    with kept(store) as mount:
        keeper = mount.keeper
        assert keeper is not None
        psutil.Process(keeper).suspend()
        mount.kill_daemon()
        os.kill(keeper, signal.SIGTERM)
        psutil.Process(keeper).resume()
        until(lambda: is_gone(keeper))
        assert find_mount(str(mount.path)) is None


def test_a_daemon_goes_on_without_its_keeper(store: MountedStore) -> None:
    store.put("file", DATA)
    with store.mount(complaints=True, keeper="yes") as mount:
        assert mount.keeper is not None
        os.kill(mount.keeper, signal.SIGKILL)
        until(lambda: any("the keeper of the mount is gone" in line for line in mount.complaints()))
        assert (mount.path / "file").read_bytes() == DATA
        done = upgrade(mount)
        assert done.returncode == 1
        assert "has no keeper" in done.stderr
        stop(str(mount.path))
        until(lambda: is_gone(mount.pid))


def test_daemons_that_all_fail_are_given_up(store: MountedStore) -> None:
    """Whoever reads gets an error then, and no reader waits for ever."""
    store.put("file", DATA)
    with store.mount(complaints=True, keeper="yes", cache="away") as mount:
        keeper = psutil.Process(mount.keeper)
        with subprocess.Popen(
            [sys.executable, "-c", "import sys; open(sys.argv[1], 'rb').read()", f"{mount.path}/file"],
            stderr=subprocess.PIPE,
        ) as reader:
            deadline = time.monotonic() + 60
            while keeper.is_running() and keeper.status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < deadline
                with suppress(psutil.Error):
                    for daemon in keeper.children():
                        daemon.send_signal(signal.SIGUSR1)  # no handler: they die of it
            reader.wait(20)
        assert any("is given up" in line for line in mount.complaints())
        with pytest.raises(OSError, match="not connected"):
            os.listdir(mount.path)


def upgrade(mount: Mounted) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fusestripe", "upgrade", str(mount.path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_leaves_for_another_on_purpose(store: MountedStore) -> None:
    """As `fusestripe upgrade` does it."""
    store.put("file", DATA)
    with kept(store) as mount, reading(mount.path / "file", DATA) as counts:
        for _ in range(3):
            before = daemon_pid(socket_path(str(mount.path)))
            done = upgrade(mount)
            assert done.returncode == 0, done.stderr
            assert daemon_pid(socket_path(str(mount.path))) not in (None, before)
            seen = sum(counts)
            until(lambda seen=seen: sum(counts) > seen)  # type: ignore[misc]
        assert mount.complaints() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_upgrade_that_is_ended_leaves_no_daemon_behind(
    store: MountedStore, number: signal.Signals
) -> None:
    """At whatever moment; and the next one has a daemon of its own, that of what is installed by then."""
    store.put("file", DATA)
    with kept(store) as mount, reading(mount.path / "file", DATA):
        keeper = psutil.Process(mount.keeper)
        command = [sys.executable, "-m", "fusestripe", "upgrade", str(mount.path)]
        for _ in range(4):
            with subprocess.Popen(command, stderr=subprocess.DEVNULL) as client:
                until(lambda: len(keeper.children()) > 1 or client.poll() is not None)
                client.send_signal(number)
            until(lambda: len(keeper.children()) == 1)
        (served,) = keeper.children()
        assert upgrade(mount).returncode == 0
        (serves,) = keeper.children()
        assert serves.create_time() > served.create_time()


def test_an_upgrade_to_what_cannot_begin_leaves_all_as_it_was(
    store: MountedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("file", DATA)
    (tmp_path / "path").mkdir()
    path = os.pathsep.join(filter(None, [str(tmp_path / "path"), os.environ.get("PYTHONPATH")]))
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        mounting = store.mount(complaints=True, keeper="yes")
        mount = mounting.__enter__()
    (tmp_path / "path" / "sitecustomize.py").write_text("import os; os._exit(9)")
    try:
        with reading(mount.path / "file", DATA):
            done = upgrade(mount)
        assert done.returncode == 1
        assert "the new daemon ended with status 9" in done.stderr
        assert daemon_pid(socket_path(str(mount.path))) == mount.pid
        assert mount.complaints() == []
    finally:
        mounting.__exit__(None, None, None)


def test_a_mount_without_a_keeper_says_so(store: MountedStore) -> None:
    with store.mount() as mount:
        done = upgrade(mount)
        assert done.returncode == 1
        assert "has no keeper" in done.stderr
        assert daemon_pid(socket_path(str(mount.path))) == mount.pid
