"""The kernel, FUSE and what else the machine gives to a mount."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator

import psutil

from fusestripe.config import Settings
from fusestripe.config.machine import OWN_MEMORY, Machine
from fusestripe.doctor.finding import Finding, Level
from fusestripe.errors import MountError
from fusestripe.kernel import mounting
from fusestripe.kernel.rights import has_sys_admin
from fusestripe.kernel.support import PASSTHROUGH_KERNEL, channel_refusal, passthrough_refusal, version_of
from fusestripe.packages import install_command
from fusestripe.units import MIB, format_size

__all__ = [
    "channel",
    "fuse_device",
    "fusermount",
    "keeper",
    "kernel",
    "libraries",
    "memory",
    "mount_helper",
    "passthrough",
    "read_ahead",
    "user_allow_other",
]

OLDEST_KERNEL = (5, 4)
"""The oldest kernel of a distribution that is still maintained with Python 3.10 on it."""
LITTLE_MEMORY = 256 * MIB
"""A budget below this has room for few stripes of the usual size, and so for few requests at once."""
HELPER = "mount.fusestripe"


def kernel(release: str) -> Finding:
    """Whether the kernel is new enough at all."""
    if version_of(release) < OLDEST_KERNEL:
        return Finding("kernel", "warning", f"Linux {release} is too old to be tested", "upgrade the kernel")
    return Finding("kernel", "ok", f"Linux {release}")


def fuse_device(settings: Settings) -> Finding:
    """Whether this user may mount with these settings."""
    try:
        mounting.check_fuse(allow_other=settings.mount.allow_other)
    except MountError as error:
        return Finding("fuse", "fail", error.message, error.mend)
    return Finding("fuse", "ok", "/dev/fuse can be opened")


def libraries() -> Iterator[Finding]:
    """pyfuse3 and the libfuse below it, which are loaded for it."""
    try:
        importlib.import_module("pyfuse3")
    except ModuleNotFoundError:
        yield Finding("pyfuse3", "fail", "not installed", f"{sys.executable} -m pip install pyfuse3")
        return
    except ImportError as error:  # it is there, and what it needs is not
        needs_libfuse = "libfuse3" in str(error)
        again = f"{sys.executable} -m pip install --force-reinstall --no-cache-dir pyfuse3"
        mend = f"as root: {install_command('fuse3')}" if needs_libfuse else again
        yield Finding("pyfuse3", "fail", f"cannot be loaded: {' '.join(str(error).split())}", mend)
        return
    yield Finding("pyfuse3", "ok", f"version {importlib.metadata.version('pyfuse3')}")
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        loaded = re.search(r" (/\S*/libfuse3[^/\s]*)$", file.read(), re.MULTILINE)
    if loaded is None:
        yield Finding("libfuse", "ok", "in pyfuse3")
        return
    libfuse = ctypes.CDLL(loaded[1])
    libfuse.fuse_pkgversion.restype = ctypes.c_char_p
    yield Finding("libfuse", "ok", f"version {libfuse.fuse_pkgversion().decode()}")


def fusermount() -> Finding:
    """fusermount3, without which only root mounts."""
    needed: Level = "warning" if has_sys_admin() else "fail"
    path = shutil.which("fusermount3")
    if path is None:
        mend = f"as root: {install_command('fuse3')}"
        return Finding("fusermount3", needed, "missing: only root can mount", mend)
    if not os.stat(path).st_mode & stat.S_ISUID:
        return Finding("fusermount3", needed, f"{path} is not setuid root", f"as root: chmod u+s {path}")
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=10)
    return Finding("fusermount3", "ok", f"{path}, {done.stdout.strip()}")


def channel(release: str, settings: Settings) -> Finding:
    """Whether reads are answered past pyfuse3, by threads that hold no lock of Python's while they copy."""
    why_not = channel_refusal(release, wanted=settings.mount.channel)
    if why_not:
        text = f"off, reads cost more processor time: {why_not}"
        mend = "upgrade the kernel to Linux 6.5 or newer" if settings.mount.channel else "-o channel=yes"
        return Finding("channel", "warning", text, mend)
    return Finding("channel", "ok", "reads are answered by threads of our own")


