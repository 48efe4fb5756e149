"""A machine of its own, as far as mounts and users go: namespaces where /sbin/mount.fusestripe is installed.

There ``directory`` is /srv, so that other users reach it and paths are short; /etc has two users more, ada
and bob, with a home each, and an fstab and a fuse.conf of the test's; all may use FUSE, and read the Python
and the code under test. The namespace of processes ends with its first, and with that all that runs and is
mounted there, however the tests end. For root alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from fusestripe.kernel.mounting import FSTYPE, Mount, parse_mountinfo
from tests.support.mounted import until
from tests.support.server_process import ServerProcess
from tests.support.started import Started

__all__ = ["ADA", "BOB", "CODE", "HOMES", "Machine", "python_program"]

CODE = Path(__file__).parents[2]
ADA, BOB = 60_001, 60_002
HOMES = {ADA: "home/ada", BOB: "home/bob"}

# Overlays, so that no file of the real /etc and /sbin need be there, and none is changed.
_ENTER = """
set -e
awk '$0 ~ / - fuse/ { print $5 }' /proc/self/mountinfo | while read -r path; do umount -l "$path"; done
mount --bind "$1" /srv
mount --bind -o ro "$2" /srv/python
mount --bind -o ro "$3" /srv/site
mount --bind -o ro "$4" /srv/code
mount -t tmpfs -o mode=0755 devices /srv/devices
mknod -m 0666 /srv/devices/fuse c 10 229
mount --bind /srv/devices/fuse /dev/fuse
mount -t overlay -o lowerdir=/srv/over/etc:/etc overlay /etc
mount -t overlay -o lowerdir=/srv/over/sbin:/sbin overlay /sbin
mount -t tmpfs -o mode=0755 run /run
for user in $5; do
    mkdir -p "/run/user/$user"
    chmod 0700 "/run/user/$user"
    chown "$user:$user" "/run/user/$user"
done
touch /srv/ready
sleep infinity &
wait
"""

_PROGRAM = """#!/bin/sh
export PYTHONPATH=/srv/code:/srv/site PYTHONDONTWRITEBYTECODE=1 LD_LIBRARY_PATH=/srv/python/lib
exec /srv/python/bin/python{version} {arguments}
"""
_MODULES = {"fusestripe": "fusestripe", "mount.fusestripe": "fusestripe.mount_helper"}


def python_program(arguments: str) -> str:
    """A program of the machine, in sh: Python with the code under test, and ``arguments`` as sh has them."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return _PROGRAM.format(version=version, arguments=arguments)


