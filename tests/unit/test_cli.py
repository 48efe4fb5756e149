"""The command line without a mount: pages of help, errors of one line, the cache, prefetch's display."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import fusestripe
from fusestripe.cache.files import CacheDirectory
from fusestripe.cli import COMMANDS, cli
from fusestripe.commands.bench import Rate, judge, measure, settle
from fusestripe.commands.options import read_flags
from fusestripe.config import SETTINGS, load, path_in
from fusestripe.named import Named
from fusestripe.origins.base import Progress
from fusestripe.origins.registry import FACTORIES
from fusestripe.stripes.climb import Climb
from fusestripe.units import MIB, ObjectVersion, split_url
from tests.support.memory_origin import MemoryOrigin


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, args, prog_name="fusestripe")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with two files of known size, one below."""
    directory = tmp_path / "source"
    (directory / "sub").mkdir(parents=True)
    (directory / "a.bin").write_bytes(os.urandom(3 * MIB))
    (directory / "sub" / "b.bin").write_bytes(b"b" * 100)
    return directory


def prefetched(source: Path, cache: Path, *more: str) -> Result:
    return run("prefetch", f"file://{source}", "--cache-dir", str(cache), *more)


@pytest.mark.parametrize("name", [*COMMANDS, "cache ls", "cache verify", "cache evict", "cache clear"])
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = run(*name.split(), "--help")
    assert result.exit_code == 0
    assert f"Example: fusestripe {name}" in " ".join(result.output.split())


def test_the_help_of_mount_names_every_store() -> None:
    words = run("mount", "--help").output.split()
    assert [scheme for scheme in FACTORIES if not any(f"{scheme}://" in word for word in words)] == []


def test_the_help_of_mount_names_every_option() -> None:
    said = re.split(r"[\s,.]+", run("mount", "--help").output)
    assert [setting.option for setting in SETTINGS if setting.option and setting.option not in said] == []


def test_help_lists_every_command() -> None:
    result = run("--help")
    assert all(f"  {name} " in result.output for name in COMMANDS)


def test_version() -> None:
    assert run("--version").output == f"fusestripe, version {fusestripe.__version__}\n"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["mount", "s4://b", "/mnt"], "SOURCE: unknown scheme s4://: "),
        (["mount", "s3://k:secret@b", "/mnt"], "SOURCE: there is a password or token in this URL: "),
        (["mount", "s3://b", "/mnt", "--stripe-size", "5000"], "stripe_size: a stripe size of 5000 bytes "),
        (["mount", "s3://b", "/mnt", "-o", "stripe_sise=4MiB"], 'unknown option "stripe_sise": did you mean'),
        (["mount", "file:///u", "/no/such/place"], "/no/such/place does not exist: mkdir -p /no/such/place"),
        (["unmount", "/no/such/place"], "/no/such/place is not mounted"),
        (["status", "/no/such/place"], "/no/such/place is not mounted"),
        (["prefetch", "/no/such/place"], "/no/such/place is in no fusestripe mount: mount it first"),
        (["cache", "ls", "--cache-dir", "/no/such/place"], "there is no cache in /no/such/place: "),
        (["bench", "file:///no/such/place/x"], "/no/such/place does not exist: "),
    ],
)
def test_an_error_is_one_line_and_status_1(args: list[str], line: str) -> None:
    result = run(*args)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"fusestripe: {line}")
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.stderr


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ("umount /mnt", 'unknown command "umount": did you mean "unmount"?'),
        ("mont a b", 'unknown command "mont": did you mean "mount"?'),
        ("cache evit", 'unknown command "evit": did you mean "evict"?'),
        ("frobnicate", f'unknown command "frobnicate": fusestripe has {", ".join(COMMANDS)}'),
    ],
)
def test_an_unknown_command_is_one_line_and_status_2(args: str, line: str) -> None:
    result = run(*args.split())
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"fusestripe: {line}\n")


