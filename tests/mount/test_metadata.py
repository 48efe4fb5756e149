"""Names and attributes through a real mount: what they cost at the origin, how odd keys are shown."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import obstore
import pytest

from tests.support.mounted import until
from tests.support.mounted_store import KIB, MountedStore, content, drop_pages
from tests.support.proxy import Fault, Proxy
from tests.support.s3_pages import as_xml, pages_of
from tests.support.seaweed import SeaweedServer

OBJECTS = 10_000
DIRECTORIES = 100
LISTS = 14
"""Ten pages of a thousand keys, and what it takes to see that someone walks the tree."""
ODD_NAMES = (
    "with blank",
    " blanks around ",
    "per%20cent",
    "100%",
    "plus+plus",
    "hash#tag",
    "question?mark",
    "amper&sand=x",
    "quote'\"<>",
    "tab\tand\nnewline",
    "ünïcödé-文件-🚀",
    "-rf",
    "~tilde",
    "n" * 255,
)


@pytest.fixture(scope="module")
def ten_thousand(
    s3_server: SeaweedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MountedStore]:
    """Empty objects: 10,000 in ``flat/``, and 10,000 in the hundred directories of ``deep/``."""
    keys = [f"flat/{number:05}" for number in range(OBJECTS)]
    keys += [f"deep/{number % DIRECTORIES:03}/{number:05}" for number in range(OBJECTS)]
    with s3_server.bucket("ten-thousand") as bucket, Proxy(s3_server.endpoint) as proxy:
        client = s3_server.store(bucket)
        with ThreadPoolExecutor(16) as pool:
            for _ in pool.map(lambda key: obstore.put(client, key, b"", use_multipart=False), keys):
                pass
        yield MountedStore(s3_server, bucket, proxy, tmp_path_factory.mktemp("ten-thousand"))


@pytest.mark.parametrize("prefix", ["flat", "deep"])
def test_ls_of_ten_thousand_objects(ten_thousand: MountedStore, prefix: str) -> None:
    with ten_thousand.mount(prefix) as mount:
        listed = subprocess.run(["ls", "-lR", mount.path], capture_output=True, text=True, check=True)
        assert listed.stderr == ""
        files = [line for line in listed.stdout.splitlines() if line.startswith("-r")]
        assert len(files) == OBJECTS
        seen = ten_thousand.proxy.statistics()
        assert set(seen.counts) == {"LIST"}
        assert OBJECTS // 1000 <= seen.count("LIST") <= LISTS
        # Again within the lifetime of the listings: nothing is asked, by this or another program.
        found = subprocess.run(["find", mount.path, "-type", "f"], capture_output=True, text=True, check=True)
        assert len(found.stdout.splitlines()) == OBJECTS
        assert ten_thousand.proxy.statistics().requests == seen.requests


def test_one_name_of_a_large_directory_is_not_worth_all_pages(ten_thousand: MountedStore) -> None:
    with ten_thousand.mount("flat") as mount:
        assert os.stat(mount.path / "09999").st_size == 0
        assert (
            ten_thousand.proxy.statistics().requests <= 5
        )  # two pages, whether it is a directory, and the name
        with pytest.raises(FileNotFoundError):
            os.stat(mount.path / "99999")
        assert ten_thousand.proxy.statistics().requests <= 7


def test_attributes(store: MountedStore) -> None:
    store.put("dir/file", content(100_001))
    head = store.server.client.head_object(Bucket=store.bucket, Key="dir/file")
    with store.mount() as mount:
        found = os.stat(mount.path / "dir/file")
        assert stat.S_ISREG(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o644
        assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())
        assert found.st_size == 100_001
        assert found.st_blocks == -(-100_001 // 512)
        assert int(found.st_mtime) == int(head["LastModified"].timestamp())
        assert found.st_nlink == 1
        directory = os.stat(mount.path / "dir")
        assert stat.S_ISDIR(directory.st_mode)
        assert stat.S_IMODE(directory.st_mode) == 0o755
        assert store.proxy.statistics().count("HEAD") == 0


def test_numbers_of_inodes_outlive_the_mount(store: MountedStore) -> None:
    store.put("dir/file", b"x")
    numbers = []
    for _ in range(2):
        with store.mount() as mount:
            numbers.append([os.stat(mount.path / path).st_ino for path in ("dir", "dir/file")])
    assert numbers[0] == numbers[1]


def test_opening_again_costs_nothing(store: MountedStore) -> None:
    data = content(512 * KIB)
    store.put("file", data)
    with store.mount(passthrough="no") as mount:  # which would make the reads below unseen
        path = mount.path / "file"
        assert path.read_bytes() == data
        reads = mount.status()["reads"]["count"]
        assert reads > 0
        store.proxy.reset()
        for _ in range(20):
            assert path.read_bytes() == data
        assert store.proxy.statistics().requests == 0
        assert mount.status()["reads"]["count"] == reads
        # And this would have been seen:
        drop_pages(path)
        assert path.read_bytes() == data
        assert mount.status()["reads"]["count"] > reads


def test_pages_are_kept_past_the_lifetime_while_the_version_is_the_same(store: MountedStore) -> None:
    data = content(512 * KIB)
    store.put("file", data)
    with store.mount(ttl=0.1) as mount:
        path = mount.path / "file"
        assert path.read_bytes() == data
        reads = mount.status()["reads"]["count"]

        def asked_again() -> bool:
            assert path.read_bytes() == data
            return store.proxy.statistics().count("LIST") + store.proxy.statistics().count("HEAD") >= 3

        until(asked_again)
        assert mount.status()["reads"]["count"] == reads
        assert len(store.requests("GET")) == len(data) // (64 * KIB)


def test_missing_names_are_answered_without_asking(store: MountedStore) -> None:
    store.put("dir/file", b"x")
    with store.mount(ttl=600, negative_ttl=600) as mount:
        assert os.listdir(mount.path / "dir") == ["file"]
        store.proxy.reset()
        for number in range(200):
            with pytest.raises(FileNotFoundError):
                os.stat(mount.path / f"dir/missing{number % 10}")
        assert store.proxy.statistics().requests == 0


def test_new_objects_turn_up(store: MountedStore) -> None:
    store.put("dir/old", b"old")
    with store.mount(ttl=0.2, negative_ttl=0.2) as mount:
        directory = mount.path / "dir"
        assert os.listdir(directory) == ["old"]
        with pytest.raises(FileNotFoundError):
            os.stat(directory / "new")
        store.put("dir/new", b"new")
        until((directory / "new").exists)
        assert (directory / "new").read_bytes() == b"new"
        store.put("dir/newer", b"newer")
        until(lambda: sorted(os.listdir(directory)) == ["new", "newer", "old"])


def test_a_new_object_turns_up_after_the_shorter_time(store: MountedStore) -> None:
    store.put("dir/old", b"old")
    with store.mount(ttl=600, negative_ttl=0.2) as mount:
        directory = mount.path / "dir"
        assert os.listdir(directory) == ["old"]
        with pytest.raises(FileNotFoundError):
            os.stat(directory / "new")
        store.put("dir/new", b"new")
        until((directory / "new").exists)
        assert (directory / "new").read_bytes() == b"new"


def test_odd_names(store: MountedStore) -> None:
    for name in ODD_NAMES:
        store.put(f"odd/{name}", name.encode())
        store.put(f"below/{name}/inside", name.encode()[::-1])
    with store.mount() as mount:
        assert sorted(os.listdir(mount.path / "odd")) == sorted(ODD_NAMES)
        assert sorted(os.listdir(mount.path / "below")) == sorted(ODD_NAMES)
        for name in ODD_NAMES:
            assert (mount.path / "odd" / name).read_bytes() == name.encode()
            assert os.listdir(mount.path / "below" / name) == ["inside"]
            assert (mount.path / "below" / name / "inside").read_bytes() == name.encode()[::-1]
    # By name alone, before anything is listed.
    for number, name in enumerate(ODD_NAMES):
        if number % 5 == 0:
            with store.mount(cache=f"cache{number}") as mount:
                assert (mount.path / "odd" / name).read_bytes() == name.encode()


CONTROLS = (
    "\x01",
    "bell\a",
    "tab\t",
    "return\r",
    "esc\x1b[31m",
    "del\x7f",
    "\x85nel",
    "right\u202eleft",
    "\u2028",
)


def test_control_characters_and_keys_as_long_as_they_may_be(store: MountedStore) -> None:
    longest = "/".join(["x" * 204] * 5)
    assert len(longest) == 1024  # of S3's keys, in bytes
    for name in CONTROLS:
        store.put(f"odd/{name}", name.encode())
    store.put(longest, b"long")
    with store.mount() as mount:
        assert set(os.listdir(mount.path / "odd")) == set(CONTROLS)
        for name in CONTROLS:
            assert (mount.path / "odd" / name).read_bytes() == name.encode()
        assert (mount.path / longest).read_bytes() == b"long"
        # Where names are shown to people, none does anything to their terminals.
        caches = ["cache", "ls", "--cache-dir", str(store.directory / "cache")]
        with open(mount.path / "odd" / CONTROLS[4], "rb"):
            for command in (["status", str(mount.path)], ["prefetch", str(mount.path / "odd")], caches):
                told = subprocess.run(
                    [sys.executable, "-m", "fusestripe", *command], capture_output=True, check=True
                )
                assert not set(b"\x01\a\t\r\x1b\x7f") & set(told.stdout + told.stderr), command


def test_a_directory_made_by_a_key_that_ends_in_a_slash(store: MountedStore) -> None:
    store.put("dir/", b"")
    store.put("other/file", b"x")
    with store.mount() as mount:
        assert sorted(os.listdir(mount.path)) == ["dir", "other"]
        assert os.listdir(mount.path / "dir") == []


def test_a_name_that_is_file_and_directory_is_a_directory(store: MountedStore) -> None:
    store.put("both", b"file")
    store.put("both/inside", b"inside")
    with store.mount() as mount:
        assert os.listdir(mount.path) == ["both"]
        assert (mount.path / "both" / "inside").read_bytes() == b"inside"
        with pytest.raises(IsADirectoryError):
            (mount.path / "both").read_bytes()


EVIL = (
    "../escaped",
    "..",
    ".",
    "./here",
    "/absolute",
    "//twice",
    "a/../../b",
    "a/./b",
    "a//b",
    "a/..",
    "a/" + "x" * 256,
    "y" * 256,
    "ü" * 128,
    "nul\0byte",
    "a/good",
    "good",
)


def invented(prefix: str, keys: Sequence[str]) -> list[Fault]:
    """Answers to every listing at and below ``prefix`` as a server with those keys would give them."""
    places = {""} | {key[: at + 1] for key in keys for at, letter in enumerate(key) if letter == "/"}
    full = [prefix + key for key in keys]
    faults = []
    for place in sorted(places):
        where = f"prefix={re.escape(quote(prefix + place, safe='-_.~'))}$"
        for delimiter, asked in (("/", "delimiter=%2F.*"), ("", r"\?encoding-type=.*")):
            (page,) = pages_of(full, prefix + place, delimiter, 1000)
            faults.append(Fault("status:200", match=f"^LIST .*{asked}{where}", times=0, body=as_xml(page)))
    return faults


def walked(top: Path) -> set[str]:
    def refused(error: OSError) -> None:
        raise error

    found = set()
    for directory, directories, files in os.walk(top, onerror=refused):
        for name in (*directories, *files):
            found.add(os.path.relpath(os.path.join(directory, name), top))
    return found


def test_evil_keys_stay_inside(store: MountedStore) -> None:
    # A real server takes few such keys; one that lies may list them all.
    keys = [key for key in EVIL if key not in ("..", ".")]
    store.proxy.set_faults(invented("evil/", keys))
    with store.mount("evil") as mount:
        assert walked(mount.path) == {"a", "a/good", "good"}
        assert walked(mount.path) == {"a", "a/good", "good"}
        for name in ("escaped", "absolute", "twice", "b", "here"):
            assert not (mount.path / name).exists()
        listed = subprocess.run(["ls", "-lRa", mount.path], capture_output=True, text=True, check=True)
        assert "escaped" not in listed.stdout
        assert "cannot" not in listed.stderr


def test_a_bucket_of_nothing_but_evil_keys(store: MountedStore) -> None:
    store.proxy.set_faults(invented("evil/", ["../escaped", "..", ".", "//x", "y" * 300]))
    with store.mount("evil") as mount:
        assert walked(mount.path) == set()