def passthrough(release: str, has_sys_admin: bool, settings: Settings) -> Finding:
    """Whether the kernel can read complete files from the cache itself."""
    why_not = passthrough_refusal(release, has_sys_admin, wanted=settings.mount.passthrough)
    if why_not:
        text = f"off, whole files are read through the daemon: {why_not}"
        if not settings.mount.passthrough:
            mend = "-o passthrough=yes"
        elif version_of(release) < PASSTHROUGH_KERNEL:
            mend = "upgrade the kernel to Linux 6.9 or newer"
        else:
            mend = "in a container with --cap-add SYS_ADMIN"
        return Finding("passthrough", "warning", text, mend)
    return Finding("passthrough", "ok", "the kernel reads whole files from the cache itself")


def keeper(release: str, settings: Settings) -> Finding:
    """Whether a mount outlives its daemon, and readers notice nothing of it but a pause."""
    what = "keeper"
    if not settings.mount.keeper:
        return Finding(what, "warning", "off: a mount ends with its daemon", "-o keeper=yes")
    if channel_refusal(release, wanted=settings.mount.channel):
        text = "a mount ends with its daemon: that it goes on takes the channel"
        return Finding(what, "warning", text, channel(release, settings).mend)
    return Finding(what, "ok", "a mount outlives its daemon")


def read_ahead(directory: str) -> Finding:
    """Whether the mount's read-ahead can be raised from the kernel's 128 KiB."""
    what = "read-ahead"
    if os.geteuid() != 0:
        return Finding(what, "warning", "stays at the kernel's 128 KiB", "mount as root")
    read_only = not os.path.isdir(directory) or bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
    if read_only:
        return Finding(what, "warning", f"{directory} cannot be written", "mount -o remount,rw /sys")
    return Finding(what, "ok", "can be raised")


def user_allow_other(settings: Settings) -> Finding:
    """Whether users other than root may let others into their mounts."""
    if mounting.allows_other():
        return Finding("allow_other", "ok", "may be used")
    if os.geteuid() == 0:
        return Finding("allow_other", "ok", "may be used by root")
    level: Level = "fail" if settings.mount.allow_other else "warning"
    text = "may not be used: /etc/fuse.conf does not say user_allow_other"
    mend = "if other users shall read, as root: echo user_allow_other >> /etc/fuse.conf"
    return Finding("allow_other", level, text, mend)


def mount_helper(place: str, prefix: str) -> Finding:
    """Whether mount(8), and with it /etc/fstab, knows the type fusestripe.

    It looks for helpers in ``place``; the installation has its own below ``prefix``.
    """
    path, ours = os.path.join(place, HELPER), os.path.join(prefix, "sbin", HELPER)
    if os.access(path, os.X_OK):
        return Finding(HELPER, "ok", f"{path}: mount -t fusestripe and /etc/fstab can be used")
    text = f"not in {place}: mount -t fusestripe and /etc/fstab do not know it"
    mend = f"ln -sf {ours} {path}"
    if not os.access(ours, os.X_OK):  # run from a source tree
        mend = f"{sys.executable} -m pip install --force-reinstall fusestripe && {mend}"
    return Finding(HELPER, "warning", text, f"as root: {mend}")


def memory(budget: int, place: Machine) -> Finding:
    """Whether ``budget`` bytes of memory are there to be had now, also in the control groups of ``place``."""
    if place.limit is not None:
        said = f"{format_size(place.limit.size)} are all that {place.limit.said_by} allows"
        left = max(0, place.limit.size - OWN_MEMORY)
        if left < LITTLE_MEMORY:
            text = f"{said}, which leaves {format_size(left)} to the budget of a mount"
            enough = format_size(OWN_MEMORY + LITTLE_MEMORY)
            mend = f"raise the limit to {enough} or more: MemoryMax= of a unit, limits.memory of a container"
            return Finding("memory", "warning", text, mend)
        budget = min(budget, left)
    there = psutil.virtual_memory().available
    if there < budget:
        text = f"{format_size(there)} available, less than the {format_size(budget)} of a mount's budget"
        mend = f"--memory {format_size(max(there // 2, MIB)).replace(' ', '')}, or end other programs"
        return Finding("memory", "warning", text, mend)
    text = f"{format_size(there)} available, of which {format_size(budget)} are the budget of a mount"
    return Finding("memory", "ok", text)
