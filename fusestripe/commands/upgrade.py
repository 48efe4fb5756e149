"""`fusestripe upgrade`."""

from __future__ import annotations

import os
import time

import click
import msgspec

from fusestripe.commands.completing import mountpoints
from fusestripe.commands.options import json_option, print_json
from fusestripe.config import point_of
from fusestripe.errors import MountError
from fusestripe.kernel import mounting
from fusestripe.telemetry.client import daemon_pid, request
from fusestripe.telemetry.rundir import socket_of

__all__ = ["upgrade"]

# So long the next daemon may take until it answers (seconds).
PATIENCE = 60.0
LOOK = 0.02


class Upgraded(msgspec.Struct, frozen=True):
    """``pause``: seconds in which the tree did not answer."""

    mountpoint: str
    version: str
    pid: int
    pause: float


@click.command(epilog="Example: fusestripe upgrade /mnt/ckpt, after pip install --upgrade fusestripe")
@click.argument("mountpoint", shell_complete=mountpoints)
@json_option
def upgrade(mountpoint: str, as_json: bool) -> None:
    """Have another daemon serve MOUNTPOINT, of the version that is installed now.

    Who reads meanwhile waits for a moment; files stay open. The settings stay those of the mount. Where the
    new daemon cannot begin, the one before goes on. The TOML file that says the MOUNTPOINT does for it.
    """
    done = _hand_over(mounting.resolve(point_of(mountpoint)))
    if as_json:
        print_json(done)
    else:
        click.echo(
            f"{done.mountpoint} is served by fusestripe {done.version} (process {done.pid}), "
            f"after {done.pause:.2f} s"
        )


def _hand_over(path: str) -> Upgraded:
    mount = mounting.find_mount(path)
    if mount is None or mount.fstype != mounting.FSTYPE:
        raise MountError(f"{path} is no fusestripe mount", mend="fusestripe status shows the mounts")
    socket = socket_of(mount)
    before = daemon_pid(socket)
    if before is None:
        raise MountError(f"the daemon of {path} does not answer", mend="fusestripe status names its log")
    next(request(socket, "upgrade"))  # which leaves now
    began = time.monotonic()
    while daemon_pid(socket) in (None, before):
        if time.monotonic() - began > PATIENCE:
            raise MountError(f"no other daemon serves {path} after {PATIENCE:g} s", mend="see its log")
        time.sleep(LOOK)
    os.statvfs(path)  # which only the daemon answers
    pause = time.monotonic() - began
    (status,) = request(socket, "status")
    return Upgraded(path, str(status["version"]), int(status["pid"]), round(pause, 3))