def test_where_to_mount_has_to_be_said(tmp_path: Path) -> None:
    """On the command line, or in the file."""
    file = tmp_path / "ckpt.toml"
    file.write_text('[[route]]\nsource = "s3://bucket"\n')
    add = 'add point = "/mnt/ckpt" to its [mount], or give the MOUNTPOINT: '
    for args, line in (
        (["s3://b"], "s3://b: where to mount it is not said: fusestripe mount s3://b /mnt/ckpt"),
        ([f"{file}"], f"{file}: where to mount it is not said: {add}fusestripe mount {file} /mnt/ckpt"),
        (
            ["s3://b", "--config", f"{file}"],
            f"{file}: where to mount it is not said: {add}fusestripe mount s3://b /mnt/ckpt",
        ),
    ):
        result = run("mount", *args)
        assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"fusestripe: {line}\n")


def test_a_service_manager_is_told_that_to_try_again_is_in_vain(tmp_path: Path) -> None:
    """By EX_CONFIG of sysexits.h, in the foreground: RestartPreventExitStatus names it in the unit."""
    file = tmp_path / "ckpt.toml"
    file.write_text('[[route]]\nsorce = "s3://bucket"\n')
    for more, status in ((), 1), (("--foreground",), 78):
        result = run("mount", f"{file}", "/mnt", *more)
        line = f'fusestripe: {file}:2: unknown key "sorce" in [route]: did you mean "source"?\n'
        assert (result.exit_code, result.stderr) == (status, line)


def test_the_file_says_where_to_mount_unless_the_command_does(tmp_path: Path) -> None:
    file = tmp_path / "ckpt.toml"
    file.write_text(f'[mount]\npoint = "{tmp_path}/said"\n[[route]]\nsource = "file:///usr/share"\n')
    for args, place in ((), f"{tmp_path}/said"), (("/nowhere/here",), "/nowhere/here"):
        result = run("mount", f"{file}", *args, "--cache-dir", f"{tmp_path}/cache")
        assert result.stderr == f"fusestripe: {place} does not exist: mkdir -p {place}\n"


