"""What bad input gets: one line that says what is wrong and the mend, soon; no mount and no process left."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import fusestripe
from fusestripe.errors import ConfigError
from fusestripe.kernel.mounting import find_mount
from tests.support.proxy import Fault, Proxy
from tests.support.seaweed import SeaweedServer

# The longest that any refusal may take (seconds): the issue's own figure for an endpoint that is silent.
SOON = 15.0

OURS = ("AWS_", "FUSESTRIPE_")


def marked(mountpoint: Path) -> list[int]:
    """Processes that still have the environment of that refusal."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("REFUSED_AT") == str(mountpoint):
                found.append(process.pid)
    return found


def refuse(
    source: str,
    mountpoint: Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
    within: float = SOON,
) -> str:
    """The one line that `fusestripe mount` ends with."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "FUSESTRIPE_"))
    }
    clean |= {"HOME": str(mountpoint.parent), "AWS_EC2_METADATA_DISABLED": "true", **(environment or {})}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "fusestripe.cli", "mount", source, str(mountpoint), *options],
        capture_output=True,
        text=True,
        env=clean,
        check=False,
        timeout=60,
    )
    took = time.monotonic() - began
    assert done.returncode not in (0, None), done.stdout
    assert done.stdout == ""
    line = done.stderr.removesuffix("\n")
    assert line.startswith("fusestripe: ")
    assert "\n" not in line
    assert "Traceback" not in line
    # What is wrong, and after the last colon-and-space the mend.
    assert line.count(": ") >= 2
    assert took < within
    assert find_mount(str(mountpoint)) is None
    assert marked(mountpoint) == []
    return line


@pytest.fixture
def mountpoint(tmp_path: Path) -> Path:
    path = tmp_path / "mnt"
    path.mkdir()
    return path


@pytest.fixture
def cache(tmp_path: Path) -> tuple[str, str]:
    return ("--cache-dir", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("ftp://host/dir", "unknown scheme ftp://"),
        ("s4://bucket", "s3://"),
        ("nothing-like-this.toml", "no such file"),
        ("file:///does/not/exist", "does not exist"),
        ("s3://", "names no bucket"),
        ("s3://user:pass@bucket/x", "credentials"),
    ],
)
def test_sources(source: str, says: str, mountpoint: Path, cache: tuple[str, str]) -> None:
    line = refuse(source, mountpoint, *cache)
    assert says in line
    assert "pass@" not in line


def linked(path: Path) -> Path:
    """Another name of ``path``."""
    link = path.with_name(f"{path.name}-link")
    link.symlink_to(path)
    return link


# Source, mountpoint and cache directory below one directory; what the line names, inner before outer.
@pytest.mark.parametrize("by_a_link", [False, True], ids=["", "links"])
@pytest.mark.parametrize(
    ("source", "point", "cache_dir", "says"),
    [
        ("src", "mnt", "mnt/cache", "the cache directory {0}/mnt/cache lies in the mountpoint {0}/mnt"),
        ("src", "mnt", "mnt", "{0}/mnt is both cache directory and mountpoint"),
        ("src", "cache/mnt", "cache", "the mountpoint {0}/cache/mnt lies in the cache directory {0}/cache"),
        ("src", "src/mnt", "cache", "the mountpoint {0}/src/mnt lies in the source {0}/src"),
        ("src", "mnt", "src/a/cache", "the cache directory {0}/src/a/cache lies in the source {0}/src"),
        ("mnt/src", "mnt", "cache", "the source {0}/mnt/src lies in the mountpoint {0}/mnt"),
        ("cache/src", "mnt", "cache", "the source {0}/cache/src lies in the cache directory {0}/cache"),
        ("mnt", "mnt", "cache", "{0}/mnt is both mountpoint and source"),
    ],
)
def test_directories_in_one_another(
    source: str, point: str, cache_dir: str, says: str, tmp_path: Path, by_a_link: bool
) -> None:
    at = tmp_path.resolve() / "a place"
    for name in (source, point):
        (at / name).mkdir(parents=True, exist_ok=True)
    seen = linked(at) if by_a_link else at
    options = ("--cache-dir", str(seen / cache_dir))
    line = refuse((at / source).as_uri(), seen / point, *options)
    assert f"fusestripe: {says.format(at)}: " in line
    assert not (at / cache_dir / "objects").exists()
    with pytest.raises(ConfigError) as caught:
        fusestripe.mount((seen / source).as_uri(), at / point, cache_dir=at / cache_dir).__enter__()
    assert caught.value.message == says.format(at)


class TestStore:
    """A bucket on the real server, reached wrongly."""

    @pytest.fixture
    def environment(self, s3_server: SeaweedServer) -> dict[str, str]:
        return dict(s3_server.environment)

    def test_no_such_bucket(
        self, environment: dict[str, str], mountpoint: Path, cache: tuple[str, str]
    ) -> None:
        assert "no-such-bucket" in refuse("s3://no-such-bucket", mountpoint, *cache, environment=environment)

    def test_no_such_prefix(
        self, environment: dict[str, str], s3_bucket: str, mountpoint: Path, cache: tuple[str, str]
    ) -> None:
        line = refuse(f"s3://{s3_bucket}/nothing/here", mountpoint, *cache, environment=environment)
        assert "nothing/here" in line

    def test_wrong_secret(
        self, environment: dict[str, str], s3_bucket: str, mountpoint: Path, cache: tuple[str, str]
    ) -> None:
        environment["AWS_SECRET_ACCESS_KEY"] = "not-the-secret-of-this-server"
        line = refuse(f"s3://{s3_bucket}", mountpoint, *cache, environment=environment)
        assert "AWS_SECRET_ACCESS_KEY" in line or "secret" in line.lower()
        assert "not-the-secret-of-this-server" not in line

    def test_unknown_key(
        self, environment: dict[str, str], s3_bucket: str, mountpoint: Path, cache: tuple[str, str]
    ) -> None:
        environment["AWS_ACCESS_KEY_ID"] = "NOBODYHASTHISKEY"
        assert "key" in refuse(f"s3://{s3_bucket}", mountpoint, *cache, environment=environment).lower()

    def test_no_credentials(
        self, environment: dict[str, str], s3_bucket: str, mountpoint: Path, cache: tuple[str, str]
    ) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            del environment[name]
        assert "credentials" in refuse(f"s3://{s3_bucket}", mountpoint, *cache, environment=environment)

    def test_expired_credentials(
        self, s3_proxy: Proxy, s3_bucket: str, mountpoint: Path, cache: tuple[str, str]
    ) -> None:
        s3_proxy.set_faults([Fault("status:400:ExpiredToken", times=0)])
        line = refuse(f"s3://{s3_bucket}", mountpoint, *cache, environment=s3_proxy.environment)
        assert "expired" in line

    def test_an_endpoint_that_refuses(
        self, mountpoint: Path, cache: tuple[str, str], s3_proxy: Proxy
    ) -> None:
        s3_proxy.refuse()
        line = refuse("s3://bucket", mountpoint, *cache, environment=s3_proxy.environment)
        assert "refused" in line

    def test_an_endpoint_that_does_not_answer(
        self, environment: dict[str, str], mountpoint: Path, cache: tuple[str, str]
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
            line = refuse(
                "s3://bucket", mountpoint, *cache, "-o", f"endpoint={endpoint}", environment=environment
            )
        assert "answer" in line


def not_there(path: Path) -> None:
    path.rmdir()


def not_empty(path: Path) -> None:
    (path / "file").touch()


def no_directory(path: Path) -> None:
    path.rmdir()
    path.touch()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [(not_there, "does not exist"), (not_empty, "not empty"), (no_directory, "not a directory")],
)
def test_mountpoints(
    spoil: Callable[[Path], None], says: str, mountpoint: Path, tmp_path: Path, cache: tuple[str, str]
) -> None:
    spoil(mountpoint)
    (tmp_path / "source").mkdir()
    assert says in refuse(f"file://{tmp_path}/source", mountpoint, *cache)


class TestCache:
    """Cache directories that cannot serve."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> str:
        (tmp_path / "source").mkdir()
        return f"file://{tmp_path}/source"

    def test_not_a_directory(self, source: str, mountpoint: Path, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert "cache" in refuse(source, mountpoint, "--cache-dir", str(tmp_path / "file" / "cache")).lower()

    def test_read_only(self, source: str, mountpoint: Path) -> None:
        refuse(source, mountpoint, "--cache-dir", "/proc/fusestripe-cache")

    def test_no_room(self, source: str, mountpoint: Path, cache: tuple[str, str]) -> None:
        line = refuse(source, mountpoint, *cache, "-o", "cache_reserve=900TiB")
        assert "room" in line or "free" in line

    def test_of_a_newer_version(
        self, source: str, mountpoint: Path, tmp_path: Path, cache: tuple[str, str]
    ) -> None:
        (tmp_path / "cache").mkdir(mode=0o700)
        (tmp_path / "cache" / "format.json").write_text(json.dumps({"format": 1000}))
        assert "newer version" in refuse(source, mountpoint, *cache)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--stripe-size", "0"), "stripe"),
        (("--stripe-size", "-8MiB"), "stripe"),
        (("--stripe-size", "5000"), "4 KiB"),
        (("--stripe-size", "64MiB", "--memory", "32MiB"), "memory"),
        (("--stripe-size", "lots"), "not a size"),
        (("--stripe-count", "0"), "stripe"),
        (("-o", "strip_size=8MiB"), "stripe_size"),
        (("--config", "/does/not/exist.toml"), "exist"),
    ],
)
def test_settings(options: tuple[str, ...], says: str, mountpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    assert says in refuse(f"file://{tmp_path}/source", mountpoint, *options)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[stripes]\nstripe_sise = "8MiB"\n', ("config.toml:2", "stripe_sise", "size")),
        ("[cash]\n", ("config.toml:1", "cash", "cache")),
        ("[stripes\n", ("config.toml:1",)),
        (
            '[[route]]\npath = "/a"\nsource = "file:///"\n[[route]]\npath = "/a/b"\nsource = "file:///"\n',
            ("/a/b", "/a"),
        ),
    ],
)
def test_config_files(text: str, says: tuple[str, ...], mountpoint: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(text)
    line = refuse(str(config), mountpoint)
    assert [word for word in says if word not in line] == []
