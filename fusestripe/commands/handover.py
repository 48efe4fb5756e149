"""`fusestripe hand-over`."""

from __future__ import annotations

import logging
import os
import signal
from types import FrameType

import click

from fusestripe.errors import MountError
from fusestripe.handover import Giver, Owner, serve
from fusestripe.kernel import mounting
from fusestripe.kernel.rights import has_sys_admin
from fusestripe.stderr import line_handler

__all__ = ["hand_over"]

ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@click.command(
    "hand-over", epilog="Example: fusestripe hand-over /mnt/ckpt /run/handover/socket --user 10001"
)
@click.argument("mountpoint")
@click.argument("socket")
@click.option("--user", type=int, required=True, help="Who may take the mount, by number.")
@click.option("--group", type=int, help="The group that is shown as its owner. (default: as --user)")
def hand_over(mountpoint: str, socket: str, user: int, group: int | None) -> None:
    """Mount MOUNTPOINT for a process that may not: `fusestripe mount SOURCE MOUNTPOINT --device SOCKET`.

    Needs CAP_SYS_ADMIN. Stays, and keeps the mount while that process is started anew; takes it away at the
    end.
    """
    if not has_sys_admin():
        raise MountError(
            "this process may not mount: CAP_SYS_ADMIN is missing",
            mend="run it as root; in Kubernetes in a privileged container",
        )
    logging.basicConfig(handlers=[line_handler()])
    path, owner = _free(mountpoint, user), Owner(user, user if group is None else group)
    giver = Giver(path, owner)
    with open(_ends(), "rb", buffering=0) as end:
        try:
            serve(giver, os.path.abspath(socket), owner, end.fileno())
        finally:
            giver.close()


def _free(mountpoint: str, user: int) -> str:
    """The resolved path, without what a giver before this one has left there. Raises MountError."""
    path = mounting.resolve(mountpoint)
    mount = mounting.find_mount(path)
    if mount is not None and mount.fstype == mounting.FSTYPE and mount.owner == user:
        mounting.detach(path, lazy=True)
    return mounting.prepare(path)


def _ends() -> int:
    """The end of a pipe that is readable once this process is told to end."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)

    def note(_number: int, _frame: FrameType | None) -> None:
        os.write(write_end, b".")

    for number in ENDS:
        signal.signal(number, note)
    return read_end
