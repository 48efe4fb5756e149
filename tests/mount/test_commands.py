"""The commands on a real mount of a directory, as a person runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from fusestripe.kernel import mounting
from fusestripe.launch import stop
from fusestripe.telemetry.rundir import socket_path
from fusestripe.telemetry.status import Status
from fusestripe.units import MIB
from tests.support.mounted import until

CONTENT = os.urandom(20 * MIB)


def fusestripe(*args: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fusestripe.cli", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert code in (None, done.returncode), done.stderr
    return done


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "source" / "sub").mkdir(parents=True)
    (tmp_path / "source" / "model.bin").write_bytes(CONTENT)
    (tmp_path / "source" / "sub" / "small").write_bytes(b"small")
    return f"file://{tmp_path}/source"


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mnt"
    path.mkdir()
    yield path
    if mounting.find_mount(str(path)) is not None:
        stop(str(path))


def test_a_life(source: str, mountpoint: Path, tmp_path: Path) -> None:
    cache = ("--cache-dir", str(tmp_path / "cache"))
    assert fusestripe("mount", source, str(mountpoint), *cache, "--stripe-size", "1MiB").stderr == ""
    assert (mountpoint / "model.bin").read_bytes() == CONTENT
    status = json.loads(fusestripe("status", str(mountpoint), "--json").stdout)
    assert status["mountpoint"] == str(mountpoint)
    assert json.loads(msgspec.json.encode(msgspec.convert(status, Status))) == status  # and no more
    assert status["cache"]["directory"] == str(tmp_path / "cache")
    assert [(route["path"], route["url"]) for route in status["routes"]] == [("/", source)]
    assert "is mounted" in Path(status["log"]).read_text()
    traffic = status["routes"][0]["traffic"]
    assert (traffic["tuned"], traffic["fetched"], traffic["hedged"]) == (True, status["origin"]["bytes"], 0)
    assert traffic["allowed"] >= 1
    assert status["reads"]["bytes"] >= len(CONTENT)  # the kernel may ask for a page twice
    everything = json.loads(fusestripe("status", "--json", code=None).stdout)  # others may be dead
    assert str(mountpoint) in [one["mountpoint"] for one in everything]
    done = fusestripe("prefetch", str(mountpoint))
    lines = [f"{mountpoint}/model.bin: 20 MiB", f"{mountpoint}/sub/small: 5 B"]
    assert sorted(done.stdout.splitlines()[:2]) == lines
    fusestripe("prefetch", str(mountpoint / "sub"), "--check")
    missing = fusestripe("prefetch", str(mountpoint / "no"), code=1)
    assert missing.stderr.startswith(f"{mountpoint}/no: ")
    fusestripe("mount", source, str(mountpoint), code=1)
    fusestripe("unmount", str(mountpoint))
    assert os.listdir(mountpoint) == []
    fusestripe("unmount", str(mountpoint), code=1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_foreground_ends_with_a_signal(
    source: str, mountpoint: Path, tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "fusestripe.cli", "mount", source, str(mountpoint), "--foreground"]
    command += ["--cache-dir", str(tmp_path / "cache")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 30
        while not (mountpoint / "sub").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert process.stderr is not None
        while "Ctrl-C unmounts" not in process.stderr.readline():
            assert time.monotonic() < deadline
        process.send_signal(number)
        assert process.wait(timeout=30) == 0
    assert mounting.find_mount(str(mountpoint)) is None


LATE = """
import os, signal
from fusestripe.cli import main

waitpid = os.waitpid

def late(pid, options):
    done = waitpid(pid, options)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_DFL:  # it hands signals on
        os.kill(os.getpid(), signal.SIGHUP)
    return done

