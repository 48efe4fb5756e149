"""What a person typed that no command takes: one line that says so, with the mend."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from fusestripe.stderr import goes_to_journal, with_priority

__all__ = ["Misconfigured", "Misused", "NamedCommands", "Refused", "usage_in_one_line"]


class Refused(click.ClickException):
    """An error as a person reads it: one line on stderr, exit status 1."""

    def show(self, file: Any = None) -> None:
        """Print it; the journal is told that it is an error."""
        line = f"fusestripe: {self.format_message()}"
        if file is None and goes_to_journal():
            line = with_priority(line, logging.ERROR)
        click.echo(line, file=file, err=file is None)


class Misused(Refused):
    """The same for a command line that cannot be understood; exit status 2, as everywhere."""

    exit_code = 2


class Misconfigured(Refused):
    """The same for a service manager: with these settings it tries in vain (EX_CONFIG of sysexits.h)."""

    exit_code = 78


class NamedCommands(click.Group):
    """A group that names the nearest of its commands where there is none of that name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click.Group."""
        name, known = args[0], self.list_commands(ctx)
        # A shell that completes a line asks for what follows a mistake, too.
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, known, n=1)
            mend = f'did you mean "{near[0]}"?' if near else f"{ctx.command_path} has {', '.join(known)}"
            raise Misused(f'unknown command "{name}": {mend}')
        return super().resolve_command(ctx, args)


@contextmanager
def usage_in_one_line() -> Iterator[None]:
    """Turn click's four lines into one: what is wrong, and how the command is called."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:  # a command's page of help
        raise
    except click.UsageError as error:
        message = " ".join(error.format_message().split()).rstrip(".")
        parts = [message[:1].lower() + message[1:]]
        if error.ctx is not None:
            pieces = error.ctx.command.collect_usage_pieces(error.ctx)
            parts.append(f"usage: {' '.join((error.ctx.command_path, *pieces))}")
        raise Misused(": ".join(parts)) from None
