"""fusestripe from Python: mount for a block, prefetch."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import fusestripe
from fusestripe.cache.catalogue import CacheCatalogue
from fusestripe.kernel.mounting import find_mount
from fusestripe.telemetry.client import daemon_pid
from fusestripe.telemetry.rundir import socket_path
from tests.support.mounted import until
from tests.support.mounted_store import KIB, MIB, MountedStore, content


@pytest.fixture
def aws(store: MountedStore, monkeypatch: pytest.MonkeyPatch) -> MountedStore:
    """The store, with its credentials in the environment, as a notebook would have them."""
    for name, value in store.proxy.environment.items():
        monkeypatch.setenv(name, value)
    return store


def test_mount_for_a_block(aws: MountedStore, tmp_path: Path) -> None:
    data = content(300 * KIB)
    aws.put("run/file", data)
    point = tmp_path / "mnt"
    point.mkdir()
    cache = tmp_path / "cache"
    with fusestripe.mount(f"s3://{aws.bucket}/run", point, cache_dir=cache, stripe_size="64KiB") as path:
        assert path == point
        assert (path / "file").read_bytes() == data
    assert find_mount(str(point)) is None
    assert os.listdir(point) == []


def test_the_mount_goes_when_the_block_fails(aws: MountedStore, tmp_path: Path) -> None:
    aws.put("file", b"x")
    point = tmp_path / "mnt"
    point.mkdir()
    source, cache = f"s3://{aws.bucket}", tmp_path / "cache"
    with pytest.raises(ZeroDivisionError), fusestripe.mount(source, point, cache_dir=cache):
        raise ZeroDivisionError
    assert find_mount(str(point)) is None


def test_what_is_mapped_outlives_the_block_and_the_error_passes(aws: MountedStore, tmp_path: Path) -> None:
    """As torch.load(mmap=True) leaves it: a map, and no descriptor."""
    data = content(300 * KIB)
    aws.put("file", data)
    point = tmp_path / "mnt"
    point.mkdir()
    source, cache = f"s3://{aws.bucket}", tmp_path / "cache"
    pids: list[int | None] = []
    maps: list[mmap.mmap] = []

    def work(path: Path) -> None:
        pids.append(daemon_pid(socket_path(str(path))))
        with open(path / "file", "rb") as file:
            maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        raise ZeroDivisionError

    with (
        pytest.raises(ZeroDivisionError),
        fusestripe.mount(source, point, cache_dir=cache, stripe_size=64 * KIB) as path,
    ):
        work(path)
    assert find_mount(str(point)) is None
    ((pid,), (kept,)) = pids, maps
    assert pid is not None
    assert psutil.pid_exists(pid)
    assert kept[:] == data
    # The place is free, while what is kept stays.
    with fusestripe.mount(source, point, cache_dir=cache, stripe_size=64 * KIB) as path:
        assert (path / "file").read_bytes() == data
    assert kept[:] == data
    kept.close()
    process = psutil.Process(pid)
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


KEPT = """
import mmap, sys
import fusestripe
source, mountpoint, cache = sys.argv[1:]
with fusestripe.mount(source, mountpoint, cache_dir=cache) as path:
    with open(path / "file", "rb") as file:
        kept = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    raise ValueError("of the user's own")
