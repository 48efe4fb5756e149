"""`fusestripe doctor`: a line for each thing a mount needs."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
from rich.console import Console
from rich.text import Text

from fusestripe.commands.completing import urls
from fusestripe.commands.interrupts import interruptible
from fusestripe.commands.options import (
    config_option,
    json_option,
    o_option,
    print_json,
    read_flags,
    setting_options,
)
from fusestripe.config import Settings, load
from fusestripe.doctor import Finding, examine
from fusestripe.errors import ConfigError
from fusestripe.origins.registry import FACTORIES

__all__ = ["doctor"]

STYLES = {"ok": "green", "warning": "yellow", "fail": "red"}


@click.command(epilog="Example: fusestripe doctor s3://bucket/checkpoints")
@click.argument("url", required=False, shell_complete=urls)
@config_option
@setting_options("cache_dir")
@o_option
@json_option
def doctor(
    url: str | None, config: str | None, options: tuple[str, ...], as_json: bool, **flags: str | None
) -> None:
    """Look at the kernel, FUSE, the cache disk, credentials, and the origin at URL.

    Without a URL each origin of the TOML file is asked, if one is given.
    Exits with 1 if something fails; a warning costs speed or a feature. The JSON is a list.
    """
    console = Console(highlight=False)
    findings: list[Finding] = []
    examined = _examined(url, config, read_flags(options, flags))
    while (finding := interruptible(lambda: next(examined, None))) is not None:
        findings.append(finding)
        if not as_json:
            show(console, finding)
    if as_json:
        print_json(findings)
    if any(finding.level == "fail" for finding in findings):
        sys.exit(1)


def _examined(url: str | None, config: str | None, flags: dict[str, object]) -> Iterator[Finding]:
    """All findings; where the settings cannot be used, that one, and the machine by what is left of them."""
    try:
        settings = load(url, flags, config=config, schemes=FACTORIES)
    except ConfigError as error:
        yield Finding("settings", "fail", error.message, error.mend)
        settings = _without_source(flags)
    yield from examine(settings)


def _without_source(flags: dict[str, object]) -> Settings:
    """What flags and environment say, unless it is they that cannot be used."""
    try:
        return load(None, flags)
    except ConfigError:
        return load(None, {}, environ={})


def show(console: Console, finding: Finding) -> None:
    """One line: how it is, what it is, and the mend."""
    line = Text(f"{finding.level:8}", style=STYLES[finding.level])
    line.append(f"{finding.what:16} ", style="bold")
    line.append(": ".join(filter(None, (finding.text, finding.mend))), style="default")
    console.print(line, soft_wrap=True)
