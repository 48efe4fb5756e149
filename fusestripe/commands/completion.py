"""`fusestripe completion`: the script that has a shell complete the command line."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from fusestripe.commands.completing import teach_bash

__all__ = ["SHELLS", "completion"]

SHELLS = ("bash", "zsh", "fish")
NAME = "fusestripe"
COMPLETE = f"_{NAME.upper()}_COMPLETE"
"""The variable by which a shell asks for completions (click.shell_completion)."""


@click.command(
    epilog="Example: fusestripe completion bash > ~/.local/share/bash-completion/completions/fusestripe"
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that has SHELL complete the command line.

    \b
    bash (from 4.4)  eval "$(fusestripe completion bash)"       in ~/.bashrc
    zsh              eval "$(fusestripe completion zsh)"        in ~/.zshrc, after compinit
    fish             fusestripe completion fish | source        in ~/.config/fish/config.fish

    Where it was installed below /usr or /usr/local, the shells find it by themselves.
    """
    teach_bash()
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, NAME, COMPLETE).source())
