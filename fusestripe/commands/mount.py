"""`fusestripe mount` and `fusestripe unmount`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import NoReturn

import click

from fusestripe.commands.completing import directories, mountpoints, paths_or_urls
from fusestripe.commands.options import config_option, o_option, read_flags, setting_options
from fusestripe.commands.usage import Misconfigured, Misused
from fusestripe.config import load, point_of
from fusestripe.errors import ConfigError, MountError
from fusestripe.handover import Taken, take
from fusestripe.keeper import how_it_ended
from fusestripe.kernel import mounting
from fusestripe.launch import launch, options_of, stop
from fusestripe.origins.registry import FACTORIES

__all__ = ["mount", "unmount"]


@click.command(
    epilog="Example: fusestripe mount s3://bucket/checkpoints /mnt/ckpt --cache-dir /nvme/fusestripe"
)
@click.argument("source", shell_complete=paths_or_urls)
@click.argument("mountpoint", required=False, shell_complete=directories)
@config_option
@setting_options()
@o_option
@click.option("--foreground", "-f", is_flag=True, help="Stay, and log to stderr.")
@click.option(
    "--device",
    metavar="SOCKET",
    help="Serve what `fusestripe hand-over` has mounted there, and gives at SOCKET. With --foreground.",
)
def mount(
    source: str,
    mountpoint: str | None,
    config: str | None,
    options: tuple[str, ...],
    foreground: bool,
    device: str | None,
    **flags: object,
) -> None:
    """Mount SOURCE at MOUNTPOINT.

    SOURCE is a directory of a store (s3://bucket/prefix; gs://, az://, abfs:// and abfss://; hdfs://,
    hdfs+libhdfs:// and viewfs://; http:// and https://), one of this machine (file:///directory), or a TOML
    file with routes, which may say the MOUNTPOINT too (point in [mount]). Returns when the tree answers; the
    daemon goes on behind.
    """
    try:
        settings = load(source, read_flags(options, flags), config=config, schemes=FACTORIES)
    except ConfigError as error:
        if foreground:
            raise Misconfigured(str(error)) from error
        raise
    mountpoint = mountpoint or settings.mount.point
    if not mountpoint:
        raise _nowhere(source, config)
    # A start that is ended half-way is cleaned up, as for Ctrl-C.
    signal.signal(signal.SIGTERM, _leave)
    taken = None
    if device is not None:
        if not foreground:
            raise Misused(f"--device takes --foreground: fusestripe mount {source} {mountpoint} --foreground")
        taken = take(device, options_of(settings))
    pid = launch(settings, mountpoint, foreground, taken=taken)
    if foreground:
        _attend(pid, mounting.resolve(mountpoint), taken)


@click.command(epilog="Example: fusestripe unmount /mnt/ckpt")
@click.argument("mountpoint", shell_complete=mountpoints)
def unmount(mountpoint: str) -> None:
    """Unmount MOUNTPOINT and wait until its daemon has ended.

    What is in the cache stays there. The TOML file that says the mountpoint does for it.
    """
    path = mounting.resolve(point_of(mountpoint))
    os.chdir("/")  # this process shall not be what keeps the mount busy
    stop(path)


def _nowhere(source: str, config: str | None) -> Misused:
    """Neither the command line nor the file says where to mount."""
    file = config or ("" if "://" in source else source)
    mend = f"fusestripe mount {source} /mnt/ckpt"
    if file:
        mend = f'add point = "/mnt/ckpt" to its [mount], or give the MOUNTPOINT: {mend}'
    return Misused(f"{file or source}: where to mount it is not said: {mend}")


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _attend(pid: int, mountpoint: str, taken: Taken | None) -> None:
    """Wait for the daemon and hand signals on to it; leave as it left, and no mount of its own behind.

    With who has handed the mount over the daemon ends too: another can mount anew.
    """

    def hand_on(number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):  # it has just ended, which is seen below
            os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, hand_on)
    if taken is None:
        click.echo(f"fusestripe: serving {mountpoint}; Ctrl-C unmounts it", err=True)
    else:
        taken.close()
        threading.Thread(target=_end_with, args=(taken, pid), daemon=True).start()
        click.echo(f"fusestripe: serving {mountpoint}, which another process has mounted", err=True)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return
    if taken is not None:
        with suppress(ProcessLookupError):  # a daemon without its keeper: there shall be one alone
            os.killpg(pid, signal.SIGKILL)
    left = mounting.find_mount(mountpoint) if taken is None else None
    if left is not None and left.fstype == mounting.FSTYPE:
        mounting.unmount(mountpoint)
    if code > 0:
        sys.exit(code)
    raise MountError(f"the daemon {how_it_ended(code)}", mend="mount it again")


def _end_with(taken: Taken, pid: int) -> None:
    taken.await_end()
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
