"""What a shell completes, at a terminal, with the files that a wheel installs."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.terminal import Terminal

ROOT = Path(__file__).parents[2]
FILES = ROOT / "mount" / "completion"
PROMPT = "ready> "

START = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        "source /usr/share/bash-completion/bash_completion",
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        f"fpath=({FILES} $fpath); autoload -U compinit; compinit -u -D",
    ),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the person is: with a file, and with two directories."""
    work = tmp_path / "work"
    for name in ("sub", "a dir"):
        (work / name).mkdir(parents=True)
    (work / "several.toml").touch()
    return work


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """That of a person who has the program, and whose shells find its files."""
    for name, place in {
        "fusestripe.bash": "bash-completion/completions/fusestripe",
        "fusestripe.fish": "fish/vendor_completions.d/fusestripe.fish",
    }.items():
        path = tmp_path / "share" / place
        path.parent.mkdir(parents=True)
        path.symlink_to(FILES / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "fusestripe"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m fusestripe "$@"\n')
    program.chmod(0o755)
    return {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "XDG_DATA_DIRS": f"{tmp_path}/share:/usr/share",
        "PS1": PROMPT,
        "LC_ALL": "C.UTF-8",
        "INPUTRC": "/dev/null",
    }


@pytest.fixture(params=["bash", "zsh"])
def shell(
    request: pytest.FixtureRequest, directory: Path, environment: dict[str, str]
) -> Iterator[tuple[str, Terminal]]:
    command, begin = START[request.param]
    with Terminal(command, directory, environment) as terminal:
        terminal.expect(PROMPT)
        terminal.type(f"{begin}; echo be''gun\n")
        terminal.expect("begun")
        yield request.param, terminal


@pytest.mark.parametrize(
    ("typed", "becomes"),
    [
        ("fusestripe unm", "fusestripe unmount "),
        ("fusestripe mount sub", "fusestripe mount sub/"),
        ("fusestripe mount s3", "fusestripe mount s3://"),
        ("fusestripe mount hdfs+", "fusestripe mount hdfs+libhdfs://"),
        ("fusestripe mount s3://bucket/x su", "fusestripe mount s3://bucket/x sub/"),
        ("fusestripe mount --cache-d", "fusestripe mount --cache-dir "),
        ("fusestripe mount s3://bucket/x --cache-dir su", "--cache-dir sub/"),
        ("fusestripe doctor -o allow_o", "fusestripe doctor -o allow_other"),
        ("fusestripe cache ver", "fusestripe cache verify "),
        ("fusestripe completion f", "fusestripe completion fish "),
    ],
)
def test_a_shell_completes(shell: tuple[str, Terminal], typed: str, becomes: str) -> None:
    _, terminal = shell
    terminal.type(f"{typed}\t")
    terminal.expect(becomes)


@pytest.mark.parametrize(
    ("typed", "becomes"),
    [
        ("fusestripe mount s3:", "fusestripe mount s3://"),
        ("fusestripe mount --cache-dir=su", "fusestripe mount --cache-dir=sub/"),
        ("fusestripe mount -o stripe_size=2MiB,cache_d", "-o stripe_size=2MiB,cache_dir="),
        (r"fusestripe mount a\ d", r"fusestripe mount a\ dir/"),
    ],
)
def test_bash_completes_within_what_it_takes_for_several_words(
    directory: Path, environment: dict[str, str], typed: str, becomes: str
) -> None:
    command, begin = START["bash"]
    with Terminal(command, directory, environment) as terminal:
        terminal.expect(PROMPT)
        terminal.type(f"{begin}; echo be''gun\n")
        terminal.expect("begun")
        terminal.type(f"{typed}\t")
        terminal.expect(becomes)


def fish(line: str, directory: Path, environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        ["fish", "-c", f"complete -C {shlex.quote(line)}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=directory,
        env=environment,
    )
    assert done.stderr == ""
    return [found.partition("\t")[0] for found in done.stdout.splitlines()]


def test_fish_completes(directory: Path, environment: dict[str, str]) -> None:
    assert fish("fusestripe unm", directory, environment) == ["unmount"]
    assert fish("fusestripe mount s3://bucket/x su", directory, environment) == ["sub/"]
    assert set(fish("fusestripe mount s", directory, environment)) == {"s3://", "several.toml", "sub/"}


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_the_command_prints_what_the_files_load(shell_name: str, environment: dict[str, str]) -> None:
    """And a shell of that name takes it without a word."""
    script = subprocess.run(
        ["fusestripe", "completion", shell_name],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    ).stdout
    asked = {**environment, "_FUSESTRIPE_COMPLETE": f"{shell_name}_source"}
    loaded = subprocess.run(["fusestripe"], capture_output=True, text=True, check=True, env=asked).stdout
    assert script.strip() == loaded.strip()
    done = subprocess.run(
        [shell_name, "-n"], input=script, capture_output=True, text=True, check=True, env=environment
    )
    assert done.stderr == ""
