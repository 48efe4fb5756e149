"""What stands at a mountpoint, whether FUSE can mount there, and taking a mount away again."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from fusestripe.errors import MountError, reason_of
from fusestripe.kernel.device import check_device
from fusestripe.kernel.holders import holders
from fusestripe.kernel.rights import fusermount, has_sys_admin, user_name
from fusestripe.kernel.within import within

__all__ = [
    "FSTYPE",
    "Mount",
    "answers",
    "check_fuse",
    "detach",
    "elsewhere",
    "find_mount",
    "is_automount",
    "mount_above",
    "mount_holding",
    "mounts",
    "our_mounts",
    "parse_mountinfo",
    "prepare",
    "resolve",
    "unmount",
]

FSTYPE = "fuse.fusestripe"
"""As the kernel shows a mount of type "fuse" with subtype=fusestripe (mount.fuse3(8))."""

AUTOMOUNT = "autofs"

_FUSE_DEVICE = "/dev/fuse"
_FUSE_CONF = "/etc/fuse.conf"
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8  # umount2(2), include/linux/fs.h
_DEAD = (errno.ENOTCONN, errno.ECONNABORTED)
"""What every call on a FUSE mount gives once its daemon is gone (fs/fuse/dev.c)."""
_FUSERMOUNT_SECONDS = 20.0
_LINKS_MAXIMUM = 40  # as the kernel has it (path_resolution(7))
PATIENCE_SECONDS = 2.0
"""How long a look at a mount whose daemon may hang is waited for."""


class Mount(msgspec.Struct, frozen=True):
    """One line of /proc/self/mountinfo. ``device`` is "major:minor"."""

    mountpoint: str
    fstype: str
    source: str
    device: str
    options: tuple[str, ...]

    @property
    def owner(self) -> int | None:
        """The user that a FUSE mount belongs to; None for other filesystems."""
        ids = [option[8:] for option in self.options if option.startswith("user_id=")]
        return int(ids[0]) if ids and ids[0].isdigit() else None

    @property
    def owner_name(self) -> str:
        """The owner as people say it: "user ada (1000)"."""
        owner, name = self.owner, None if self.owner is None else user_name(self.owner)
        return f"user {owner}" if name in (None, str(owner)) else f"user {name} ({owner})"


def parse_mountinfo(text: str) -> Iterator[Mount]:
    """The mounts in ``text``, in order (proc_pid_mountinfo(5)): a later one hides those before it.

    Space, tab, newline and backslash in names come as octal escapes.
    """
    for line in text.split("\n"):  # splitlines would also split at what the kernel does not escape
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if separator and len(fields) >= 6 and len(rest) >= 2:
            options = (*fields[5].split(","), *(rest[2].split(",") if len(rest) > 2 else ()))
            yield Mount(_unescape(fields[4]), rest[0], _unescape(rest[1]), fields[2], options)


def mounts(process: int | Literal["self"] = "self") -> list[Mount]:
    """What is mounted in the mount namespace of ``process``. Raises OSError."""
    with open(f"/proc/{process}/mountinfo", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        return list(parse_mountinfo(file.read()))


def our_mounts() -> list[Mount]:
    """The fusestripe mounts of this user, each mountpoint once; for root those of all users."""
    user = os.geteuid()
    ours = [mount for mount in mounts() if mount.fstype == FSTYPE and user in (0, mount.owner)]
    return list({mount.mountpoint: mount for mount in ours}.values())


def find_mount(path: str) -> Mount | None:
    """What is mounted right at ``path`` (absolute, no links), or None."""
    return next((mount for mount in reversed(mounts()) if mount.mountpoint == path), None)


def is_hidden(path: str, process: int) -> bool:
    """Whether ``process`` sees a mount of ours at ``path`` in another mount namespace than this one."""
    try:
        if os.path.samestat(os.stat(f"/proc/{process}/ns/mnt"), os.stat("/proc/self/ns/mnt")):
            return False
        return any(mount.mountpoint == path and mount.fstype == FSTYPE for mount in mounts(process))
    except OSError:  # it is gone, or another user's
        return False


def elsewhere(mount: Mount, among: Sequence[Mount]) -> list[str]:
    """Where else ``among`` all mounts the tree of ``mount`` is: bind mounts of it, and overlays on it.

    It lives on there when ``mount`` is gone. Mounts in other namespaces are not seen from here.
    """
    same = [other.mountpoint for other in among if other.device == mount.device]
    with suppress(ValueError):  # it went meanwhile
        same.remove(mount.mountpoint)
    overlays = [
        other.mountpoint
        for other in among
        if other.fstype == "overlay"
        and any(_is_at_or_below(layer, mount.mountpoint) for layer in _layers(other))
    ]
    return [*same, *overlays]


def _layers(overlay: Mount) -> Iterator[str]:
    """The directories that ``overlay`` shows, as it names them (Documentation/filesystems/overlayfs.rst)."""
    for option in overlay.options:
        name, _, value = option.partition("=")
        if name in ("lowerdir", "lowerdir+", "datadir+", "upperdir"):
            yield from (_unescape(path) for path in value.split(":"))


def _is_at_or_below(path: str, directory: str) -> bool:
    return (path.rstrip("/") + "/").startswith(directory.rstrip("/") + "/")


def mount_above(path: str) -> tuple[Mount, str] | None:
    """The fusestripe mount that ``path`` is in, and the path in its tree ("" is its root).

    Nothing in the mount is touched: whoever looks into one whose origin is silent cannot even be killed.
    """
    found = mounts()
    at, rest, links = "/", os.path.join(os.getcwd(), path).split("/")[::-1], 0
    while links <= _LINKS_MAXIMUM:
        nearest = mount_holding(at, found)
        if nearest is not None and nearest.fstype == FSTYPE:
            whole = os.path.normpath(os.path.join(at, *reversed(rest)))
            if mount_holding(whole, found) is nearest:
                return nearest, whole[len(nearest.mountpoint) :].strip("/")
            at, rest, links = "/", whole.split("/")[::-1], links + 1  # by ".." out of it again
            continue
        target = _target(at)
        if target:
            links += 1
            rest.extend(target.split("/")[::-1])
            at = "/" if target.startswith("/") else os.path.dirname(at)
        elif rest:
            at = os.path.normpath(os.path.join(at, rest.pop()))
        else:
            break
    return None


def _target(path: str) -> str:
    """Where the link ``path`` points to; "" where it is none."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def mount_holding(path: str, among: Sequence[Mount]) -> Mount | None:
    """The mount that ``path`` (absolute, no links) is in; of those on one another the last, which is seen."""
    above = [mount for mount in among if _is_at_or_below(path, mount.mountpoint)]
    return max(reversed(above), key=lambda mount: len(mount.mountpoint), default=None)


