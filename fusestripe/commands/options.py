"""Options and output that commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
import msgspec

from fusestripe.commands.completing import directories, files, option_names
from fusestripe.config import SETTINGS, parse_options

__all__ = [
    "as_json",
    "config_option",
    "json_option",
    "o_option",
    "print_json",
    "read_flags",
    "setting_options",
]

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("as_json", "--json", is_flag=True, help="Print JSON, for scripts.")
config_option = click.option(
    "--config", metavar="FILE", shell_complete=files, help="TOML file with settings."
)
o_option = click.option(
    "-o",
    "options",
    multiple=True,
    metavar="KEY=VALUE,...",
    shell_complete=option_names,
    help="Any setting by its name, as mount(8) does: "
    f"{', '.join(setting.option for setting in SETTINGS if setting.option)}.",
)


def setting_options(*names: str) -> Callable[[Command], Command]:
    """Flags for the settings with these ``-o`` names; all that have a flag if none is given."""
    chosen = [setting for setting in SETTINGS if setting.has_flag and (not names or setting.option in names)]

    def decorate(command: Command) -> Command:
        for setting in reversed(chosen):
            meaning = setting.meaning[0].upper() + setting.meaning[1:] + "."
            if setting.kind == "switch":
                add = click.option(setting.flag, setting.option, is_flag=True, default=None, help=meaning)
            else:
                metavar = {"directory": "DIR", "count": "N"}.get(setting.kind, setting.kind.upper())
                add = click.option(
                    setting.flag,
                    setting.option,
                    metavar=metavar,
                    shell_complete=directories if setting.kind == "directory" else None,
                    help=meaning,
                )
            command = add(command)
        return command

    return decorate


def read_flags(options: tuple[str, ...], flags: Mapping[str, object]) -> dict[str, object]:
    """What ``-o`` and the flags say together; a flag stands over ``-o``."""
    said: dict[str, object] = {}
    for text in options:
        said |= parse_options(text)
    return said | {name: value for name, value in flags.items() if value is not None}


def print_json(value: object) -> None:
    """One line of JSON on stdout."""
    click.echo(as_json(value))


def as_json(value: object) -> str:
    """``value`` as msgspec writes it, on one line."""
    return msgspec.json.encode(value).decode()
