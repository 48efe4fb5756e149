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
from pathlib import Path

import msgspec
import pytest

from fusestripe.kernel import mounting
from fusestripe.launch import stop
from fusestripe.telemetry.control import socket_path
from fusestripe.telemetry.status import Status
from fusestripe.units import MIB
from tests.support.mounted import until

CONTENT = os.urandom(20 * MIB)


def fusestripe(*args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fusestripe.cli", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
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
    traffic = status["routes"][0]["traffic"]
    assert (traffic["tuned"], traffic["fetched"], traffic["hedged"]) == (True, status["origin"]["bytes"], 0)
    assert traffic["allowed"] >= 1
    assert status["reads"]["bytes"] >= len(CONTENT)  # the kernel may ask for a page twice
    assert str(mountpoint) in [one["mountpoint"] for one in json.loads(fusestripe("status", "--json").stdout)]
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


def test_a_foreground_daemon_that_is_killed_leaves_no_mount(
    source: str, mountpoint: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "fusestripe.cli", "mount", source, str(mountpoint), "-f"]
    command += ["--cache-dir", str(tmp_path / "cache")]
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
    cache = ("--cache-dir", str(tmp_path / "cache"))
    fusestripe("mount", source, str(mountpoint), *cache)
    os.kill(json.loads(fusestripe("status", str(mountpoint), "--json").stdout)["pid"], signal.SIGKILL)
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