def resolve(mountpoint: str) -> str:
    """``mountpoint`` absolute and without links; a mount there is not touched, for its daemon may hang."""
    path = os.path.abspath(mountpoint)
    return path if find_mount(path) is not None else os.path.realpath(path)


def prepare(mountpoint: str) -> str:
    """The resolved path of ``mountpoint``, ready to be mounted on; what a dead daemon left there is removed.

    Raises MountError where it is missing, no directory, not empty, in use, or not for this user to mount on.
    """
    path = resolve(mountpoint)
    mount = find_mount(path)
    if mount is not None and mount.fstype == AUTOMOUNT:
        return path  # a look into it would wait for the very mount that it has asked for
    if mount is not None:
        _clear_or_refuse(path, mount)
        return prepare(path)  # mounts lie on each other
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISDIR(mode):
            raise MountError(f"{path} is not a directory", mend="mount on an empty directory")
        with os.scandir(path) as entries:
            if next(entries, None) is not None:
                raise MountError(f"{path} is not empty", mend="mount on an empty directory")
    except OSError as error:
        raise _unreachable(path, error) from None
    if not has_sys_admin() and not os.access(path, os.W_OK, effective_ids=True):  # as fusermount3 asks
        raise MountError(
            f"this user may not write in {path}", mend=f"as root: chown {user_name(os.geteuid())} {path}"
        )
    return path


def is_automount(path: str) -> bool:
    """Whether ``path`` (absolute, no links) is an automount point with nothing mounted on it.

    While its automounter waits for the mount, only processes of its process group get past it, all others
    block (Documentation/filesystems/autofs.rst): systemd has mount(8) in its own group (x-systemd.automount).
    """
    mount = find_mount(path)
    return mount is not None and mount.fstype == AUTOMOUNT


def check_fuse(*, allow_other: bool) -> None:
    """Raise MountError unless this process may mount with FUSE."""
    check_device(_FUSE_DEVICE)
    if has_sys_admin():
        return
    if os.geteuid() == 0:
        raise MountError("root may not mount here: CAP_SYS_ADMIN is missing", mend="add --cap-add SYS_ADMIN")
    fusermount()
    if allow_other and not allows_other():
        raise MountError(
            f"allow_other is for root only: {_FUSE_CONF} does not say user_allow_other",
            mend=f"as root: echo user_allow_other >> {_FUSE_CONF}; or mount without allow_other",
        )


def allows_other() -> bool:
    """Whether /etc/fuse.conf lets users other than root mount with allow_other (fusermount3(1))."""
    try:
        with open(_FUSE_CONF, encoding="utf-8", errors="replace") as file:
            return any(line.split("#")[0].strip() == "user_allow_other" for line in file)
    except OSError:
        return False  # no file is the same as an empty one


