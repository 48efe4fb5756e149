"""A machine that lacks something: in a mount namespace of its own, gone with the program that runs there.

/srv is a directory of the test's, which other users reach: the Python, the packages and the code under test
are there. All may use FUSE. Nothing of the real machine is changed. For root alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["USER", "run_lacking"]

USER = 60_003
CODE = Path(__file__).parents[2]
_SECONDS = 60
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

_ENTER = """
set -e
mount --bind "$1" /srv
mount --bind -o ro "$2" /srv/python
mount --bind -o ro "$3" /srv/site
mount --bind -o ro "$4" /srv/code
shift 4
cd /srv
mount -t tmpfs -o mode=0755 devices devices
mknod -m 0666 devices/fuse c 10 229
mount --bind devices/fuse /dev/fuse
bare_devices() {
    umount /dev/fuse; mount -t tmpfs -o mode=0755 devices /dev
    mknod -m 0666 /dev/null c 1 3
    mknod -m 0666 /dev/zero c 1 5
    mknod -m 0444 /dev/urandom c 1 9
}
"""
_LEAVE = '\nexec "$@"\n'

_MASK = """
import sys

class Lacking:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Lacking)
"""
"""The imports of each fail then, as where it is not installed."""


def run_lacking(
    directory: Path,
    *arguments: str,
    lack: str = "",
    without: Sequence[str] = (),
    user: int = 0,
    through: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """`fusestripe ARGUMENTS` where ``lack``, lines of sh run by root in /srv, has taken something away.

    ``directory`` is /srv. ``without``: Python packages that are not there. ``through``: a command that runs
    the program with fewer rights.
    """
    for name in ("python", "site", "code", "devices", "mask", "home", "bin", "cache"):
        (directory / name).mkdir(exist_ok=True)
    directory.chmod(0o755)
    for name in ("home", "cache"):
        (directory / name).chmod(0o700)
        os.chown(directory / name, user, user)
    (directory / "mask" / "sitecustomize.py").write_text(_MASK.format(names=tuple(without)))
    become = [f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    base = [str(directory), sys.base_prefix, sysconfig.get_path("purelib"), str(CODE)]
    enter = [
        "unshare",
        "--mount",
        "--propagation=private",
        "sh",
        "-c",
        f"{_ENTER}{lack}{_LEAVE}",
        "sh",
        *base,
    ]
    said = dict(environment or {})
    python = f"/srv/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    program = ["/usr/bin/env", f"PATH={said.pop('PATH', _PATH)}", python]
    return subprocess.run(
        [*enter, *through, "setpriv", *become, "--", *program, "-m", "fusestripe", *arguments],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
        env={
            "PATH": _PATH,
            "HOME": "/srv/home",
            "LC_ALL": "C.UTF-8",
            "LD_LIBRARY_PATH": "/srv/python/lib",
            "PYTHONPATH": "/srv/mask:/srv/code:/srv/site",
            "PYTHONDONTWRITEBYTECODE": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_GCE_CHECK": "true",
            **said,
        },
    )
