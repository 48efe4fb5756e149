"""What /proc/self/mountinfo says, and what a mountpoint must be. Real mounts are in tests/mount."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusestripe.errors import MountError
from fusestripe.kernel import mounting
from fusestripe.kernel.holders import Holders, holders
from fusestripe.kernel.mounting import FSTYPE, Mount, check_fuse, parse_mountinfo, prepare

SAMPLE = r"""22 27 0:20 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
27 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro
36 27 0:40 / /mnt/a\040b\011c\134 ro,nodev shared:2 master:3 - fuse.fusestripe s3://b/a\040b ro,user_id=1000
37 27 0:41 / /mnt/b ro,nosuid,nodev - fuse.fusestripe s3://b ro,user_id=0,group_id=0,allow_other
38 37 0:42 / /mnt/b rw - tmpfs none rw
not a line of it
"""


def test_a_sample_of_mountinfo() -> None:
    found = list(parse_mountinfo(SAMPLE))
    assert [mount.mountpoint for mount in found] == ["/sys", "/", "/mnt/a b\tc\\", "/mnt/b", "/mnt/b"]
    assert [mount.owner for mount in found] == [None, None, 1000, 0, None]
    first = found[2]
    assert (first.fstype, first.source, first.device) == (FSTYPE, "s3://b/a b", "0:40")
    assert "ro" in first.options


# The kernel escapes these four (fs/proc_namespace.c, mangle); other bytes come as they are.
ESCAPED = {" ": "\\040", "\t": "\\011", "\n": "\\012", "\\": "\\134"}


letters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])


@given(st.lists(st.text(letters, max_size=20), max_size=5))
def test_any_name_is_read_back(names: list[str]) -> None:
    lines = []
    for name in names:
        escaped = "".join(ESCAPED.get(letter, letter) for letter in name)
        lines.append(f"1 0 0:1 / /{escaped} rw - {FSTYPE} {escaped} rw,user_id=7")
    found = [(mount.mountpoint, mount.source, mount.owner) for mount in parse_mountinfo("\n".join(lines))]
    assert found == [(f"/{name}", name, 7) for name in names]


def test_bytes_that_are_no_utf8_are_read_back() -> None:
    line = os.fsdecode(b"1 0 0:1 / /\xff\\040x rw - tmpfs none rw")
    assert [os.fsencode(mount.mountpoint) for mount in parse_mountinfo(line)] == [b"/\xff x"]


def mounted(monkeypatch: pytest.MonkeyPatch, *found: Mount) -> None:
    monkeypatch.setattr(mounting, "mounts", lambda: list(found))


def test_the_mount_on_top_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, *parse_mountinfo(SAMPLE))
    top = mounting.find_mount("/mnt/b")
    assert top is not None
    assert top.fstype == "tmpfs"
    assert mounting.find_mount("/mnt") is None


AUTOMOUNT = Mount("/mnt/auto", "autofs", "systemd-1", "0:50", ())


def test_an_automount_point_is_mounted_on_and_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its automounter waits for this very mount."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("looked into")

    mounted(monkeypatch, AUTOMOUNT)
    for name in ("stat", "scandir", "access"):
        monkeypatch.setattr(os, name, refuse)
    assert mounting.is_automount("/mnt/auto")
    assert prepare("/mnt/auto") == "/mnt/auto"


def test_what_is_mounted_on_an_automount_point_is_a_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, AUTOMOUNT, Mount("/mnt/auto", FSTYPE, "s3://b", "0:51", ("user_id=0",)))
    monkeypatch.setattr(mounting, "_state", lambda path: "alive")
    assert not mounting.is_automount("/mnt/auto")
    with pytest.raises(MountError, match="/mnt/auto is already mounted"):
        prepare("/mnt/auto")


def test_a_directory_that_is_not_this_users_is_named_with_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As fusermount3 asks; root with CAP_SYS_ADMIN needs no right to it."""
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    monkeypatch.setattr(mounting, "has_sys_admin", lambda: True)
    assert prepare(str(tmp_path)) == str(tmp_path)
    monkeypatch.setattr(mounting, "has_sys_admin", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(MountError) as refused:
        prepare(str(tmp_path))
    assert str(refused.value) == f"this user may not write in {tmp_path}: as root: chown 12345 {tmp_path}"


ELSEWHERE = r"""
30 1 0:30 / /mnt/a rw - fuse.fusestripe s3://b rw,user_id=0
31 1 0:31 / /mnt/ab rw - fuse.fusestripe s3://c rw,user_id=0
32 1 0:30 /sub /bind rw - fuse.fusestripe s3://b rw,user_id=0
33 1 0:33 / /over1 rw - overlay overlay rw,lowerdir=/mnt/a/x\134:y:/z,upperdir=/u,workdir=/w
34 1 0:34 / /over2 rw - overlay overlay rw,lowerdir+=/z,lowerdir+=/mnt/a
35 1 0:35 / /over3 rw - overlay overlay rw,lowerdir=/mnt/ab:/z
"""


def test_where_else_a_tree_is_mounted() -> None:
    found = list(parse_mountinfo(ELSEWHERE))
    assert mounting.elsewhere(found[0], found) == ["/bind", "/over1", "/over2"]
    assert mounting.elsewhere(found[1], found) == ["/over3"]
    assert mounting.elsewhere(found[2], found) == ["/mnt/a"]
    assert mounting.elsewhere(found[2], []) == []  # it went meanwhile
    twice = [*found, found[0]]
    assert mounting.elsewhere(found[0], twice)[-3:] == ["/mnt/a", "/over1", "/over2"]


def test_only_mounts_of_this_user_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, *parse_mountinfo(SAMPLE))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert [mount.mountpoint for mount in mounting.our_mounts()] == ["/mnt/a b\tc\\"]
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    assert mounting.our_mounts() == []
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # root sees all
    assert "/mnt/a b\tc\\" in [mount.mountpoint for mount in mounting.our_mounts()]


