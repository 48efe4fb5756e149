"""POSIX on the real mount, call by call: what a read-only tree answers, and with which errno.

After pjdfstest (https://github.com/pjd/pjdfstest), whose tests mostly write. Of its directories:

- open, truncate, ftruncate, posix_fallocate, unlink, rmdir, rename, mkdir, mknod, mkfifo, link, symlink,
  chmod, chown, utimensat: their refusals are rows below. EROFS comes before most other errors; where the
  kernel looks for something else first, the row says so.
- ENAMETOOLONG, ENOTDIR, ENOENT, EISDIR, EEXIST, EXDEV, EBADF, EINVAL, EACCES, ELOOP (a link outside, the tree
  holds none): rows below.
- chflags, granular: of FreeBSD. ETXTBSY, EMLINK, ENOSPC, EDQUOT, sticky directories, what a successful change
  does to the times: nothing is ever changed here.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fusestripe.kernel.rights import has_sys_admin
from tests.support.mounted import Mounted, mounted, until
from tests.support.mounted_store import KIB, MountedStore, content
from tests.support.other_user import as_other
from tests.support.proxy import Proxy
from tests.support.seaweed import SeaweedServer

SIZE = 200 * KIB + 77
DATA = content(SIZE)
FILES = {"file": DATA, "empty": b"", "dir/inside": b"inside", "dir/below/deep": b"deep"}

AT_FDCWD = -100
libc = ctypes.CDLL(None, use_errno=True)


class No(int):
    """Refused, with that errno."""

    def __repr__(self) -> str:
        return errno.errorcode.get(self, str(int(self)))


def answer(call: Callable[[], object]) -> object:
    """What ``call`` gives, or the errno it fails with."""
    try:
        return call()
    except OSError as error:
        return No(error.errno or 0)


def differing(rows: dict[str, tuple[Callable[[], object], object]]) -> dict[str, tuple[object, object]]:
    """Of each row whose answer is another than it says: the answer, and what it says."""
    answers = {what: (answer(call), expected) for what, (call, expected) in rows.items()}
    return {what: both for what, both in answers.items() if both[0] != both[1]}


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def opens(path: Path, flags: int) -> Callable[[], object]:
    """Open and close: None."""

    def call() -> None:
        os.close(os.open(path, flags, 0o600))

    return call


def checked(result: int) -> int:
    """Of a call by ctypes."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def renameat2(source: Path, target: Path, flags: int) -> int:
    paths = os.fsencode(source), os.fsencode(target)
    return checked(libc.renameat2(AT_FDCWD, paths[0], AT_FDCWD, paths[1], flags))


def fallocate(descriptor: int, mode: int) -> int:
    return checked(libc.fallocate(descriptor, mode, ctypes.c_long(0), ctypes.c_long(100)))


@pytest.fixture(scope="module", params=["daemon", "kernel"])
def mount(
    request: pytest.FixtureRequest, s3_server: SeaweedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mounted]:
    """One for all that only look, read by either: in passthrough a handle goes other ways in the kernel."""
    by_kernel = request.param == "kernel"
    if by_kernel and not has_sys_admin():
        pytest.skip("passthrough takes CAP_SYS_ADMIN")
    directory = tmp_path_factory.mktemp("posix")
    with s3_server.bucket(f"posix-{request.param}") as bucket, Proxy(s3_server.endpoint) as proxy:
        store = MountedStore(s3_server, bucket, proxy, directory)
        for key, data in FILES.items():
            store.put(key, data)
        with store.mount(passthrough=by_kernel) as mount:
            assert (mount.path / "file").read_bytes() == DATA
            until(lambda: mount.status()["open_files"] == 0)
            with opened(mount.path / "file"):
                assert mount.status()["passed_through"] == int(by_kernel)
            yield mount