@pytest.mark.parametrize(
    ("args", "word", "end"),
    [
        ("mount", "SOURCE", "usage: fusestripe mount [OPTIONS] SOURCE [MOUNTPOINT]"),
        ("mount a b c", "(c)", "usage: fusestripe mount [OPTIONS] SOURCE [MOUNTPOINT]"),
        ("mount a b --colour", "--colour", "usage: fusestripe mount [OPTIONS] SOURCE [MOUNTPOINT]"),
        ("mount a b --config", "--config", "requires an argument"),
        ("unmount", "MOUNTPOINT", "usage: fusestripe unmount [OPTIONS] MOUNTPOINT"),
        ("cache ls --jsn", "--jsn", "usage: fusestripe cache ls [OPTIONS]"),
        ("--colour", "--colour", "usage: fusestripe [OPTIONS] COMMAND [ARGS]..."),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(args: str, word: str, end: str) -> None:
    """The words between are click's."""
    result = run(*args.split())
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("fusestripe: ")
    assert word in result.stderr.partition("usage: ")[0]
    assert result.stderr.endswith(f"{end}\n")


@pytest.mark.parametrize("args", [[], ["cache"]])
def test_a_group_alone_shows_its_commands(args: list[str]) -> None:
    assert "Commands:" in run(*args).output


def test_a_bug_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise ZeroDivisionError("a\nbug")

    monkeypatch.setattr("fusestripe.commands.mount.stop", fail)
    result = run("unmount", "/mnt")
    assert (result.exit_code, result.stderr) == (
        1,
        "fusestripe: ZeroDivisionError: a bug: FUSESTRIPE_DEBUG=1 shows where\n",
    )
    monkeypatch.setenv("FUSESTRIPE_DEBUG", "1")
    assert isinstance(run("unmount", "/mnt").exception, ZeroDivisionError)


@pytest.mark.parametrize(
    "command",
    ["--help", "cache ls --cache-dir {cache}", "cache ls --json --cache-dir {cache}", "prefetch {url}"],
)
def test_an_output_that_takes_nothing(source: Path, tmp_path: Path, command: str) -> None:
    prefetched(source, tmp_path / "cache")
    words = command.format(cache=tmp_path / "cache", url=f"file://{source}").split()
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fusestripe.cli", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "FUSESTRIPE_CACHE_DIR": str(tmp_path / "cache")},
            timeout=60,
        )
    what = "fusestripe: the output cannot be written: no space left on device: look at where it goes to\n"
    assert (done.returncode, done.stderr) == (1, what)


@pytest.mark.parametrize(
    "command", ["cache ls --cache-dir {0}/cache", "unmount mnt", "prefetch file://{0} --cache-dir {0}/c"]
)
def test_a_working_directory_that_is_gone(tmp_path: Path, command: str) -> None:
    (tmp_path / "gone").mkdir()
    words = shlex.join([sys.executable, "-m", "fusestripe.cli", *command.format(tmp_path).split()])
    done = subprocess.run(
        ["sh", "-c", f"rmdir {tmp_path}/gone && exec {words}"],
        cwd=tmp_path / "gone",
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    what = "fusestripe: the working directory is gone: cd to one that is there\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", what)


def test_flags_stand_over_o() -> None:
    said = read_flags(("ttl=1,memory=2GiB", "ttl=3"), {"memory": "4GiB", "stripe_size": None})
    assert said == {"ttl": "3", "memory": "4GiB"}


def test_prefetch_cache_ls_verify_evict_clear(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    done = prefetched(source, cache)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert sorted(lines[:2]) == [f"file://{source}/a.bin: 3 MiB", f"file://{source}/sub/b.bin: 100 B"]
    assert re.fullmatch(r"2 files, 3 MiB in .+ s: 3 MiB fetched, 0 B there already", lines[2])
    again = prefetched(source, cache)
    assert again.stdout.splitlines()[2].endswith(" s: 0 B fetched, 3 MiB there already")
    told = [json.loads(line) for line in prefetched(source, cache, "--json").stdout.splitlines()]
    assert {(one["size"], one["cached"], one["fetched"]) for one in told} == {
        (3 * MIB, 3 * MIB, 0),
        (100, 100, 0),
    }
    listed = json.loads(run("cache", "ls", "--cache-dir", str(cache), "--json").stdout)
    assert {(entry["url"], entry["size"], entry["present"]) for entry in listed} == {
        (f"file://{source}/a.bin", 3 * MIB, 3 * MIB),
        (f"file://{source}/sub/b.bin", 100, 100),
    }
    assert "2 objects" in run("cache", "ls", "--cache-dir", str(cache)).stdout
    verified = run("cache", "verify", "--cache-dir", str(cache))
    assert (verified.exit_code, verified.stdout.count(" good\n")) == (0, 2)
    assert verified.stdout.splitlines()[2:] == [f"{cache}: 2 objects, 3 MiB good, 0 bad stripes"]
    verified = run("cache", "verify", "--cache-dir", str(cache), "--json")
    found = {
        (entry["url"], entry["good_bytes"], entry["bad_stripes"]) for entry in json.loads(verified.stdout)
    }
    assert found == {(entry["url"], entry["size"], 0) for entry in listed}
    evicted = run("cache", "evict", f"file://{source}/sub", "--cache-dir", str(cache), "--json")
    assert json.loads(evicted.stdout)["objects"] == 1
    assert "1 object deleted" in run("cache", "clear", "--cache-dir", str(cache)).stdout
    for command in ("ls", "verify"):
        assert json.loads(run("cache", command, "--cache-dir", str(cache), "--json").stdout) == []
    assert run("cache", "verify", "--cache-dir", str(cache)).stdout == f"{cache}: nothing is in the cache\n"


def test_two_versions_of_one_file_are_told_apart(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    prefetched(source, cache)
    os.utime(source / "a.bin", ns=(1, 2))
    prefetched(source, cache)
    prefetched(source, cache, "--stripe-size", "1MiB")
    lines = run("cache", "ls", "--cache-dir", str(cache)).stdout.splitlines()
    files = [line.split("]")[0] for line in lines[1:-1]]
    assert len(files) == len(set(files)) == 5
    assert sum("/a.bin [" in file for file in files) == 3
    assert sum("/sub/b.bin [stripes of " in file for file in files) == 2


def test_prefetch_pin_and_cache_unpin(source: Path, tmp_path: Path) -> None:
    cache = ("--cache-dir", str(tmp_path / "cache"))
    assert prefetched(source, tmp_path / "cache", "--pin").exit_code == 0
    assert run("cache", "ls", *cache).stdout.count("pinned") == 2
    listed = json.loads(run("cache", "ls", "--json", *cache).stdout)
    assert {(entry["pinned"], entry["pinned_until"]) for entry in listed} == {(True, 253402300799.0)}
    assert "2 pinned" in run("cache", "clear", *cache).stdout
    assert run("cache", "unpin", f"file://{source}/sub", *cache).stdout == "1 object unpinned\n"
    assert json.loads(run("cache", "unpin", "--json", *cache).stdout) == {"objects": 1}
    listed = json.loads(run("cache", "ls", "--json", *cache).stdout)
    assert {(entry["pinned"], entry["pinned_until"]) for entry in listed} == {(False, None)}
    assert "2 objects deleted" in run("cache", "clear", *cache).stdout


def test_a_pin_for_a_time(source: Path, tmp_path: Path) -> None:
    cache = ("--cache-dir", str(tmp_path / "cache"))
    began = time.time()
    assert prefetched(source, tmp_path / "cache", "--pin-for", "12h").exit_code == 0
    (until, _) = (entry["pinned_until"] for entry in json.loads(run("cache", "ls", "--json", *cache).stdout))
    assert began + 12 * 3600 <= until <= time.time() + 12 * 3600
    shown = time.strftime("pinned until %Y-%m-%d %H:%M", time.localtime(until))
    assert run("cache", "ls", *cache).stdout.count(shown) == 2
    assert run("cache", "unpin", *cache).stdout == "2 objects unpinned\n"
    for bad in ("0", "-1h", "soon", "inf"):
        refused = prefetched(source, tmp_path / "cache", "--pin-for", bad)
        assert (refused.exit_code, len(refused.stderr.splitlines())) == (1, 1)


def test_a_plan_fetches_nothing_and_says_what_would_be(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    plan = prefetched(source, cache, "--plan")
    assert plan.exit_code == 0
    lines = [re.sub(" +", " ", line.strip()) for line in plan.stdout.splitlines()]
    assert lines[:3] == [
        "file size in cache to fetch",
        f"file://{source}/a.bin 3 MiB 0 B 3 MiB",
        f"file://{source}/sub/b.bin 100 B 0 B 100 B",
    ]
    assert lines[3:6] == [
        "from files to fetch",
        f"file://{source} 2 3 MiB",
        "2 files, 3 MiB: 3 MiB to fetch, 0 B there already",
    ]
    assert re.fullmatch(rf"{cache}: it fits; 0 B of .* used", lines[6])
    assert len(lines) == 7
    assert "nothing is in the cache" in run("cache", "verify", "--cache-dir", str(cache)).stdout
    prefetched(source / "sub", cache)
    told = json.loads(prefetched(source, cache, "--plan", "--json").stdout)
    assert (told["files"], told["bytes"], told["cached"], told["fits"]) == (2, 3 * MIB + 100, 100, True)
    assert told["shares"] == [{"kind": "origin", "source": f"file://{source}", "files": 1, "bytes": 3 * MIB}]
    assert (told["directory"], told["choices"], told["failures"]) == (str(cache), [], [])


def test_a_plan_that_does_not_fit_or_is_of_nothing(source: Path, tmp_path: Path) -> None:
    small = ("--cache-size", "1MiB", "--stripe-size", "1MiB")
    plan = prefetched(source, tmp_path / "cache", "--plan", *small)
    assert plan.exit_code == 1
    assert "it does not fit: 3 MiB more are too much for a cache of 1 MiB: name fewer files" in plan.stdout
    told = json.loads(prefetched(source, tmp_path / "cache", "--plan", "--json", *small).stdout)
    assert (told["fits"], told["room"]["limit"], told["room"]["need"]) == (False, MIB, 3 * MIB + 100)
    nothing = prefetched(source, tmp_path / "cache", "--plan", "--latest")
    assert nothing.exit_code == 1
    assert f"file://{source}: there is no whole checkpoint in file://{source}" in nothing.stderr
    both = prefetched(source, tmp_path / "cache", "--plan", "--check")
    assert (both.exit_code, len(both.stderr.splitlines())) == (2, 1)


def test_a_plan_of_many_files_shows_those_with_the_most_to_fetch(source: Path, tmp_path: Path) -> None:
    for number in range(30):
        (source / f"{number:02}").write_bytes(b"x" * number)
    lines = prefetched(source, tmp_path / "cache", "--plan").stdout.splitlines()
    assert "a.bin" in lines[1]
    assert lines[21].split()[:2] == ["12", "more"]
    assert len(lines) == 26


def test_the_latest_in_a_line_and_in_json(source: Path, tmp_path: Path) -> None:
    for step in range(6):
        (source / f"checkpoint-{step}").mkdir()
        (source / f"checkpoint-{step}" / "model.safetensors").write_bytes(b"12345678" if step < 2 else b"")
    done = prefetched(source, tmp_path / "cache", "--latest", "--ranks", "0-1/8")
    assert done.stdout.splitlines()[0] == (
        f"file://{source}/checkpoint-1 (safetensors); ranks 0-1 of 8: all of it: safetensors does not say "
        "which rank reads what; skipped checkpoint-5: model.safetensors is empty; skipped checkpoint-4: "
        "model.safetensors is empty; skipped checkpoint-3: model.safetensors is empty; and 1 more"
    )
    assert done.stdout.splitlines()[1] == f"file://{source}/checkpoint-1/model.safetensors: 8 B"
    told = [
        json.loads(line)
        for line in prefetched(source, tmp_path / "c", "--latest", "--json").stdout.splitlines()
    ]
    assert [line.get("taken") for line in told] == [f"file://{source}/checkpoint-1", None]
    assert told[0]["skipped"][3] == {
        "path": f"file://{source}/checkpoint-2",
        "reason": "model.safetensors is empty",
    }


def test_ranks_of_this_node(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NODEID"):
        monkeypatch.delenv(name, raising=False)
    refused = prefetched(source, tmp_path / "cache", "--rank-local")
    assert refused.exit_code == 1
    assert "--ranks 0-7" in refused.stderr
    monkeypatch.setenv("SLURM_NODEID", "1")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2(x2)")
    for rank in range(4):
        (source / f"__{rank}_0.distcp").write_bytes(b"x")
    done = prefetched(source, tmp_path / "cache", "--rank-local")
    assert "ranks 2-3 of 4: 4 of 6 files" in done.stdout
    assert [name for name in ("__0_", "__1_", "__2_", "__3_") if name in done.stdout] == ["__2_", "__3_"]


def test_a_damaged_cache_is_told_and_cleared(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    prefetched(source, cache)
    largest = max((path for path in cache.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(MIB)
        file.write(b"damage")
    verified = run("cache", "verify", "--cache-dir", str(cache))
    assert verified.exit_code == 1
    assert "1 bad, cleared" in verified.stdout
    assert verified.stderr.startswith("fusestripe: 1 bad stripe cleared: ")
    assert run("cache", "verify", "--cache-dir", str(cache)).exit_code == 0


@pytest.mark.parametrize("command", ["evict", "unpin"])
@pytest.mark.parametrize("url", ["foo", "s3://elsewhere/a.bin", "file://{0}/a", "file://{0}/a.bin/b"])
def test_a_url_of_nothing_in_the_cache(source: Path, tmp_path: Path, command: str, url: str) -> None:
    cache = ("--cache-dir", str(tmp_path / "cache"))
    prefetched(source, tmp_path / "cache", "--pin")
    wrong = url.format(source)
    refused = run("cache", command, f"file://{source}/sub", wrong, *cache)
    assert refused.exit_code == 1
    line = f"fusestripe: nothing of {wrong} is in the cache: fusestripe cache ls shows what is\n"
    assert (refused.stdout, refused.stderr) == ("", line)
    assert run("cache", "ls", *cache).stdout.count("pinned") == 2  # nothing has been done


def test_clear_leaves_what_is_not_of_the_cache(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    prefetched(source, cache)
    objects = cache / "objects"
    (shard, *_) = sorted(path for path in objects.iterdir())
    (data,) = [path.name for path in shard.glob("*.data")]
    (shard / data).unlink()
    (objects / "a directory" / "deep").mkdir(parents=True)
    (objects / "0.txt").write_text("mine")
    (shard / "notes").write_text("mine")
    (shard / data).mkdir()  # under one of the cache's own names
    for command in ("ls", "verify"):
        assert run("cache", command, "--cache-dir", str(cache)).exit_code == 0
    cleared = run("cache", "clear", "--cache-dir", str(cache))
    assert cleared.exit_code == 0
    assert cleared.stdout.startswith("2 objects deleted")
    left = {objects / "0.txt", objects / "a directory", shard / "notes", shard / data}
    said = "fusestripe: left alone, for it is not of the cache: "
    assert set(cleared.stderr.splitlines()) == {f"{said}{path}" for path in left}
    assert all(path.exists() for path in left)
    assert list(cache.rglob("*.ledger")) == []
    # What is in the way costs its own file the cache and no other.
    again = prefetched(source, cache)
    assert (again.exit_code, len(again.stdout.splitlines())) == (1, 2)  # a file and the last line
    assert "is a directory" in again.stderr.lower()


def test_what_cannot_be_deleted_is_named_and_all_else_goes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    prefetched(source, cache)
    stuck = min(path.stem for path in cache.rglob("*.data"))
    delete = CacheDirectory.delete

    def fails(self: CacheDirectory, name: str) -> None:
        if name == stuck:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        delete(self, name)

    monkeypatch.setattr(CacheDirectory, "delete", fails)
    cleared = run("cache", "clear", "--cache-dir", str(cache))
    assert cleared.exit_code == 1
    assert cleared.stdout.startswith("1 object deleted")
    assert cleared.stderr.startswith(
        f"fusestripe: cannot delete objects/{stuck[:2]}/{stuck}: Operation not permitted"
    )
    assert [path.stem for path in cache.rglob("*.data")] == [stuck]


def test_prefetch_check_fetches_nothing(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    missing = prefetched(source, cache, "--check", "--json")
    assert missing.exit_code == 1
    reports = [json.loads(line) for line in missing.stdout.splitlines()]
    assert sorted((one["state"], one["missing"]) for one in reports) == [
        ("missing", 100),
        ("missing", 3 * MIB),
    ]
    assert prefetched(source, cache).exit_code == 0
    assert prefetched(source, cache, "--check").exit_code == 0


def test_prefetch_check_tells_what_is_there_as_cache_ls_does(source: Path, tmp_path: Path) -> None:
    """A stripe that is missing is no reason not to look at those behind it."""
    cache = tmp_path / "cache"
    prefetched(source, cache, "--stripe-size", "1MiB")
    (ledger,) = (path for path in cache.rglob("*.ledger") if path.with_suffix(".data").stat().st_size > MIB)
    data = bytearray(ledger.with_suffix(".data").read_bytes())
    data[0] ^= 1
    ledger.with_suffix(".data").write_bytes(data)
    checked = prefetched(source, cache, "--check", "--stripe-size", "1MiB")
    assert checked.exit_code == 1
    assert f"file://{source}/a.bin: 2 MiB of 3 MiB there, 1 MiB missing\n" in checked.stdout
    last = checked.stdout.splitlines()[-1]
    assert re.fullmatch(r"2 files, 3 MiB in .+: 2 MiB there, 1 MiB missing in 1 file", last)
    assert "failed" not in checked.output
    listed = json.loads(run("cache", "ls", "--cache-dir", str(cache), "--json").stdout)
    again = prefetched(source, cache, "--check", "--stripe-size", "1MiB", "--json")
    told = {one["path"]: one["cached"] for one in map(json.loads, again.stdout.splitlines())}
    assert told == {one["url"]: one["present"] for one in listed}


def test_to_check_is_no_use(source: Path, tmp_path: Path) -> None:
    """A daily check of all there is must not tell eviction that all of it is wanted."""
    cache = tmp_path / "cache"

    def last_uses() -> list[float]:
        listed = json.loads(run("cache", "ls", "--cache-dir", str(cache), "--json").stdout)
        return [one["last_use"] for one in listed]

    prefetched(source, cache)
    before = last_uses()
    assert prefetched(source, cache, "--check").exit_code == 0
    assert last_uses() == before
    prefetched(source, cache)
    assert min(last_uses()) > max(before)


def test_what_is_named_twice_counts_once(source: Path, tmp_path: Path) -> None:
    again = (f"file://{source}/", f"file://{source}/sub")
    told = prefetched(source, tmp_path / "cache", *again).stdout.splitlines()
    assert told[-1].startswith("2 files, 3 MiB ")
    assert len(told) == 3


def test_prefetch_of_what_is_not_there_fails(source: Path, tmp_path: Path) -> None:
    result = run("prefetch", f"file://{source}/nothing", "--cache-dir", str(tmp_path / "cache"))
    assert result.exit_code == 1
    assert "does not exist" in result.stderr
    assert result.stdout.startswith("0 files, 0 B in ")


API = """
import sys
import fusestripe
assert not {"trio", "pyfuse3", "click", "rich"} & set(sys.modules), "import fusestripe is not light"
assert fusestripe.mount.__name__ == "mount"
source, cache = sys.argv[1:]
for report in fusestripe.prefetch(f"{source}/a.bin", cache_dir=cache):
    print(report.path.removeprefix(source), report.state, report.size)
for report in sorted(fusestripe.prefetch(source, cache_dir=cache, check=True), key=lambda one: one.path):
    print(report.path.removeprefix(source), report.state)
"""


def test_the_api_as_a_script_uses_it(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", API, f"file://{source}", str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    assert done.stdout == f"/a.bin done {3 * MIB}\n/a.bin done\n/sub/b.bin missing\n"


@pytest.mark.parametrize(
    ("url", "origin", "path"),
    [
        ("s3://b", "s3://b", ""),
        ("s3://b/", "s3://b", ""),
        ("s3://b/x/y", "s3://b", "x/y"),
        ("s3://b/x/", "s3://b", "x"),
        ("s3://bb/x", "s3://b", None),
        ("s3://b/x", "s3://b?endpoint=h", "x"),
        ("s3://b/x?endpoint=h", "s3://b?endpoint=h", "x"),
        ("s3://b/x/?endpoint=https://h/", "s3://b?endpoint=h", "x"),
        ("s3://b/x?endpoint=other", "s3://b?endpoint=h", None),
        ("file:///a/b", "file://", "a/b"),
        ("file:///", "file://", ""),
        ("s3://b", "file://", None),
    ],
)
def test_what_evict_means_by_a_url(url: str, origin: str, path: str | None) -> None:
    assert path_in(url, origin) == path


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://b/x/y.bin", ("s3://b/x", "y.bin")),
        ("s3://b/x", ("s3://b", "x")),
        ("s3://b/x/", ("s3://b/x/", "")),
        ("s3://b", ("s3://b", "")),
        ("file:///x", ("file:///", "x")),
        ("file:///x/y", ("file:///x", "y")),
    ],
)
def test_where_a_file_lies(url: str, parts: tuple[str, str]) -> None:
    assert split_url(url) == parts


@pytest.mark.parametrize(
    ("url", "below", "shown"),
    [
        ("file:///", "x", "file:///x"),
        ("file:///x", "y/z", "file:///x/y/z"),
        ("s3://b/", "x", "s3://b/x"),
        ("s3://b", "x", "s3://b/x"),
        ("s3://b", "", "s3://b"),
    ],
)
def test_reports_name_what_lies_below_a_url(url: str, below: str, shown: str) -> None:
    assert Named(MemoryOrigin({}), url, "").shown(below) == shown


def test_bench_advises_the_fewest_streams_that_give_nearly_all() -> None:
    settings = load("s3://b", {}, environ={})
    rates = [Rate(1, 50, 1), Rate(4, 200, 1), Rate(8, 390, 1), Rate(16, 800, 2), Rate(32, 380, 1)]
    result = judge("s3://b/x", 1000, rates, settings, Climb(16, 64))
    assert (result.stripe_count, result.speedup) == (8, 7.8)
    assert result.rates["16"] == 400


@pytest.mark.parametrize("noise", [(1, 1.04, 1.01, 1.03), (1.03, 0.99, 1.04, 1), (0.96, 1, 0.98, 1.01)])
def test_bench_advises_no_more_streams_for_noise(noise: tuple[float, ...]) -> None:
    """An origin that gives all it has to four streams."""
    rates = [Rate(1, 50_000_000, 1), *(Rate(4 << n, int(200e6 * by), 1) for n, by in enumerate(noise))]
    assert judge("s3://b/x", 1000, rates, load("s3://b", {}, environ={}), Climb(16, 64)).stripe_count == 4


@pytest.mark.parametrize(
    ("gives", "start", "least", "most"),
    [
        (lambda count: min(count * 12.5e6, 1e9), 16, 32, 64),  # beyond what was measured it does not guess
        (lambda count: min(count * 50e6, 400e6), 16, 7, 12),
        (lambda count: min(count * 50e6, 400e6), 32, 7, 12),
        (lambda count: 200e6, 16, 1, 4),
    ],
)
def test_bench_tells_what_the_default_would_find(
    gives: Callable[[int], float], start: int, least: int, most: int
) -> None:
    rates = [Rate(count, int(gives(count)), 1) for count in (1, 4, 8, 16, 32)]
    assert least <= settle(Climb(start, 64), rates) <= most


def test_bench_measures_a_real_origin(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusestripe.commands.bench.SECONDS", 0.3)
    result = run("bench", f"file://{source}", "--stripe-size", "1MiB", "--json", "-o", "ttl=1")
    assert result.exit_code == 0, result.output
    measured = json.loads(result.stdout)
    assert measured["url"] == f"file://{source}/a.bin"
    assert set(measured["rates"]) == {"1", "4", "8", "16", "32"}
    assert min(measured["rates"].values()) > 0
    assert measured["stripe_size"] == MIB
    assert 1 <= measured["default_finds"] <= 512  # half of a GiB
    said = run("bench", f"file://{source}", "--stripe-size", "1MiB").stdout.splitlines()[-3:]
    assert re.fullmatch(r"(4|8|16|32) streams are the fewest that give 95% of the best", said[0])
    assert re.fullmatch(
        r"the default \(--stripe-count -1\) finds the number itself: some \d+( or more)? here", said[1]
    )
    assert re.fullmatch(r"to set it: --stripe-count (4|8|16|32) --stripe-size 1MiB", said[2])


def test_bench_does_not_wait_for_what_is_under_way_when_its_time_is_over() -> None:
    """One plain request of a slow origin would take minutes."""
    content = bytes(10 * MIB)
    origin = MemoryOrigin({"file": content}, chunk=MIB)
    version = origin.version("file", origin.stat("file"))
    seen: list[int] = []
    late = threading.Event()

    class Slow(MemoryOrigin):
        def read_range(
            self, version: ObjectVersion, offset: int, into: memoryview, progress: Progress
        ) -> None:
            for done in range(MIB, len(content) + 1, MIB):
                progress(done)
                seen.append(done)
                if done == 2 * MIB:
                    assert not late.wait(0.3)  # past the end

    rate = measure(Slow({"file": content}), version, 1, MIB, 0.1)
    assert (rate.bytes, seen) == (2 * MIB, [MIB, 2 * MIB])


def test_bench_counts_its_time_from_the_first_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """An origin whose first byte takes longer than a measurement can be measured, a silent one is told."""
    content = bytes(MIB)
    origin = MemoryOrigin({"file": content})
    version = origin.version("file", origin.stat("file"))

    class Late(MemoryOrigin):
        def read_range(
            self, version: ObjectVersion, offset: int, into: memoryview, progress: Progress
        ) -> None:
            time.sleep(0.3)
            super().read_range(version, offset, into, progress)

    late = Late({"file": content}, chunk=MIB)
    rate = measure(late, version, 1, MIB, 0.1)
    assert rate.bytes >= MIB
    assert rate.seconds >= 0.3, "the time to the first byte counts"
    monkeypatch.setattr("fusestripe.commands.bench.FIRST_SECONDS", 0.1)
    with pytest.raises(fusestripe.OriginError, match=r"not one byte came in 0\.1 s"):
        measure(late, version, 1, MIB, 0.1)


def test_bench_refuses_a_file_that_is_too_small(source: Path) -> None:
    result = run("bench", f"file://{source}/sub/b.bin")
    assert result.exit_code == 1
    assert "has 100 B, less than a stripe" in result.stderr


def test_the_group_imports_only_what_is_asked_for() -> None:
    assert isinstance(cli, click.Group)
    assert list(cli.list_commands(click.Context(cli))) == list(COMMANDS)
