"""The command line: `fusestripe COMMAND`. Commands are imported only when they are called for."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import click

import fusestripe
from fusestripe.commands.output import OutputFails, guarded
from fusestripe.commands.usage import NamedCommands, Refused, usage_in_one_line
from fusestripe.errors import FusestripeError

__all__ = ["Commands", "cli", "main"]

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "mount": "fusestripe.commands.mount:mount",
        "unmount": "fusestripe.commands.mount:unmount",
        "prefetch": "fusestripe.commands.prefetch:prefetch",
        "status": "fusestripe.commands.status:status",
        "cache": "fusestripe.commands.cache:cache",
        "upgrade": "fusestripe.commands.upgrade:upgrade",
        "job": "fusestripe.commands.job:job",
        "bench": "fusestripe.commands.bench:bench",
        "hand-over": "fusestripe.commands.handover:hand_over",
        "doctor": "fusestripe.commands.doctor:doctor",
        "completion": "fusestripe.commands.completion:completion",
    }
)
"""Name -> "module:command", in the order of the help page."""


INTERRUPTED = 128 + signal.SIGINT
"""The exit status of what ended by Ctrl-C, as shells have it."""


class Commands(NamedCommands):
    """A group that imports its commands when they are needed and turns errors into one line.

    FUSESTRIPE_DEBUG=1 lets the traceback through.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Understand the options before the command's name."""
        try:
            with usage_in_one_line():
                return super().make_context(*args, **extra)
        except OutputFails as error:  # it is asked for a page of help
            raise Refused(str(error)) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            with usage_in_one_line():
                return super().invoke(ctx)
        except FusestripeError as error:
            if _debugging():
                raise
            raise Refused(" ".join(str(error).split())) from None
        except (KeyboardInterrupt, click.Abort):
            click.echo("fusestripe: interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
            raise
        except Exception as error:
            if _debugging():
                raise
            raise Refused(_told(error)) from None


def _told(error: Exception) -> str:
    """What nobody foresaw, on one line; of what is around the program, with the mend."""
    for each in _leaves(error):
        if isinstance(each, OutputFails):
            return str(each)
        if isinstance(each, FileNotFoundError) and _works_nowhere():
            return "the working directory is gone: cd to one that is there"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}: FUSESTRIPE_DEBUG=1 shows where"


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """``error``, or what is in it if it is a group of a nursery's."""
    inner = getattr(error, "exceptions", None)
    if inner is None:
        yield error
    else:
        for each in inner:
            yield from _leaves(each)


def _works_nowhere() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _debugging() -> bool:
    return os.environ.get("FUSESTRIPE_DEBUG", "") not in ("", "0")


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: fusestripe mount s3://bucket/checkpoints /mnt/ckpt",
)
@click.version_option(fusestripe.__version__, prog_name="fusestripe")
def cli() -> None:
    """Object stores as one directory tree, read in parallel stripes and cached on NVMe."""


def main() -> None:
    """The console script."""
    if sys.stdout is not None:  # as it is where it was closed
        sys.stdout = guarded(sys.stdout)
    if "_FUSESTRIPE_COMPLETE" in os.environ:
        from fusestripe.commands.completing import teach_bash  # for a shell that asks

        teach_bash()
    try:
        cli(prog_name="fusestripe")
    except SystemExit as end:
        if end.code != INTERRUPTED:
            raise
        # Not by way of the interpreter's end, which threads that still wait for an origin may disturb.
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                with suppress(OSError, OutputFails):
                    stream.flush()
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
