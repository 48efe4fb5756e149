"""`fusestripe doctor`: a line for each thing a mount needs."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.text import Text

from fusestripe.commands.interrupts import interruptible
from fusestripe.commands.options import (
    config_option,
    json_option,
    o_option,
    print_json,
    read_flags,
    setting_options,
)
from fusestripe.config import load
from fusestripe.doctor import Finding, examine
from fusestripe.origins.registry import FACTORIES

__all__ = ["doctor"]

STYLES = {"ok": "green", "warning": "yellow", "fail": "red"}


@click.command(epilog="Example: fusestripe doctor --config /etc/fusestripe.toml")
@config_option
@setting_options("cache_dir")
@o_option
@json_option
def doctor(config: str | None, options: tuple[str, ...], as_json: bool, **flags: str | None) -> None:
    """Look at the kernel, FUSE, the cache disk, credentials, and each origin of the TOML file.

    Exits with 1 if something fails; a warning costs speed or a feature. The JSON is a list.
    """
    settings = load(None, read_flags(options, flags), config=config, schemes=FACTORIES)
    console = Console(highlight=False)
    findings: list[Finding] = []
    examined = examine(settings)
    while (finding := interruptible(lambda: next(examined, None))) is not None:
        findings.append(finding)
        if not as_json:
            show(console, finding)
    if as_json:
        print_json(findings)
    if any(finding.level == "fail" for finding in findings):
        sys.exit(1)


def show(console: Console, finding: Finding) -> None:
    """One line: how it is, what it is, and the mend."""
    line = Text(f"{finding.level:8}", style=STYLES[finding.level])
    line.append(f"{finding.what:12} ", style="bold")
    line.append(": ".join(filter(None, (finding.text, finding.mend))), style="default")
    console.print(line, soft_wrap=True)