def test_open(mount: Mounted, tmp_path: Path) -> None:
    file, directory, missing = mount.path / "file", mount.path / "dir", mount.path / "missing"
    link, loop = tmp_path / "link", tmp_path / "loop"
    link.symlink_to(file)
    loop.symlink_to(loop)
    assert not differing(
        {
            "read": (opens(file, os.O_RDONLY), None),
            "write": (opens(file, os.O_WRONLY), No(errno.EROFS)),
            "update": (opens(file, os.O_RDWR), No(errno.EROFS)),
            "append": (opens(file, os.O_WRONLY | os.O_APPEND), No(errno.EROFS)),
            "append, to read": (opens(file, os.O_RDONLY | os.O_APPEND), None),
            "truncate, to read": (opens(file, os.O_RDONLY | os.O_TRUNC), No(errno.EROFS)),
            "create": (opens(missing, os.O_RDONLY | os.O_CREAT), No(errno.EROFS)),
            "create and write": (opens(missing, os.O_WRONLY | os.O_CREAT), No(errno.EROFS)),
            "create what is there": (opens(file, os.O_RDONLY | os.O_CREAT), None),
            "create alone what is there": (opens(file, os.O_CREAT | os.O_EXCL), No(errno.EEXIST)),
            "create alone": (opens(missing, os.O_CREAT | os.O_EXCL), No(errno.EROFS)),
            "create a directory": (opens(directory, os.O_CREAT), No(errno.EISDIR)),
            "without a name": (opens(directory, os.O_TMPFILE | os.O_RDWR), No(errno.EROFS)),
            "missing": (opens(missing, os.O_RDONLY), No(errno.ENOENT)),
            "missing, to write": (opens(missing, os.O_WRONLY), No(errno.ENOENT)),
            "directory": (opens(directory, os.O_RDONLY), None),
            "directory, as one": (opens(directory, os.O_RDONLY | os.O_DIRECTORY), None),
            "directory, to write": (opens(directory, os.O_WRONLY), No(errno.EISDIR)),
            "file, as a directory": (opens(file, os.O_RDONLY | os.O_DIRECTORY), No(errno.ENOTDIR)),
            "not through a link": (opens(file, os.O_RDONLY | os.O_NOFOLLOW), None),
            "by a link": (opens(link, os.O_RDONLY), None),
            "by a link that may not be": (opens(link, os.O_RDONLY | os.O_NOFOLLOW), No(errno.ELOOP)),
            "links in a ring": (opens(loop, os.O_RDONLY), No(errno.ELOOP)),
            "links in a ring, further": (opens(loop / "file", os.O_RDONLY), No(errno.ELOOP)),
            "without waiting": (opens(file, os.O_RDONLY | os.O_NONBLOCK), None),
            "in step with the disk": (opens(file, os.O_RDONLY | os.O_SYNC | os.O_DSYNC), None),
            "without its time": (opens(file, os.O_RDONLY | os.O_NOATIME), None),
            "past the page cache": (opens(file, os.O_RDONLY | os.O_DIRECT), None),
            "its path": (opens(file, os.O_PATH), None),
            "the path of a directory": (opens(directory, os.O_PATH | os.O_DIRECTORY), None),
        }
    )
    with opened(file, os.O_PATH) as path:
        assert os.fstat(path).st_size == SIZE
        assert answer(lambda: os.read(path, 1)) == No(errno.EBADF)
        with opened(Path(f"/proc/self/fd/{path}")) as again:
            assert os.pread(again, 100, 5) == DATA[5:105]