"""


def test_nothing_is_left_when_the_process_ends_with_something_mapped(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(content(300 * KIB))
    point = tmp_path / "mnt"
    point.mkdir()
    arguments = [f"file://{tmp_path}/source", str(point), str(tmp_path / "cache")]
    command = [sys.executable, "-c", KEPT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.splitlines()[-1] == "ValueError: of the user's own"
    assert "MountError" not in done.stderr
    assert find_mount(str(point)) is None
    until(lambda: not any(str(point) in (process.info["cmdline"] or ()) for process in _processes()))


def _processes() -> list[psutil.Process]:
    return list(psutil.process_iter(["cmdline"]))


def test_prefetch_a_url_and_mount_it(aws: MountedStore, tmp_path: Path) -> None:
    files = {f"run/{number}": content(200 * KIB + number, number) for number in range(4)}
    for key, data in files.items():
        aws.put(key, data)
    url = f"s3://{aws.bucket}/run"
    cache = tmp_path / "cache"
    reports = fusestripe.prefetch(url, cache_dir=cache, stripe_size=64 * KIB)
    assert sorted((report.path, report.state) for report in reports) == [
        (f"{url}/{number}", "done") for number in range(4)
    ]
    point = tmp_path / "mnt"
    point.mkdir()
    aws.proxy.reset()
    with fusestripe.mount(url, point, cache_dir=cache, stripe_size=64 * KIB) as path:
        for key, data in files.items():
            assert (path / Path(key).name).read_bytes() == data
    assert aws.proxy.statistics().count("GET") == 0
    checked = fusestripe.prefetch(url, check=True, cache_dir=cache, stripe_size=64 * KIB)
    assert [report.state for report in checked] == ["done"] * 4


def test_a_url_is_prefetched_without_a_look_at_what_lies_above_it(aws: MountedStore, tmp_path: Path) -> None:
    aws.put("runs/one/file", b"one")
    aws.put("runs/two", b"two")
    base = f"s3://{aws.bucket}/runs"
    aws.proxy.reset()
    for url in (f"{base}/one", f"{base}/one/"):
        (report,) = fusestripe.prefetch(url, cache_dir=tmp_path / "cache", pin=True)
        assert (report.path, report.state) == (f"{base}/one/file", "done")
    lists = aws.requests("LIST")
    assert lists
    assert all("prefix=runs%2Fone%2F" in request.path for request in lists)
    (report,) = fusestripe.prefetch(f"{base}/two", cache_dir=tmp_path / "cache")
    assert (report.path, report.state, report.size) == (f"{base}/two", "done", 3)
    with CacheCatalogue(tmp_path / "cache") as catalogue:
        assert [entry.pinned for entry in catalogue.entries()] == [True, False]


def test_a_prefetch_that_fails_is_no_quiet_matter(aws: MountedStore, tmp_path: Path) -> None:
    aws.put("run/good", content(KIB))
    url = f"s3://{aws.bucket}/run"
    with pytest.raises(fusestripe.PrefetchError) as caught:
        fusestripe.prefetch(f"{url}/good", f"{url}/none", f"{url}/nil", cache_dir=tmp_path / "cache")
    assert isinstance(caught.value, fusestripe.FusestripeError)
    states = {report.path: report.state for report in caught.value.reports}
    assert states == {f"{url}/good": "done", f"{url}/none": "failed", f"{url}/nil": "failed"}
    assert str(caught.value).startswith("2 of 3 files failed, the first of them: s3://")
    assert str(caught.value).count("s3://") == 1
    # To ask what is there is no failure, whatever the answer.
    (report,) = fusestripe.prefetch(f"{url}/good", check=True, cache_dir=tmp_path / "cache")
    assert report.state == "done"
    aws.put("run/other", content(KIB))
    (report,) = fusestripe.prefetch(f"{url}/other", check=True, cache_dir=tmp_path / "cache")
    assert (report.state, report.missing) == ("missing", KIB)


def test_a_url_is_taken_back_as_it_is_shown(
    aws: MountedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the endpoint that the environment had then."""
    aws.put("run/file", content(KIB))
    cache = tmp_path / "cache"
    fusestripe.prefetch(f"s3://{aws.bucket}/run", cache_dir=cache)
    with CacheCatalogue(cache) as catalogue:
        (entry,) = catalogue.entries()
    shown = str(entry.version).replace("/file", "")
    assert shown.startswith(f"s3://{aws.bucket}/run?endpoint=127.0.0.1:")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    (report,) = fusestripe.prefetch(shown, cache_dir=cache, check=True)
    assert (report.state, report.size) == ("done", KIB)
    point = tmp_path / "mnt"
    point.mkdir()
    with fusestripe.mount(shown, point, cache_dir=cache) as path:
        assert (path / "file").read_bytes() == content(KIB)


def test_prefetch_below_a_mount(aws: MountedStore) -> None:
    data = content(MIB)
    aws.put("dir/file", data)
    with aws.mount() as mount:
        assert [report.state for report in fusestripe.prefetch(mount.path / "dir", check=True)] == ["missing"]
        (report,) = fusestripe.prefetch(mount.path / "dir")
        assert (report.path, report.state, report.size) == (str(mount.path / "dir/file"), "done", MIB)
        aws.proxy.reset()
        assert (mount.path / "dir/file").read_bytes() == data
        assert aws.proxy.statistics().count("GET") == 0


def test_errors_say_what_is_wrong(aws: MountedStore, tmp_path: Path) -> None:
    with pytest.raises(fusestripe.ConfigError, match="gopher"):
        fusestripe.mount("gopher://x", tmp_path)  # though nobody enters the block
    with (
        pytest.raises(fusestripe.MountError, match="does not exist"),
        fusestripe.mount(Path("/usr/share").as_uri(), tmp_path / "none", cache_dir=tmp_path / "cache"),
    ):
        pass
    with pytest.raises(fusestripe.MountError, match="in no fusestripe mount"):
        fusestripe.prefetch(tmp_path)
    aws.put("file", b"x")
    with aws.mount() as mount, pytest.raises(fusestripe.ConfigError, match="cache_dir is for URLs"):
        fusestripe.prefetch(mount.path / "file", cache_dir=tmp_path / "other")


def test_what_it_offers_is_seen() -> None:
    assert {"mount", "prefetch", "PrefetchError"} <= set(dir(fusestripe))