os.waitpid = late
main()
"""


def test_a_signal_that_comes_after_the_daemon_s_end_is_no_error(
    source: str, mountpoint: Path, tmp_path: Path
) -> None:
    """As when a whole group gets it: there is nobody left to hand it on to."""
    command = [sys.executable, "-c", LATE, "mount", source, str(mountpoint), "-f"]
    command += ["--cache-dir", str(tmp_path / "cache")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        stderr = process.stderr
        assert stderr is not None
        until(lambda: "Ctrl-C unmounts" in stderr.readline())
        fusestripe("unmount", str(mountpoint))
        _, said = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in said) == (0, False), said


def test_a_foreground_daemon_that_is_killed_leaves_no_mount(
    source: str, mountpoint: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "fusestripe.cli", "mount", source, str(mountpoint), "-f"]
    command += ["-o", f"keeper=no,cache_dir={tmp_path}/cache"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 30
        while not (mountpoint / "sub").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        status = json.loads(fusestripe("status", str(mountpoint), "--json").stdout)
        os.kill(status["pid"], signal.SIGKILL)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 1
    assert said.splitlines()[-1] == "fusestripe: the daemon was killed by SIGKILL: mount it again"
    assert mounting.find_mount(str(mountpoint)) is None


def test_a_start_that_is_ended_leaves_nothing(mountpoint: Path, tmp_path: Path) -> None:
    """The origin never answers, so the start is still under way when the signal comes."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "fusestripe.cli", "mount", "s3://bucket", str(mountpoint)]
        command += ["-o", f"endpoint={endpoint},anonymous,cache_dir={tmp_path}/cache"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            silent.settimeout(30)
            silent.accept()[0].close()
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=30)
            assert (process.returncode, said) == (130, "fusestripe: interrupted\n")
    assert mounting.find_mount(str(mountpoint)) is None


API = """
import sys
import fusestripe
source, mountpoint, cache = sys.argv[1:]
with fusestripe.mount(source, mountpoint, cache_dir=cache, stripe_size=1 << 20) as path:
    assert (path / "sub" / "small").read_bytes() == b"small"
    print([(report.state, report.size) for report in fusestripe.prefetch(path / "model.bin")])
"""


