"""`fusestripe mount` and `fusestripe unmount`."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

import click

from fusestripe.commands.options import config_option, o_option, read_flags, setting_options
from fusestripe.config import load
from fusestripe.errors import MountError
from fusestripe.kernel import mounting
from fusestripe.launch import launch, stop
from fusestripe.origins.registry import FACTORIES

__all__ = ["mount", "unmount"]


@click.command(
    epilog="Example: fusestripe mount s3://bucket/checkpoints /mnt/ckpt --cache-dir /nvme/fusestripe"
)
@click.argument("source")
@click.argument("mountpoint")
@config_option
@setting_options()
@o_option
@click.option("--foreground", "-f", is_flag=True, help="Stay, and log to stderr.")
def mount(
    source: str,
    mountpoint: str,
    config: str | None,
    options: tuple[str, ...],
    foreground: bool,
    **flags: object,
) -> None:
    """Mount SOURCE at MOUNTPOINT.

    SOURCE is a directory of a store (s3://bucket/prefix; gs://, az://, abfs:// and abfss://; hdfs://,
    hdfs+libhdfs:// and viewfs://; http:// and https://), one of this machine (file:///directory), or a TOML
    file with routes. Returns when the tree answers; the daemon goes on behind.
    """
    settings = load(source, read_flags(options, flags), config=config, schemes=FACTORIES)
    # A start that is ended half-way is cleaned up, as for Ctrl-C.
    signal.signal(signal.SIGTERM, _leave)
    pid = launch(settings, mountpoint, foreground)
    if foreground:
        _attend(pid, mounting.resolve(mountpoint))


@click.command(epilog="Example: fusestripe unmount /mnt/ckpt")
@click.argument("mountpoint")
def unmount(mountpoint: str) -> None:
    """Unmount MOUNTPOINT and wait until its daemon has ended.

    What is in the cache stays there.
    """
    path = mounting.resolve(mountpoint)
    os.chdir("/")  # this process shall not be what keeps the mount busy
    stop(path)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _attend(pid: int, mountpoint: str) -> None:
    """Wait for the daemon and hand signals on to it; leave as it left, and no mount behind."""

    def hand_on(number: int, _frame: FrameType | None) -> None:
        os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, hand_on)
    click.echo(f"fusestripe: serving {mountpoint}; Ctrl-C unmounts it", err=True)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return
    left = mounting.find_mount(mountpoint)
    if left is not None and left.fstype == mounting.FSTYPE:
        mounting.unmount(mountpoint)
    if code > 0:
        sys.exit(code)
    raise MountError(f"the daemon was killed by {signal.Signals(-code).name}", mend="mount it again")