class Machine(Started):
    """Where mount(8), umount(8) and findmnt(8) are the system's own, and ``run`` is a person's terminal."""

    _first: int | None = None  # process of its namespaces, as it is known outside of them

    def _start(self) -> None:
        self._furnish()
        base = [str(self.directory), sys.base_prefix, sysconfig.get_path("purelib"), str(CODE)]
        base.append(" ".join(map(str, HOMES)))
        unshare = ["unshare", "--mount", "--propagation=private", "--pid", "--mount-proc", "--kill-child"]
        # unshare blocks SIGTERM while it waits for its child.
        enter = ["setpriv", "--pdeathsig", "KILL", "--", *unshare, "sh", "-c", _ENTER, "sh", *base]
        self._stack.callback(self._await_last)
        holder = ServerProcess("namespace", enter, self.directory / "log")
        self._stack.callback(holder.close)
        holder.await_ready((self.directory / "ready").exists)
        (first,) = psutil.Process(holder.pid).children()
        self._first = first.pid
        self._stack.callback(self.kill)

    def kill(self) -> None:
        """Have the kernel end all that runs on it, at once."""
        with suppress(psutil.NoSuchProcess):
            psutil.Process(self.first).kill()

    def _await_last(self) -> None:
        if self._first is not None:
            first = self._first
            until(lambda: not psutil.pid_exists(first))

    def _furnish(self) -> None:
        """All that is in /srv before the namespace is."""
        names = (
            "python",
            "site",
            "code",
            "devices",
            "over/etc",
            "over/sbin",
            "inst/bin",
            "inst/sbin",
            "mnt",
            "tmp",
        )
        for name in (*names, *HOMES.values()):
            (self.directory / name).mkdir(parents=True)
        self.directory.chmod(0o755)
        (self.directory / "tmp").chmod(0o1777)
        for uid, home in HOMES.items():
            os.chown(self.directory / home, uid, uid)
            (self.directory / home).chmod(0o700)
        for name, line in {"passwd": "{0}:x:{1}:{1}::/srv/{2}:/bin/sh\n", "group": "{0}:x:{1}:\n"}.items():
            users = "".join(line.format(Path(home).name, uid, home) for uid, home in HOMES.items())
            (self.directory / "over/etc" / name).write_text(Path(f"/etc/{name}").read_text() + users)
        for name in ("fstab", "fuse.conf"):  # what lies below an overlay must not change while it stands
            (self.directory / name).touch()
            (self.directory / "over/etc" / name).symlink_to(f"/srv/{name}")
        for name, module in _MODULES.items():
            program = self.directory / "inst/bin" / name
            program.write_text(python_program(f'-m {module} "$@"'))
            program.chmod(0o755)
        helper = self.directory / "inst/sbin/mount.fusestripe"
        helper.write_bytes((CODE / "mount/mount.fusestripe").read_bytes())
        helper.chmod(0o755)
        (self.directory / "over/sbin/mount.fusestripe").symlink_to("/srv/inst/sbin/mount.fusestripe")
        (self.directory / "over/sbin/mount.fuse.fusestripe").symlink_to("mount.fusestripe")

    @property
    def first(self) -> int:
        """The process that its namespaces end with, by its number outside of them."""
        assert self._first is not None
        return self._first

    def run(
        self,
        *command: str,
        user: int = 0,
        check: bool = True,
        environment: Mapping[str, str] | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """``command`` as that user, at / and with no more environment than a login gives."""
        home = f"/srv/{HOMES[user]}" if user else "/root"
        path = "/srv/inst/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        done = subprocess.run(
            self.command(*command, user=user),
            capture_output=True,
            text=True,
            timeout=timeout,
            env={"PATH": path, "HOME": home, "LC_ALL": "C.UTF-8", **(environment or {})},
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done

    def refused(self, *command: str, user: int = 0) -> tuple[int, str]:
        """The status other than 0 that ``command`` ends with, and what it says."""
        done = self.run(*command, user=user, check=False)
        assert done.returncode != 0, f"{command}: {done.stdout}{done.stderr}"
        return done.returncode, done.stderr

    def command(self, *command: str, user: int = 0) -> list[str]:
        """``command`` as it is run from outside."""
        become = [] if user == 0 else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        enter = ["nsenter", f"--target={self.first}", "--mount", "--pid", "--wd=/"]
        return [*enter, "--", *become, *command]

    def mountpoint(self, name: str, user: int = 0) -> str:
        """The new directory of that name in /srv/mnt, which belongs to ``user``."""
        path = self.directory / "mnt" / name
        path.mkdir()
        os.chown(path, user, user)
        return f"/srv/mnt/{name}"

    def umount_all(self) -> None:
        """Take every mount of fusestripe away, and wait until no daemon is left."""
        for path in reversed(list(self.mounts())):
            self.run("umount", "-l", path)
        until(lambda: self.daemons() == [])
        self.fstab()

    def fstab(self, *entries: str) -> None:
        """Have these entries in /etc/fstab, and no others."""
        (self.directory / "fstab").write_text("".join(f"{entry}\n" for entry in entries))

    def mounts(self) -> dict[str, Mount]:
        """The fusestripe mounts by their mountpoints."""
        text = Path(f"/proc/{self.first}/mountinfo").read_text()
        return {mount.mountpoint: mount for mount in parse_mountinfo(text) if mount.fstype == FSTYPE}

    def daemons(self) -> list[psutil.Process]:
        """The processes of fusestripe that go on behind a mount: their parent has ended."""
        found = []
        for process in psutil.Process(self.first).children(recursive=True):
            with suppress(psutil.Error):
                if process.cmdline()[1:2] == ["-m"]:
                    found.append(process)
        return found