def test_from_python(source: str, mountpoint: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", API, source, str(mountpoint), str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == (f"[('done', {len(CONTENT)})]\n", "")
    assert mounting.find_mount(str(mountpoint)) is None


def test_open_files_are_told_by_their_path_in_the_mount(mountpoint: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "file").write_text(name)
    config = tmp_path / "config.toml"
    config.write_text(
        f'[cache]\ndir = "cache"\n[[route]]\npath = "/r/a"\nsource = "file://{tmp_path}/a"\n'
        f'[[route]]\npath = "/b"\nsource = "file://{tmp_path}/b/sub"\n'
    )
    fusestripe("mount", str(config), str(mountpoint))
    with open(mountpoint / "r/a/sub/file"), open(mountpoint / "b/file"):
        files = json.loads(fusestripe("status", str(mountpoint), "--json").stdout)["files"]
    assert sorted(file["path"] for file in files) == ["/b/file", "/r/a/sub/file"]
    assert {file["url"] for file in files} == {
        f"file://{tmp_path}/a/sub/file",
        f"file://{tmp_path}/b/sub/file",
    }


def leftovers(mountpoint: Path) -> list[str]:
    """The files of that mount in the directory of sockets and logs."""
    where = Path(socket_path(str(mountpoint)))
    return sorted(path.suffix for path in where.parent.glob(f"{where.stem}.*"))


@pytest.mark.parametrize("way", ["unmount", "fusermount3", "SIGTERM"])
def test_an_end_leaves_no_file(source: str, mountpoint: Path, tmp_path: Path, way: str) -> None:
    fusestripe("mount", source, str(mountpoint), "--cache-dir", str(tmp_path / "cache"))
    assert leftovers(mountpoint) == [".log", ".sock"]
    if way == "unmount":
        fusestripe("unmount", str(mountpoint))
    elif way == "fusermount3":
        subprocess.run(["fusermount3", "-u", str(mountpoint)], check=True)
    else:
        os.kill(json.loads(fusestripe("status", str(mountpoint), "--json").stdout)["pid"], signal.SIGTERM)
    until(lambda: leftovers(mountpoint) == [])


def test_a_refusal_leaves_no_file(mountpoint: Path, tmp_path: Path) -> None:
    cache = ("--cache-dir", str(tmp_path / "cache"))
    refused = fusestripe("mount", f"file://{tmp_path}/none", str(mountpoint), *cache, code=1)
    assert "does not exist" in refused.stderr
    assert leftovers(mountpoint) == []


def test_the_log_of_a_killed_daemon_is_kept(source: str, mountpoint: Path, tmp_path: Path) -> None:
    cache = ("-o", f"keeper=no,cache_dir={tmp_path}/cache")
    fusestripe("mount", source, str(mountpoint), *cache)
    os.kill(json.loads(fusestripe("status", str(mountpoint), "--json").stdout)["pid"], signal.SIGKILL)
    log = Path(socket_path(str(mountpoint))).with_suffix(".log")
    dead = fusestripe("status", str(mountpoint), code=1)
    assert dead.stderr == f"fusestripe: the daemon is gone: mount it again; see {log}\n"
    all_mounts = json.loads(fusestripe("status", "--json", code=1).stdout)
    assert [one["log"] for one in all_mounts if one["mountpoint"] == str(mountpoint)] == [str(log)]
    fusestripe("unmount", str(mountpoint))
    assert ".log" in leftovers(mountpoint)
    fusestripe("mount", source, str(mountpoint), *cache)
    fusestripe("unmount", str(mountpoint))
    assert leftovers(mountpoint) == []


def test_unmounting_from_inside(source: str, mountpoint: Path, tmp_path: Path) -> None:
    fusestripe("mount", source, str(mountpoint), "--cache-dir", str(tmp_path / "cache"))
    words = f"{sys.executable} -m fusestripe.cli unmount {mountpoint}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    where = str(mountpoint / "sub")
    # The shell stays while the command runs.
    shell = subprocess.run(
        ["sh", "-c", f"{words}; exit $?"],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert shell.returncode == 1
    assert re.fullmatch(
        rf"fusestripe: {mountpoint} is in use by .+: your shell is in it: cd out first\n",
        shell.stderr,
    )
    # The command itself is not in its own way.
    subprocess.run(words.split(), cwd=where, env=environment, check=True, timeout=60)
    assert mounting.find_mount(str(mountpoint)) is None


@contextmanager
def also_mounted(at: Path, *words: str) -> Iterator[None]:
    """mount(8) with these words, at ``at``."""
    at.mkdir()
    subprocess.run(["mount", *words, str(at)], check=True, capture_output=True, timeout=20)
    try:
        yield
    finally:
        subprocess.run(["umount", str(at)], check=True, capture_output=True, timeout=20)


@pytest.mark.parametrize("by", ["bind", "overlay"])
def test_unmounting_what_is_mounted_elsewhere_too(
    source: str, mountpoint: Path, tmp_path: Path, by: str
) -> None:
    (tmp_path / "below").mkdir()
    layers = f"lowerdir={mountpoint}/sub:{tmp_path}/below"
    how = {"bind": ["--bind", str(mountpoint / "sub")], "overlay": ["-t", "overlay", "-o", layers, "overlay"]}
    other = tmp_path / "other"
    fusestripe("mount", source, str(mountpoint), "--cache-dir", str(tmp_path / "cache"))
    with also_mounted(other, *how[by]):
        began = time.monotonic()
        refused = fusestripe("unmount", str(mountpoint), code=1)
        assert time.monotonic() - began < 10
        said = f"fusestripe: what is mounted at {mountpoint} is in use at {other}: umount {other} first\n"
        assert refused.stderr == said
        assert (other / "small").read_bytes() == (mountpoint / "sub" / "small").read_bytes() == b"small"
    assert fusestripe("unmount", str(mountpoint)).stderr == ""
    assert mounting.find_mount(str(mountpoint)) is None


def test_mounting_with_no_standard_stream(source: str, mountpoint: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fusestripe.cli", "mount", source, str(mountpoint)]
    words += ["--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *words], check=False, timeout=60)
    assert done.returncode == 0
    assert (mountpoint / "model.bin").read_bytes() == CONTENT
    fusestripe("unmount", str(mountpoint))


def test_a_runtime_directory_that_cannot_be_written(source: str, mountpoint: Path, tmp_path: Path) -> None:
    """Seen from a mount namespace of its own. Needs root."""
    read_only = "mount --bind /run /run && mount -o remount,ro,bind /run"
    words = [sys.executable, "-m", "fusestripe.cli", "mount", source, str(mountpoint)]
    words += ["--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'{read_only} && exec "$@"', "sh", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert re.fullmatch(
        r"fusestripe: /run/fusestripe\S* cannot be made: read-only file system: make /run\S* writable.*\n",
        done.stderr,
    )