def test_a_path_is_found_in_its_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Mount("/mnt/a", FSTYPE, "s", "0:1", ())
    mounted(monkeypatch, Mount("/", "ext4", "d", "8:1", ()), one, Mount("/mnt/a/t", "tmpfs", "t", "0:2", ()))
    assert mounting.mount_above("/mnt/a/x/y") == (one, "x/y")
    assert mounting.mount_above("/mnt/a/") == (one, "")
    assert mounting.mount_above("/mnt/a/x/../z") == (one, "z")
    assert mounting.mount_above("/mnt/ab") is None
    assert mounting.mount_above("/mnt/a/t/x") is None
    assert mounting.mount_above("/mnt/a/../b") is None
    assert mounting.mount_above("/mnt/b/../a/x") == (one, "x")


def test_a_path_by_way_of_links_is_found_and_nothing_in_the_mount_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What looks into a mount whose origin is silent cannot be interrupted, nor killed."""
    (tmp_path / "mnt").mkdir()
    (tmp_path / "mnt" / "inner").symlink_to("elsewhere")
    (tmp_path / "absolute").symlink_to(tmp_path / "mnt")
    (tmp_path / "relative").symlink_to("mnt/inner")
    (tmp_path / "chain").symlink_to(tmp_path / "absolute" / "inner")
    (tmp_path / "loop").symlink_to("loop")
    one = Mount(str(tmp_path / "mnt"), FSTYPE, "s", "0:1", ())
    mounted(monkeypatch, Mount("/", "ext4", "d", "8:1", ()), one)
    monkeypatch.chdir(tmp_path)
    touched: list[str] = []

    def watched(name: str) -> None:
        real = getattr(os, name)

        def call(path: str, *args: object, **kwargs: object) -> object:
            touched.append(str(path))
            return real(path, *args, **kwargs)

        monkeypatch.setattr(os, name, call)

    for name in ("readlink", "lstat", "stat"):
        watched(name)
    found = {
        "mnt/x": "x",
        "absolute": "",
        "absolute/a/b": "a/b",
        "relative/a": "inner/a",
        "chain/../a": "a",
        "./absolute/../absolute/a": "a",
        "absolute/../nowhere": None,
        "loop": None,
        "nowhere/x": None,
    }
    for path, below in found.items():
        expected = None if below is None else (one, below)
        assert mounting.mount_above(path) == expected, path
    assert not [path for path in touched if path.startswith(f"{tmp_path}/mnt")]


def test_an_empty_directory_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "link").symlink_to("m")
    monkeypatch.chdir(tmp_path)
    assert prepare("link") == str(tmp_path / "m")


def test_what_is_no_mountpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, message in (
        (tmp_path / "no", f"{tmp_path}/no does not exist: mkdir -p {tmp_path}/no"),
        (tmp_path / "file", f"{tmp_path}/file is not a directory: mount on an empty directory"),
        (tmp_path / "file" / "x", f"{tmp_path}/file/x is not a directory: mount on an empty directory"),
        (tmp_path, f"{tmp_path} is not empty: mount on an empty directory"),
    ):
        with pytest.raises(MountError) as refused:
            prepare(str(path))
        assert str(refused.value) == message


def test_a_mountpoint_out_of_reach_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(MountError, match="cannot be reached: permission denied"):
        prepare(str(tmp_path))


def test_without_the_device_there_is_no_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounting, "_FUSE_DEVICE", str(tmp_path / "fuse"))
    with pytest.raises(MountError, match=r"fuse is missing: as root: modprobe fuse; in a container .* --dev"):
        check_fuse(allow_other=False)


class TestUser:
    """One who is not root."""

    @pytest.fixture(autouse=True)
    def user(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "fuse").touch()
        monkeypatch.setattr(mounting, "_FUSE_DEVICE", str(tmp_path / "fuse"))
        monkeypatch.setattr(mounting, "_FUSE_CONF", str(tmp_path / "fuse.conf"))
        monkeypatch.setattr(mounting, "has_sys_admin", lambda: False)
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "fusermount3").touch(mode=0o755)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def test_may_mount_with_fusermount(self) -> None:
        check_fuse(allow_other=False)

    def test_may_not_without_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(MountError, match=r"^fusermount3 is missing: as root: install fuse3"):
            check_fuse(allow_other=False)

    @pytest.mark.parametrize(
        ("number", "said"),
        [
            (errno.EACCES, "this user may not open .*: as root: chmod 666 "),
            (errno.EPERM, "this container may not open .*: start it with --device /dev/fuse"),
            (errno.ENODEV, "the kernel has no FUSE: as root: modprobe fuse"),
            (errno.EMFILE, "cannot be opened: too many open files"),
        ],
    )
    def test_may_not_open_the_device(self, monkeypatch: pytest.MonkeyPatch, number: int, said: str) -> None:
        def refuse(path: str, flags: int) -> int:
            raise OSError(number, os.strerror(number), path)

        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(MountError, match=said):
            check_fuse(allow_other=False)

    @pytest.mark.parametrize(
        ("conf", "allowed"),
        [("user_allow_other", True), ("#user_allow_other", False), ("", False), (" user_allow_other#", True)],
    )
    def test_lets_others_in_where_the_machine_says_so(self, tmp_path: Path, conf: str, allowed: bool) -> None:
        (tmp_path / "fuse.conf").write_text(conf)
        if allowed:
            check_fuse(allow_other=True)
        else:
            with pytest.raises(MountError, match="does not say user_allow_other"):
                check_fuse(allow_other=True)


def test_root_without_the_right_to_mount_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounting, "_FUSE_DEVICE", "/dev/null")
    monkeypatch.setattr(mounting, "has_sys_admin", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(MountError, match="CAP_SYS_ADMIN is missing"):
        check_fuse(allow_other=False)


TOO_SHORT = "2 s were too short to look at every process"


@pytest.mark.parametrize(
    ("names", "all_seen", "user", "says"),
    [
        (("cat (7)", "sh (9)"), True, 0, "by cat (7), sh (9): end them first"),
        (("cat (7)",), False, 0, f"by cat (7) and maybe others ({TOO_SHORT}): end them first"),
        ((), True, 0, "by a process that cannot be seen from here: look for it in other containers"),
        ((), True, 1000, "by a process that cannot be seen from here: look for it as root"),
        ((), False, 0, f"({TOO_SHORT}): fuser -vm /m looks at all"),
    ],
)
def test_who_holds_a_mount_is_told_as_far_as_it_is_known(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], all_seen: bool, user: int, says: str
) -> None:
    def busy(mountpoint: str, *, lazy: bool) -> None:
        raise mounting.Busy

    mounted(monkeypatch, Mount("/m", FSTYPE, "s", "0:1", (f"user_id={user}",)))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(mounting, "detach", busy)
    monkeypatch.setattr(mounting, "_state", lambda path: "alive")
    monkeypatch.setattr(mounting, "holders", lambda path: Holders(names, all_seen, 2.0))
    with pytest.raises(MountError) as refused:
        mounting.unmount("/m")
    assert str(refused.value) == f"/m is in use {says}"


def test_a_search_that_ran_out_of_time_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process table that does not come to its end, as a machine under heavy load has."""
    go_on = threading.Event()

    def endless() -> Iterator[psutil.Process]:
        yield psutil.Process()
        assert go_on.wait(20)

    (tmp_path / "file").touch()
    with open(tmp_path / "file", "rb"):
        assert holders(str(tmp_path), seconds=60).all_seen
        monkeypatch.setattr(psutil, "process_iter", endless)
        found = holders(str(tmp_path), seconds=0.5)
        go_on.set()
    assert found == Holders(("this process",), all_seen=False, seconds=0.5)


def test_anothers_mount_is_not_unmounted(monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, Mount("/mnt/a", FSTYPE, "s", "0:1", ("user_id=1001",)))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MountError, match="/mnt/a belongs to user 1001"):
        mounting.unmount("/mnt/a")
