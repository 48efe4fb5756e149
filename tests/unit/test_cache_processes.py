"""Several processes on one cache directory, one of them killed, and many files open at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fusestripe.cache.catalogue import CacheCatalogue
from fusestripe.errors import CacheError
from tests.support.cache_worker import MANY
from tests.support.caches import STRIPE, check, open_store, sample

ROOT = Path(__file__).parents[2]


@contextmanager
def worker(command: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process; it is ended at the end of the block if it has not ended itself."""
    arguments = [sys.executable, "-m", "tests.support.cache_worker", command, str(directory)]
    with subprocess.Popen(
        arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_what_another_process_holds_stays_until_it_dies(directory: Path) -> None:
    what = sample()
    store = open_store(directory)
    with worker("hold", directory) as process, CacheCatalogue(directory) as catalogue:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert [entry.in_use for entry in catalogue.entries()] == [True]
        removed = catalogue.clear()
        assert (removed.objects, removed.in_use) == (0, 1)
        obj = store.acquire(what.version)
        assert check(obj, what) == len(what.stripes)
        store.release(obj)
        process.kill()  # its locks go with it
        process.wait()
        assert [entry.in_use for entry in catalogue.entries()] == [False]
        assert catalogue.clear().objects == 1
    store.close()


def test_clearing_races_with_acquiring(directory: Path) -> None:
    open_store(directory).close()
    cleared = 0
    with worker("churn", directory) as process, CacheCatalogue(directory) as catalogue:
        while process.poll() is None:
            cleared += catalogue.clear().objects
        assert process.returncode == 0
    assert cleared > 0


@pytest.mark.parametrize("lines", [1, 2, 21, 22, 30, 57])
def test_what_was_saved_outlives_a_kill(directory: Path, lines: int) -> None:
    with worker("fill", directory) as process:
        assert process.stdout is not None
        saved = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        saved += process.stdout.readlines()
    reported = {tuple(map(int, line.split())) for line in saved if line.endswith("\n")}
    assert len(reported) >= lines
    store = open_store(directory)
    for number in {number for number, _ in reported}:
        what = sample(f"file-{number}", 20 * STRIPE + 5000)
        obj = store.acquire(what.version)
        assert all(obj.present(index) for owner, index in reported if owner == number)
        check(obj, what)
    assert store.statistics().corrupt_stripes == 0
    store.close()


def test_ten_thousand_files_are_held_with_256_descriptors(directory: Path) -> None:
    with worker("many", directory) as process:
        out, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    assert out == f"{MANY}\n"


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory that nobody can write to, not even root."""
    path = tmp_path / "read-only"
    path.mkdir()
    if os.geteuid() != 0:
        path.chmod(0o500)
        yield path
        path.chmod(0o700)
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,mode=700", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


def test_a_read_only_directory(read_only: Path) -> None:
    for path in (read_only, read_only / "below"):
        with pytest.raises(CacheError, match=str(read_only)) as error:
            open_store(path)
        assert "write" in error.value.mend
    assert list(read_only.iterdir()) == []