def unmount(mountpoint: str, *, lazy: bool = False) -> bool:
    """Take the fusestripe mount at ``mountpoint`` (absolute, no links) away, a dead daemon's too.

    With ``lazy`` one that is in use is only taken out of the tree: who has files of it open or mapped goes on
    reading them, and its daemon ends when the last of them lets go. Whether it is gone altogether.

    Raises MountError where there is none, where it is another user's or another program's, and, unless
    ``lazy``, where it is in use: then by whom.
    """
    mount = find_mount(mountpoint)
    if mount is None:
        raise MountError(f"{mountpoint} is not mounted", mend="fusestripe status shows the mounts")
    if mount.fstype != FSTYPE:
        raise MountError(f"{mountpoint} is no fusestripe mount ({mount.fstype})", mend=f"umount {mountpoint}")
    if os.geteuid() not in (0, mount.owner):
        raise MountError(f"{mountpoint} belongs to {mount.owner_name}", mend="unmount it as they, or as root")
    try:
        detach(mountpoint, lazy=False)
    except Busy:
        if not lazy:
            return _unmount_busy(mountpoint)
        detach(mountpoint, lazy=True)
        return False
    return True


class Busy(Exception):
    """EBUSY: a file or a working directory in the mount is in use."""


def _unmount_busy(mountpoint: str) -> bool:
    """What cannot be unmounted as it is: a dead mount goes lazily, of a live one the holders are named.

    Whether it is gone altogether.
    """
    state = _state(mountpoint)
    if state == "dead":
        detach(mountpoint, lazy=True)
        return False
    if state == "silent":
        raise MountError(
            f"{mountpoint} is in use and its daemon does not answer",
            mend="kill the daemon, then unmount again",
        )
    found = holders(mountpoint)
    if not found.names:
        with suppress(Busy):
            detach(mountpoint, lazy=False)  # the holder may have left before it was searched for
            return True
    raise MountError(found.told(mountpoint), mend=found.mend(mountpoint))


def detach(mountpoint: str, *, lazy: bool) -> None:
    """Take what is mounted at ``mountpoint`` away, whatever it is; ``lazy``: even while it is in use.

    Raises MountError, and Busy where it is in use.
    """
    if not has_sys_admin():
        _fusermount(mountpoint, lazy=lazy)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)
    if libc.umount2(os.fsencode(mountpoint), flags) == 0:
        return
    number = ctypes.get_errno()
    if number == errno.EBUSY:
        raise Busy
    raise MountError(f"{mountpoint} cannot be unmounted: {os.strerror(number).lower()}")


def _fusermount(mountpoint: str, *, lazy: bool) -> None:
    command: Sequence[str] = [fusermount(), "-u", *(["-z"] if lazy else []), "--", mountpoint]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
            timeout=_FUSERMOUNT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MountError(f"{mountpoint} cannot be unmounted: fusermount3 does not end") from None
    if done.returncode == 0:
        return
    if "busy" in done.stderr.lower():
        raise Busy
    raise MountError(f"{mountpoint} cannot be unmounted: {' '.join(done.stderr.split())}")


def answers(mountpoint: str) -> bool:
    """Whether the tree mounted at ``mountpoint`` answers; looked at for ``PATIENCE_SECONDS`` at most."""
    return _state(mountpoint) == "alive"


def is_dead(mountpoint: str) -> bool:
    """Whether nobody serves the tree mounted at ``mountpoint`` any more; looked at as ``answers`` does."""
    return _state(mountpoint) == "dead"


def _state(path: str) -> Literal["alive", "dead", "silent"]:
    """Of the mount at ``path``: its daemon answers, is gone, or is there and does not answer."""
    states: list[Literal["alive", "dead"]] = []

    def look() -> None:
        try:
            # Never answered from the kernel's cache, as stat(2) of a dead mount's root may be.
            os.statvfs(path)
        except OSError as error:
            states.append("dead" if error.errno in _DEAD else "alive")
        else:
            states.append("alive")

    within(PATIENCE_SECONDS, look)
    return states[0] if states else "silent"


def _clear_or_refuse(path: str, mount: Mount) -> None:
    """Take ``mount`` off ``path`` if it is fusestripe's and its daemon is dead."""
    state = _state(path)
    said = f"{mount.fstype} from {mount.source}"
    if state == "dead" and mount.fstype == FSTYPE:
        unmount(path)
    elif state == "dead":
        raise MountError(f"{path} is a dead mount of another program ({said})", mend=f"umount -l {path}")
    elif mount.fstype == FSTYPE:
        silent = ", and its daemon does not answer" if state == "silent" else ""
        raise MountError(f"{path} is already mounted ({said}){silent}", mend=f"fusestripe unmount {path}")
    else:
        raise MountError(f"{path} is already mounted ({said})", mend="take another directory")


def _unreachable(path: str, error: OSError) -> MountError:
    if error.errno == errno.ENOENT:
        return MountError(f"{path} does not exist", mend=f"mkdir -p {path}")
    if error.errno == errno.ENOTDIR:
        return MountError(f"{path} is not a directory", mend="mount on an empty directory")
    if error.errno in _DEAD:
        points = (mount.mountpoint.rstrip("/") for mount in mounts())
        parent = max((point for point in points if path.startswith(point + "/")), key=len)
        return MountError(f"{path} lies in {parent}, whose daemon is dead", mend=f"umount -l {parent}")
    what = reason_of(error)
    return MountError(f"{path} cannot be reached: {what}", mend="mount on a directory of your own")


def _unescape(name: str) -> str:
    raw = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8) & 255]), os.fsencode(name))
    return os.fsdecode(raw)