def test_changes(mount: Mounted, tmp_path: Path) -> None:
    """By path. ENOENT and EEXIST where the kernel looks for the name before it asks whether it may write."""
    file, directory, missing = mount.path / "file", mount.path / "dir", mount.path / "missing"
    outside = tmp_path / "outside"
    outside.write_bytes(b"outside")
    no, noreplace, exchange = No(errno.EROFS), 1, 2  # RENAME_* of linux/fs.h
    assert not differing(
        {
            "mkdir": (lambda: os.mkdir(missing), no),
            "mkdir of what is there": (lambda: os.mkdir(directory), No(errno.EEXIST)),
            "mkdir below a file": (lambda: os.mkdir(file / "new"), No(errno.ENOTDIR)),
            "mkdir below nothing": (lambda: os.mkdir(missing / "new"), No(errno.ENOENT)),
            "mknod of a file": (lambda: os.mknod(missing, stat.S_IFREG | 0o600), no),
            "mknod of a device": (lambda: os.mknod(missing, stat.S_IFCHR | 0o600, os.makedev(1, 3)), no),
            "mknod of what is there": (lambda: os.mknod(file), No(errno.EEXIST)),
            "mkfifo": (lambda: os.mkfifo(missing), no),
            "bind of a socket": (lambda: bind(missing), no),
            "symlink": (lambda: os.symlink("file", missing), no),
            "symlink over": (lambda: os.symlink("file", file), No(errno.EEXIST)),
            "link": (lambda: os.link(file, missing), no),
            "link over": (lambda: os.link(file, mount.path / "empty"), No(errno.EEXIST)),
            "link to outside": (lambda: os.link(file, tmp_path / "new"), No(errno.EXDEV)),
            "link from outside": (lambda: os.link(outside, missing), no),
            "unlink": (lambda: os.unlink(file), no),
            "unlink of nothing": (lambda: os.unlink(missing), no),
            "unlink of a directory": (lambda: os.unlink(directory), no),
            "rmdir": (lambda: os.rmdir(directory), no),
            "rmdir of a file": (lambda: os.rmdir(file), no),
            "rename": (lambda: os.rename(file, missing), no),
            "rename over": (lambda: os.rename(file, mount.path / "empty"), no),
            "rename of nothing": (lambda: os.rename(missing, mount.path / "new"), no),
            "rename of a directory": (lambda: os.rename(directory, missing), no),
            "rename, not over": (lambda: renameat2(file, missing, noreplace), no),
            "exchange": (lambda: renameat2(file, mount.path / "empty", exchange), no),
            "rename to outside": (lambda: os.rename(file, tmp_path / "new"), No(errno.EXDEV)),
            "rename from outside": (lambda: os.rename(outside, missing), No(errno.EXDEV)),
            "chmod": (lambda: os.chmod(file, 0o600), no),
            "chmod of nothing": (lambda: os.chmod(missing, 0o600), No(errno.ENOENT)),
            "chown": (lambda: os.chown(file, 1, 1), no),
            "lchown": (lambda: os.lchown(file, 1, 1), no),
            "utimens": (lambda: os.utime(file, ns=(1, 1)), no),
            "utimens, now": (lambda: os.utime(directory), no),
            "truncate": (lambda: os.truncate(file, 0), no),
            "truncate of a directory": (lambda: os.truncate(directory, 0), No(errno.EISDIR)),
            "truncate of nothing": (lambda: os.truncate(missing, 0), No(errno.ENOENT)),
            "setxattr": (lambda: os.setxattr(file, "user.a", b"b"), no),
            "removexattr": (lambda: os.removexattr(file, "user.a"), no),
            "getxattr": (lambda: os.getxattr(file, "user.a"), No(errno.EOPNOTSUPP)),
            "getxattr of rights": (lambda: os.getxattr(file, "security.capability"), No(errno.EOPNOTSUPP)),
            "listxattr": (lambda: os.listxattr(file), No(errno.EOPNOTSUPP)),
        }
    )
    assert sorted(str(path.relative_to(mount.path)) for path in mount.path.rglob("*") if path.is_file()) == (
        sorted(FILES)
    )
    assert outside.read_bytes() == b"outside"


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def test_changes_by_a_descriptor(mount: Mounted) -> None:
    no = No(errno.EROFS)
    with opened(mount.path / "file") as file, opened(mount.path / "dir") as directory:
        assert not differing(
            {
                "write": (lambda: os.write(file, b"x"), No(errno.EBADF)),
                "pwrite": (lambda: os.pwrite(file, b"x", 0), No(errno.EBADF)),
                "ftruncate": (lambda: os.ftruncate(file, 0), No(errno.EINVAL)),
                "ftruncate of a directory": (lambda: os.ftruncate(directory, 0), No(errno.EINVAL)),
                "fallocate": (lambda: fallocate(file, 0), No(errno.EBADF)),
                "punch a hole": (lambda: fallocate(file, 3), No(errno.EBADF)),
                "posix_fallocate": (lambda: os.posix_fallocate(file, 0, 100), No(errno.EBADF)),
                "fchmod": (lambda: os.fchmod(file, 0o600), no),
                "fchown": (lambda: os.fchown(file, 1, 1), no),
                "futimens": (lambda: os.utime(file), no),
                "fsetxattr": (lambda: os.setxattr(file, "user.a", b"b"), no),
                "mkdirat": (lambda: os.mkdir("new", dir_fd=directory), no),
                "unlinkat": (lambda: os.unlink("inside", dir_fd=directory), no),
                "fsync": (lambda: os.fsync(file), None),
                "fdatasync": (lambda: os.fdatasync(file), None),
                "fsync of a directory": (lambda: os.fsync(directory), None),
                "a shared map to write": (lambda: mmap.mmap(file, 0), No(errno.EACCES)),
            }
        )
        assert os.pread(file, SIZE, 0) == DATA


