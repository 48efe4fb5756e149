"""What can stand at a place of the command line, for a shell that completes it.

Nothing here asks a store or looks into a mount: a shell waits for the answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeAlias

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

from fusestripe.config import SETTINGS
from fusestripe.kernel.mounting import our_mounts
from fusestripe.origins.registry import FACTORIES

__all__ = [
    "UrlBashComplete",
    "directories",
    "files",
    "mountpoints",
    "option_names",
    "paths_or_urls",
    "teach_bash",
    "urls",
]

Items: TypeAlias = "list[CompletionItem[str]]"  # generic only in newer versions of click

BASH_SCRIPT = """\
%(complete_func)s() {
    local answer=() found=() paths=() line
    # The line, and not COMP_WORDS: in those a URL is cut at its colon.
    mapfile -t answer < <(COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
    COMPREPLY=()
    for line in "${answer[@]}"; do
        found=()
        case $line in
            plain,*) COMPREPLY+=("${line#*,}") ;;
            file,*) mapfile -t found < <(compgen -f -- "${line#*,}") ;;
            dir,*) mapfile -t found < <(compgen -d -- "${line#*,}") ;;
        esac
        paths+=("${found[@]}")
    done
    if ((${#COMPREPLY[@]} == 0)); then
        compopt -o filenames
        COMPREPLY=("${paths[@]}")
        return
    fi
    for line in "${paths[@]}"; do
        [[ -d $line ]] && line+=/
        COMPREPLY+=("$(printf %%q "$line")")
    done
    if ((${#COMPREPLY[@]} == 1)) && [[ ${COMPREPLY[0]} == *[/=] ]]; then
        compopt -o nospace
    fi
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""
"""Takes Bash 4.4 or newer, as click's own does."""


class UrlBashComplete(BashComplete):
    """click's completion for Bash, but for words that Bash cuts: "s3://bucket" at ":", "key=value" at "="."""

    source_template = BASH_SCRIPT

    @staticmethod
    def _check_version() -> None:
        """Whoever completes with an older Bash sees what it says; to start one here takes time."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The whole words before the cursor, and the one that it is in, "" if it begins."""
        *words, last = split_arg_string(os.environ["COMP_LINE"] + "|")  # which makes of nothing a word
        return words[1:], last[:-1]

    def get_completions(self, args: list[str], incomplete: str) -> Items:
        """See ShellComplete. What Bash takes for the beginning of the same word is left away."""
        breaks = os.environ.get("COMP_WORDBREAKS", "")
        cut = 1 + max((incomplete.rfind(mark) for mark in ":=" if mark in breaks), default=-1)
        found = super().get_completions(args, incomplete)
        return [
            CompletionItem(item.value[cut:], type=item.type, help=item.help)
            if cut and item.value.startswith(incomplete[:cut])
            else item
            for item in found
        ]


def teach_bash() -> None:
    """Have click take this completion for Bash, in the script and in what the script asks."""
    add_completion_class(UrlBashComplete)


def files(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Any file."""
    return [CompletionItem(incomplete, type="file")]


def directories(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Any directory."""
    return [CompletionItem(incomplete, type="dir")]


def mountpoints(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Where this user has mounted; /proc alone is read."""
    points = (mount.mountpoint for mount in our_mounts())
    return _starting(points, incomplete)


def urls(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """The schemes of stores; what is in a store is not asked for."""
    return _starting((f"{scheme}://" for scheme in FACTORIES), incomplete)


def paths_or_urls(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """A file, or a URL as far as its scheme."""
    return [
        *urls(context, parameter, incomplete),
        *([] if ":" in incomplete else files(context, parameter, incomplete)),
    ]


def option_names(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """The names that ``-o`` takes, after those that are there: "ro,cache_dir=/nvme,st" goes on."""
    before, comma, _ = incomplete.rpartition(",")
    names = (
        f"{before}{comma}{setting.option}{'' if setting.kind == 'switch' else '='}"
        for setting in SETTINGS
        if setting.option
    )
    return _starting(names, incomplete)


def _starting(names: Iterable[str], incomplete: str) -> Items:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
