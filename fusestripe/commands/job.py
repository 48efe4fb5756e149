"""`fusestripe job`: what the Prolog and Epilog of a batch system run, as the job's user."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn, TypeVar

import click

from fusestripe.commands.completing import directories
from fusestripe.commands.options import json_option, print_json
from fusestripe.commands.usage import NamedCommands
from fusestripe.config import JOB_FILE
from fusestripe.engine import join_peers
from fusestripe.errors import ConfigError
from fusestripe.job import Job, end, plan, start
from fusestripe.units import printable

__all__ = ["NOTHING_ASKED", "job"]

NOTHING_ASKED = 3
"""The exit status of `job start` for a job that asks for nothing."""

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(
    cls=NamedCommands, epilog="Example: fusestripe job check --comment 'fusestripe:source=s3://bucket'"
)
def job() -> None:
    """Mount what a batch job asks for, and take it away when the job ends.

    A job asks by its comment, as in sbatch --comment='fusestripe:source=s3://bucket/ckpt,prefetch=step-9000',
    or by a file fusestripe.toml with a table [job] in its working directory.
    """


def _of_job(command: Command) -> Command:
    """The options that say what the batch system knows of the job."""
    for add in (
        click.option(
            "--directory",
            default=".",
            metavar="DIR",
            shell_complete=directories,
            help="The job's working directory.",
        ),
        click.option("--comment", default="", metavar="TEXT", help="The job's comment."),
    ):
        command = add(command)
    return command


@job.command(epilog="Example: cd ~/train && fusestripe job check --comment fusestripe:prefetch=step-9000")
@_of_job
@json_option
def check(comment: str, directory: str, as_json: bool) -> None:
    """Show what a job would ask for, before it is submitted.

    Reads the request and its settings, and asks no store. Exits with 1 where the request is wrong, or there
    is none. The JSON is an object: source, routes, prefetch, latest, rank_local, pin, wait (seconds),
    mountpoint.
    """
    wanted = plan(Job("%j", comment, os.path.abspath(directory)))
    if wanted is None:
        raise ConfigError(
            f"this job asks for nothing: no fusestripe: in its comment, no [job] in {directory}/{JOB_FILE}",
            mend="--comment='fusestripe:source=s3://bucket/prefix,prefetch=step-9000'",
        )
    if wanted.settings.peers.are_on:
        join_peers(wanted.settings)  # which reads what [peers] names
    request = wanted.request
    shown: dict[str, object] = {
        "source": request.source,
        "routes": {route.path: route.source for route in wanted.settings.routes},
        "prefetch": request.prefetch,
        "latest": request.latest,
        "rank_local": request.rank_local,
        "pin": request.pin,
        "wait": request.wait,
        "mountpoint": wanted.mountpoint,
    }
    if as_json:
        print_json(shown)
        return
    flags = [name for name in ("latest", "rank_local", "pin") if shown[name]]
    top = wanted.mountpoint or "$FUSESTRIPE_MOUNT"
    for route in wanted.settings.routes:
        where = top + (route.path if route.path != "/" else "")
        click.echo(f"mount      {printable(route.source)} at {printable(where)}")
    for path in request.prefetch:
        click.echo(f"prefetch   {printable(path)}{''.join(f', {name}' for name in flags)}")
    if request.wait:
        click.echo(f"wait       up to {request.wait:g} s for it")


@job.command(
    "start", epilog="Example: fusestripe job start --id 17 --mountpoint /mnt/fusestripe/17 --directory ~"
)
@click.option("--id", "number", required=True, metavar="ID", help="The job's id.")
@click.option(
    "--mountpoint",
    default="",
    metavar="DIR",
    shell_complete=directories,
    help="Where to mount, if the job does not say.",
)
@click.option(
    "--max-wait", default=math.inf, metavar="SECONDS", help="A job may wait so long for its prefetch."
)
@_of_job
def start_(number: str, mountpoint: str, max_wait: float, comment: str, directory: str) -> None:
    """Mount what the job asks for, and begin to prefetch.

    For a Prolog, as the job's user, with the job's own FUSESTRIPE_RUNTIME_DIR. Exits with 3 where the job
    asks for nothing; with 0 when the tree answers, and lines on stderr then are for the job's log.
    """
    signal.signal(signal.SIGTERM, _leave)
    complaints = start(Job(number, comment, os.path.abspath(directory), mountpoint), max_wait)
    if complaints is None:
        sys.exit(NOTHING_ASKED)
    for line in complaints:
        click.echo(f"fusestripe: {printable(line)}", err=True)


@job.command("end", epilog="Example: fusestripe job end --id 17 --mountpoint /mnt/fusestripe/17")
@click.option("--id", "number", required=True, metavar="ID", help="The job's id.")
@click.option(
    "--mountpoint",
    default="",
    metavar="DIR",
    shell_complete=directories,
    help="As it was given to `job start`.",
)
def end_(number: str, mountpoint: str) -> None:
    """Unmount what `job start` mounted, end what it started, and unpin what it pinned.

    For an Epilog, with user and environment as for `job start`; whatever became of that.
    """
    end(Job(number, "", "/", mountpoint))


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