def test_a_private_map_is_written_to_in_private(mount: Mounted) -> None:
    with opened(mount.path / "file") as file:
        with mmap.mmap(file, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as view:
            view[:5] = b"mine!"
            assert view[:] == b"mine!" + DATA[5:]
        assert os.pread(file, SIZE, 0) == DATA


def test_reading_and_seeking(mount: Mounted) -> None:
    with opened(mount.path / "file") as file, opened(mount.path / "dir") as directory:
        assert not differing(
            {
                "nothing": (lambda: os.pread(file, 0, 0), b""),
                "at the end": (lambda: os.pread(file, 10, SIZE), b""),
                "across the end": (lambda: os.pread(file, 10, SIZE - 3), DATA[-3:]),
                "far past the end": (lambda: os.pread(file, 10, 1 << 60), b""),
                "before the beginning": (lambda: os.pread(file, 10, -1), No(errno.EINVAL)),
                "in pieces": (lambda: pieces(file), DATA[10:40]),
                "of a directory": (lambda: os.read(directory, 10), No(errno.EISDIR)),
                "pread of a directory": (lambda: os.pread(directory, 10, 0), No(errno.EISDIR)),
                "seek past the end": (lambda: os.lseek(file, SIZE + 1000, os.SEEK_SET), SIZE + 1000),
                "and read there": (lambda: os.read(file, 10), b""),
                "seek from the end": (lambda: os.lseek(file, -7, os.SEEK_END), SIZE - 7),
                "and read on": (lambda: os.read(file, 100), DATA[-7:]),
                "where that led": (lambda: os.lseek(file, 0, os.SEEK_CUR), SIZE),
                "seek before the beginning": (lambda: os.lseek(file, -1, os.SEEK_SET), No(errno.EINVAL)),
                "data at once": (lambda: os.lseek(file, 0, os.SEEK_DATA), 0),
                "data in the middle": (lambda: os.lseek(file, 70_000, os.SEEK_DATA), 70_000),
                "the hole is the end": (lambda: os.lseek(file, 70_000, os.SEEK_HOLE), SIZE),
                "data at the end": (lambda: os.lseek(file, SIZE, os.SEEK_DATA), No(errno.ENXIO)),
                "a hole past the end": (lambda: os.lseek(file, SIZE + 1, os.SEEK_HOLE), No(errno.ENXIO)),
                "ahead": (lambda: checked(libc.readahead(file, ctypes.c_long(0), 4096)), 0),
                "advice": (lambda: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED), None),
            }
        )
        assert [os.pread(file, length, SIZE - 10) for length in (9, 10, 11)] == [
            DATA[-10:-1],
            DATA[-10:],
            DATA[-10:],
        ]


