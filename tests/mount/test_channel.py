"""The channel on a real mount: signals, an end with reads under way, and what serves where it cannot be."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fusestripe.kernel.mounting import find_mount
from fusestripe.launch import stop
from tests.support.mounted import Mounted, mounted, until
from tests.support.mounted_store import MIB, MountedStore, Pread, content, is_gone
from tests.support.proxy import Fault

SIZE = 3 * MIB + 1234

# Reads all of a file while a timer interrupts it a hundred times a second.
_UNDER_A_TIMER = """
import hashlib, signal, sys
ticks = 0
def tick(number, frame):
    global ticks
    ticks += 1
signal.signal(signal.SIGALRM, tick)
signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
digest = hashlib.sha256()
with open(sys.argv[1], "rb", buffering=0) as file:
    while data := file.read(16384):
        digest.update(data)
signal.setitimer(signal.ITIMER_REAL, 0)
assert ticks > 3, ticks
print(digest.hexdigest())
"""
# Reads a page that does not come; argv[2] is O_DIRECT or 0.
_HANDLES = """
import mmap, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
print("ready", flush=True)
try:
    os.preadv(os.open(sys.argv[1], os.O_RDONLY | int(sys.argv[2])), [mmap.mmap(-1, 4096)], 0)
except KeyboardInterrupt:
    sys.exit(7)
