"""The manual: as the commands and settings are now, and as man(1) shows it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from fusestripe.cli import COMMANDS
from fusestripe.config import SETTINGS
from fusestripe.manual import PAGES
from fusestripe.manual.troff import escaped
from fusestripe.origins.registry import FACTORIES

DIRECTORY = Path(__file__).parents[2] / "mount" / "man"


def show(name: str) -> str:
    """What a person reads."""
    done = subprocess.run(
        ["man", "--warnings=w", "--encoding=UTF-8", str(DIRECTORY / name)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "200", "MANROFFOPT": "-c"},
    )
    assert done.stderr == ""  # warnings of troff among it
    return done.stdout


@pytest.fixture(scope="module")
def shown() -> str:
    """fusestripe(1)."""
    return show("fusestripe.1")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_of_this_code(name: str) -> None:
    assert (DIRECTORY / name).read_text() == PAGES[name](), "python -m fusestripe.manual mount/man"


def sections(page: str) -> list[str]:
    return re.findall(r"^([A-Z][A-Z ]+)$", page, re.MULTILINE)


def test_they_have_every_section(shown: str) -> None:
    assert sections(shown) == [
        *("NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "SETTINGS", "EXAMPLES"),
        *("ENVIRONMENT", "FILES", "EXIT STATUS", "SEE ALSO"),
    ]
    assert sections(show("mount.fusestripe.8")) == [
        *("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "EXIT STATUS", "SEE ALSO")
    ]


def test_that_of_the_helper_names_every_option() -> None:
    page = show("mount.fusestripe.8")
    names = set(re.findall(r"^ {7}([a-z_]+)(?:=\.\.\.)?(?: +[A-Z].*)?$", page, re.MULTILINE))
    assert {setting.option for setting in SETTINGS if setting.option} - names == set()
    assert "s3://bucket/ckpt  /mnt/ckpt  fusestripe  ro,_netdev,nofail,allow_other" in page


def test_it_names_every_command_setting_and_store(shown: str) -> None:
    assert [name for name in COMMANDS if f"fusestripe {name}" not in shown] == []
    for setting in SETTINGS:
        said = (f"[{setting.section}] {setting.key}", setting.flag, setting.environment, setting.option)
        assert [each for each in said if each not in shown] == []
    assert [scheme for scheme in FACTORIES if f"{scheme}://" not in shown] == []


def test_what_is_copied_from_it_can_be_run(shown: str) -> None:
    """No dash is a hyphen, no quote a typographic one, and nothing is filled that has lines of its own."""
    assert "fusestripe mount s3://bucket/checkpoints /mnt/ckpt --cache-dir /nvme/fusestripe" in shown
    assert "fusestripe prefetch --latest --rank-local --pin-for 12h /mnt/ckpt/run-7" in shown
    assert re.search(r'^ +\[\[route\]\]\n +path = "/ckpt"\n', shown, re.MULTILINE)
    assert """eval "$(fusestripe completion bash)"       in ~/.bashrc""" in shown
    assert not re.search("[\u2010\u2018\u2019\u201c\u201d\u00b4]", shown)


def test_a_dot_at_the_beginning_of_a_line_asks_troff_for_nothing() -> None:
    assert escaped(".TH x") == r"\&.TH x"
    assert escaped(r"a\b") == r"a\eb"