def pieces(descriptor: int) -> bytes:
    buffers = [bytearray(10), bytearray(0), bytearray(20)]
    assert os.preadv(descriptor, buffers, 10) == 30
    return b"".join(buffers)


def test_copies_inside_the_kernel(mount: Mounted, tmp_path: Path) -> None:
    """copy_file_range(2) is for one filesystem: whoever gets EXDEV copies by itself, as cp does."""
    with (
        opened(mount.path / "file") as file,
        opened(tmp_path / "copy", os.O_RDWR | os.O_CREAT) as copy,
    ):
        ends = os.pipe()
        assert not differing(
            {
                "copy_file_range": (lambda: os.copy_file_range(file, copy, 100, 0, 0), No(errno.EXDEV)),
                "sendfile": (lambda: os.sendfile(copy, file, 50, 4096), 4096),
                "what it sent": (lambda: os.pread(copy, SIZE, 0), DATA[50 : 50 + 4096]),
                "splice": (lambda: checked(libc.splice(file, None, ends[1], None, 20, 0)), 20),
                "what it put into the pipe": (lambda: os.read(ends[0], 100), DATA[:20]),
            }
        )
        for end in ends:
            os.close(end)


def test_names_and_paths(mount: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    top, long, longer = mount.path, "x" * 255, "x" * 256
    no_directory, no_entry, too_long = No(errno.ENOTDIR), No(errno.ENOENT), No(errno.ENAMETOOLONG)
    far = f"{top}/" + "dir/../" * 600  # over PATH_MAX, 4096 bytes with the NUL (limits.h)
    assert not differing(
        {
            "below a file": (lambda: os.stat(top / "file/below"), no_directory),
            "a file with a slash": (lambda: os.stat(f"{top}/file/"), no_directory),
            "a file as where one is": (lambda: os.chdir(top / "file"), no_directory),
            "the list of a file": (lambda: os.listdir(top / "file"), no_directory),
            "missing": (lambda: os.stat(top / "missing"), no_entry),
            "below what is missing": (lambda: os.stat(top / "missing/below"), no_entry),
            "no path at all": (lambda: os.stat(""), no_entry),
            "a link where none is": (lambda: os.readlink(top / "file"), No(errno.EINVAL)),
            "as long as names are": (lambda: os.stat(top / long), no_entry),
            "a name too long": (lambda: os.stat(top / longer), too_long),
            "a name too long, to open": (opens(top / longer, os.O_RDONLY), too_long),
            "a name much too long": (lambda: os.stat(top / ("x" * 2000)), too_long),
            "a name too long in a directory": (lambda: os.stat(top / "dir" / longer / "x"), too_long),
            "a path too long": (lambda: os.stat(far + "file"), too_long),
            "slashes": (lambda: os.stat(f"{top}//dir///inside").st_size, 6),
            "dots": (lambda: os.stat(f"{top}/./dir/below/../inside").st_size, 6),
        }
    )
    monkeypatch.chdir(top / "dir/below")
    assert Path("../inside").read_bytes() == b"inside"
    assert os.getcwd() == str(top / "dir/below")
    with opened(top) as start:
        for _ in range(1000):  # a path may be longer than PATH_MAX if it is walked
            os.chdir("../below")
        os.fchdir(start)
    assert Path("dir/below/deep").read_bytes() == b"deep"


def test_rights(mount: Mounted) -> None:
    file, directory = mount.path / "file", mount.path / "dir"

    def may(path: Path, mode: int) -> int:
        return checked(libc.access(os.fsencode(path), mode))

    assert not differing(
        {
            "there": (lambda: may(file, os.F_OK), 0),
            "not there": (lambda: may(mount.path / "missing", os.F_OK), No(errno.ENOENT)),
            "read": (lambda: may(file, os.R_OK), 0),
            "write": (lambda: may(file, os.W_OK), No(errno.EROFS)),
            "write to a directory": (lambda: may(directory, os.W_OK), No(errno.EROFS)),
            "execute": (lambda: may(file, os.X_OK), No(errno.EACCES)),
            "search": (lambda: may(directory, os.X_OK | os.R_OK), 0),
            "run": (lambda: subprocess.run([file], check=True), No(errno.EACCES)),
        }
    )


def test_locks(mount: Mounted) -> None:
    """The kernel's own: they hold between processes of one machine, not between machines."""
    path = mount.path / "file"
    with opened(path) as one, opened(path) as other:
        share, alone, at_once = fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_NB
        assert not differing(
            {
                "flock, shared": (lambda: fcntl.flock(one, share), None),
                "flock, shared twice": (lambda: fcntl.flock(other, share | at_once), None),
                "flock, held by another": (lambda: fcntl.flock(one, alone | at_once), No(errno.EAGAIN)),
                "flock, let go": (lambda: fcntl.flock(other, fcntl.LOCK_UN), None),
                "flock, alone": (lambda: fcntl.flock(one, alone | at_once), None),
                "flock, against alone": (lambda: fcntl.flock(other, share | at_once), No(errno.EAGAIN)),
                "fcntl, to read": (lambda: fcntl.lockf(one, share | at_once, 100), None),
                "fcntl, to write": (lambda: fcntl.lockf(one, alone | at_once, 100), No(errno.EBADF)),
            }
        )


def test_attributes_stay(mount: Mounted) -> None:
    paths = [mount.path, *(mount.path / name for name in ("file", "empty", "dir", "dir/inside", "dir/below"))]
    before = [os.stat(path) for path in paths]
    assert len({found.st_ino for found in before}) == len(paths)
    assert {found.st_dev for found in before} == {os.stat(mount.path).st_dev}
    assert {found.st_nlink for found in before} == {1}
    assert {found.st_blksize for found in before} == {4096}
    assert [found.st_blocks for found in before[1:3]] == [-(-SIZE // 512), 0]
    for path in paths:
        with suppress(IsADirectoryError):
            path.read_bytes()
    assert [os.stat(path) for path in paths] == before  # the time of the last read stays too
    with opened(mount.path / "file") as file:
        assert os.fstat(file) == before[1]
        assert os.stat(f"/proc/self/fd/{file}") == before[1]
    listed = {entry.name: entry.inode() for entry in os.scandir(mount.path)}
    assert listed == {path.name: found.st_ino for path, found in zip(paths[1:4], before[1:4], strict=True)}


def test_the_filesystem_itself(mount: Mounted) -> None:
    with opened(mount.path / "file") as file:
        for found in (os.statvfs(mount.path), os.statvfs(mount.path / "dir"), os.fstatvfs(file)):
            assert found.f_flag & os.ST_RDONLY
            assert found.f_flag & os.ST_NOSUID
            assert found.f_flag & os.ST_NODEV
            assert (found.f_bsize, found.f_frsize, found.f_namemax) == (4096, 4096, 255)
            assert found.f_bavail <= found.f_bfree <= found.f_blocks
        assert checked(libc.syncfs(file)) == 0
    assert os.pathconf(mount.path, "PC_NAME_MAX") == 255


class _Entry(ctypes.Structure):
    """struct dirent (readdir(3))."""

    _fields_ = (
        ("inode", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("length", ctypes.c_ushort),
        ("kind", ctypes.c_ubyte),
        ("name", ctypes.c_char * 256),
    )


class Stream:
    """An open directory, as C sees it."""

    _open = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(("opendir", libc))
    _read = ctypes.CFUNCTYPE(ctypes.POINTER(_Entry), ctypes.c_void_p)(("readdir", libc))
    _tell = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(("telldir", libc))
    _seek = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_long)(("seekdir", libc))
    _rewind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(("rewinddir", libc))
    _close = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(("closedir", libc))

    def __init__(self, path: Path) -> None:
        self._stream = Stream._open(os.fsencode(path))
        assert self._stream

    def read(self, count: int) -> list[str]:
        """The next names, at most ``count``."""
        names: list[str] = []
        while len(names) < count and (entry := Stream._read(self._stream)):
            names.append(entry.contents.name.decode())
        return names

    def tell(self) -> int:
        return int(Stream._tell(self._stream))

    def seek(self, place: int) -> None:
        Stream._seek(self._stream, place)

    def rewind(self) -> None:
        Stream._rewind(self._stream)

    def close(self) -> None:
        assert Stream._close(self._stream) == 0


@contextmanager
def streamed(path: Path) -> Iterator[Stream]:
    stream = Stream(path)
    try:
        yield stream
    finally:
        stream.close()


def test_places_in_a_directory(store: MountedStore) -> None:
    names = {f"file-{number:04}" for number in range(700)}
    store.server.put_many(store.bucket, [(f"many/{name}", b"x") for name in names])
    with store.mount() as mount, streamed(mount.path / "many") as stream:
        first = stream.read(300)
        place = stream.tell()
        rest = stream.read(1000)
        assert {*first, *rest} == names
        assert len(first + rest) == len(names)
        assert stream.read(1) == []
        stream.seek(place)
        assert stream.read(1000) == rest
        stream.seek(place)
        assert stream.tell() == place
        assert stream.read(2) == rest[:2]
        stream.rewind()
        assert stream.read(1000) == first + rest


def test_a_directory_read_again_from_its_beginning_is_as_it_is_by_then(store: MountedStore) -> None:
    """As rewinddir(3) says: like one that is opened anew."""
    store.put("dir/old", b"x")
    with store.mount(ttl=0.2, negative_ttl=0.2) as mount, streamed(mount.path / "dir") as stream:
        assert stream.read(10) == ["old"]
        store.put("dir/new", b"x")
        until(lambda: os.listdir(mount.path / "dir") == ["new", "old"])
        stream.rewind()
        assert stream.read(10) == ["new", "old"]


def test_modes_of_the_origin_count(tmp_path: Path) -> None:
    """A file that may be run is run; what is another's is not read; no set-user-ID."""
    source = tmp_path / "source"
    source.mkdir()
    for name, mode in (("run", 0o755), ("plain", 0o644), ("secret", 0o600), ("suid", 0o4755)):
        (source / name).write_bytes(b"#!/bin/sh\necho it runs\n")
        (source / name).chmod(mode)
    (source / "closed").mkdir()
    (source / "closed").chmod(0o700)
    (source / "closed/file").write_bytes(b"x")
    is_root = os.geteuid() == 0
    with mounted(
        source.as_uri(), tmp_path / "mnt", cache_dir=tmp_path / "cache", allow_other=is_root
    ) as mount:
        assert subprocess.run([mount.path / "run"], capture_output=True, check=True).stdout == b"it runs\n"
        assert answer(lambda: subprocess.run([mount.path / "plain"], check=True)) == No(errno.EACCES)
        if is_root:
            assert open_as_other(mount.path, "plain") == 0
            assert open_as_other(mount.path, "secret") == errno.EACCES
            assert open_as_other(mount.path, "closed/file") == errno.EACCES
            assert open_as_other(mount.path, "missing") == errno.ENOENT


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_sees_nothing_unless_allowed(store: MountedStore) -> None:
    store.put("file", b"x")
    with store.mount() as mount:
        assert open_as_other(mount.path, "file") == errno.EACCES
        assert open_as_other(mount.path, "missing") == errno.EACCES


def open_as_other(directory: Path, name: str) -> int:
    """0, or the errno that another user gets who opens ``name`` in ``directory``, which is open to them."""
    found = as_other(directory, lambda: os.read(os.open(name, os.O_RDONLY), 10))
    return found if isinstance(found, int) else 0