"""
# As nobody, who may do no more than open the device and fusermount3: a plain user of a usual machine.
_AS_NOBODY = (
    *("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"),
    *("--inh-caps", "+dac_override,+dac_read_search", "--ambient-caps", "+dac_override,+dac_read_search"),
    *("--bounding-set", "+all", "--"),
)


def features(mount: Mounted) -> dict[str, str]:
    """What is on ("") and why the rest is not."""
    return {feature["name"]: feature["why"] for feature in mount.status()["features"]}


@pytest.mark.parametrize("channel", ["yes", "no"])
def test_the_same_bytes_with_the_channel_and_without(store: MountedStore, channel: str) -> None:
    data = content(SIZE)
    store.put("file", data)
    with store.mount(channel=channel) as mount:
        assert (features(mount)["channel"] == "") is (channel == "yes")
        for _ in range(2):
            assert (mount.path / "file").read_bytes() == data
        assert mount.status()["reads"]["bytes"] >= SIZE


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_reader_that_is_killed_ends_at_once(store: MountedStore, number: int) -> None:
    store.put("file", content(SIZE))
    store.proxy.set_faults([Fault("hold", match="^GET", times=0)])
    with store.mount() as mount:
        reader = Pread(mount.path / "file", 0, 4096)
        with reader:
            reader.wait_blocked()
            begin = time.monotonic()
            os.kill(reader.pid, number)
            until(lambda: is_gone(reader.pid))
            assert time.monotonic() - begin < 5
        store.proxy.set_faults([])  # first: what is asked for in between would be held for good
        store.proxy.release()
        assert (mount.path / "file").read_bytes() == content(SIZE)


@contextmanager
def waiting_reader(
    store: MountedStore, mount: Mounted, flag: int, before: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that handles SIGINT, and waits for a byte that the origin holds back."""
    command = [sys.executable, "-I", "-c", before + _HANDLES, str(mount.path / "file"), str(flag)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            store.proxy.wait_held()
            yield process
        finally:
            store.proxy.release()
            process.kill()


@pytest.mark.parametrize("flag", [0, os.O_DIRECT])
def test_a_program_that_handles_the_interrupt_gets_to_handle_it(store: MountedStore, flag: int) -> None:
    store.put("file", content(SIZE))
    store.proxy.set_faults([Fault("hold", match="^GET", times=0)])
    with store.mount() as mount, waiting_reader(store, mount, flag) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 7


def test_a_signal_that_a_reader_handles_is_no_error(store: MountedStore) -> None:
    data = content(SIZE)
    store.put("file", data)
    store.proxy.shape(rate=0, total_rate=4 * MIB, delay=0.02)
    with store.mount(stripe_count=1) as mount:
        command = [sys.executable, "-I", "-c", _UNDER_A_TIMER, str(mount.path / "file")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("flag", [0, os.O_DIRECT])
def test_a_kill_after_a_handled_signal_ends_the_reader(store: MountedStore, flag: int) -> None:
    """The kernel tells of the first signal alone."""
    store.put("file", content(SIZE))
    store.proxy.set_faults([Fault("hold", match="^GET", times=0)])
    handles = "import signal; signal.signal(signal.SIGUSR1, lambda *_: None)\n"
    with store.mount() as mount, waiting_reader(store, mount, flag, handles) as process:
        process.send_signal(signal.SIGUSR1)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)  # it is no error, and the read goes on
        process.kill()
        assert process.wait(timeout=5) == -signal.SIGKILL


@pytest.mark.parametrize("way", ["unmount", "terminate"])
@pytest.mark.parametrize("channel", ["yes", "no"])
def test_the_end_does_not_wait_for_a_silent_origin(store: MountedStore, channel: str, way: str) -> None:
    store.put("file", content(SIZE))
    store.proxy.set_faults([Fault("hold", match="^GET", times=0)])
    with store.mount(complaints=True, channel=channel) as mount:
        with Pread(mount.path / "file", 0, 4096) as reader:
            reader.wait_blocked()
            begin = time.monotonic()
            if way == "terminate":
                os.kill(mount.pid, signal.SIGTERM)
            else:
                reader.kill()
                stop(str(mount.path))
            until(lambda: is_gone(mount.pid))
            assert time.monotonic() - begin < 10
        assert find_mount(str(mount.path)) is None
    store.proxy.release()


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that everybody may look into, unlike tmp_path: fusermount3 goes there as the user."""
    with tempfile.TemporaryDirectory(prefix="fusestripe-test-", ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def open_device() -> Iterator[None]:
    """/dev/fuse as udev makes it, for everybody (50-udev-default.rules)."""
    mode = stat.S_IMODE(os.stat("/dev/fuse").st_mode)
    os.chmod("/dev/fuse", 0o666)
    yield
    os.chmod("/dev/fuse", mode)


@pytest.mark.usefixtures("open_device")
def test_a_plain_user_has_the_channel(open_directory: Path) -> None:
    source, mountpoint = open_directory / "source", open_directory / "mnt"
    cache, runtime = open_directory / "cache", open_directory / "run"
    for directory in (source, mountpoint, cache, runtime):
        directory.mkdir()
        os.chown(directory, 65534, 65534)
    (source / "file").write_bytes(content(SIZE))
    environment = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(runtime),
        "XDG_CACHE_HOME": str(cache),
        "HOME": str(open_directory),
    }

    def fusestripe(*arguments: str) -> str:
        command = [*_AS_NOBODY, sys.executable, "-m", "fusestripe", *arguments]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    fusestripe("mount", source.as_uri(), str(mountpoint))
    try:
        mount = find_mount(str(mountpoint))
        assert mount is not None
        assert mount.owner == 65534
        assert mount.source == source.as_uri()
        reading = subprocess.run(
            [*_AS_NOBODY, "cat", str(mountpoint / "file")], capture_output=True, check=True, timeout=60
        )
        assert reading.stdout == content(SIZE)
        assert '"channel","on":true' in fusestripe("status", str(mountpoint), "--json").replace(" ", "")
    finally:
        fusestripe("unmount", str(mountpoint))
    assert find_mount(str(mountpoint)) is None


def test_a_forced_unmount_of_a_busy_mount_leaves_nothing(store: MountedStore) -> None:
    """It aborts the connection and then fails, for the file is open."""
    store.put("file", content(SIZE))
    with store.mount(complaints=True) as mount, open(mount.path / "file", "rb") as file:
        file.read(10)
        subprocess.run(["umount", "-f", str(mount.path)], capture_output=True, check=False)
        until(lambda: is_gone(mount.pid))
        assert find_mount(str(mount.path)) is None


def test_a_mapped_file_survives_a_signal_that_is_handled(store: MountedStore) -> None:
    """A page fault that fails is SIGBUS: it waits instead."""
    data = content(SIZE)
    store.put("file", data)
    store.proxy.set_faults([Fault("hold", match="^GET", times=0)])
    code = """
import mmap, signal, sys
signal.signal(signal.SIGTERM, lambda *_: None)
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
    print("ready", flush=True)
    sys.stdout.buffer.write(view[:4096])
"""
    with store.mount() as mount:
        command = [sys.executable, "-I", "-c", code, str(mount.path / "file")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            store.proxy.wait_held()
            process.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=1)
            store.proxy.set_faults([])
            store.proxy.release()
            assert process.stdout.read() == data[:4096]
            assert process.wait(timeout=20) == 0


def test_names_with_commas_and_backslashes_are_shown(tmp_path: Path) -> None:
    source = tmp_path / "a,b\\c d"
    source.mkdir()
    with mounted(source.as_uri(), tmp_path / "mnt", cache_dir=tmp_path / "cache") as mount:
        found = find_mount(str(mount.path))
        assert found is not None
        assert found.source == source.as_uri()
