"""Files of environment variables: what is in them, and who may see and change it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusestripe.config.environment import read_environment
from fusestripe.errors import ConfigError


def written(directory: Path, text: str | bytes, mode: int = 0o600) -> str:
    path = directory / "env"
    path.unlink(missing_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return str(path)


def test_what_is_in_it(tmp_path: Path) -> None:
    text = "# remark\n; another\n\nA=1\nexport B=two words\n"
    text += "C='#x'\nD=\"it's\"\nE=\nF=a=b\n  G=x \nA=2\nH='a\\b\"'\n"
    assert read_environment(written(tmp_path, text)) == {
        "A": "2",
        "B": "two words",
        "C": "#x",
        "D": "it's",
        "E": "",
        "F": "a=b",
        "G": "x",
        "H": 'a\\b"',
    }


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True)


def texts(without: str) -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_characters=f"\0\n\r{without}", exclude_categories=["Cs"]))


values = texts("'") | texts('"\\')


@given(st.dictionaries(names, values))
def test_what_is_written_in_quotes_is_read_back(variables: dict[str, str]) -> None:
    quotes = {name: '"' if "'" in value else "'" for name, value in variables.items()}
    text = "".join(f"{name}={quotes[name]}{value}{quotes[name]}\n" for name, value in variables.items())
    with tempfile.TemporaryDirectory() as directory:
        assert read_environment(written(Path(directory), text)) == variables


@pytest.mark.parametrize(
    "value",
    [
        "a\\",
        "a\\b",
        '"a\\"b"',
        '"a\\\\b"',
        "'first",
        '"first',
        "a'b'",
        "'a'\"b\"",
        "'a'b'",
        '"a"b"',
        "'a' # b",
    ],
)
def test_what_systemd_would_read_otherwise_is_refused(value: str, tmp_path: Path) -> None:
    """An escape, a line that goes on, parts put together: a secret that silently is another one."""
    path = written(tmp_path, f"A=1\nSECRET={value}\nsecond'\n")
    with pytest.raises(ConfigError, match=f"{path}:2: quotes or backslashes that are not taken") as refused:
        read_environment(path)
    assert value not in str(refused.value)


@pytest.mark.parametrize("line", ["secret", "1A=secret", "A B=secret", "=secret", "A\0=secret"])
def test_a_line_that_is_none_is_named_and_not_shown(line: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"A=1\n\n{line}\n")
    with pytest.raises(ConfigError) as refused:
        read_environment(path)
    assert str(refused.value) == f"{path}:3: no variable: write NAME=VALUE"


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
def test_one_that_its_user_keeps(mode: int, tmp_path: Path) -> None:
    assert read_environment(written(tmp_path, "A=1", mode)) == {"A": "1"}


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o602, 0o604, 0o601])
def test_one_that_others_can_read_or_change_is_refused(mode: int, tmp_path: Path) -> None:
    path = written(tmp_path, "A=1", mode)
    with pytest.raises(ConfigError) as refused:
        read_environment(path)
    assert str(refused.value) == f"{path}: others have rights to it: chmod 600 {path}"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_one_of_another_user_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "A=1")
    os.chown(path, 1, 1)
    with pytest.raises(ConfigError, match="it belongs to another user: chown it to root or this user"):
        read_environment(path)


def test_what_is_no_such_file_is_refused_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, says in (
        (str(tmp_path / "fifo"), "not a regular file"),
        (str(tmp_path), "is a directory"),
        (str(tmp_path / "none"), "no such file or directory"),
        (written(tmp_path, b"A=\xff"), "not text"),
    ):
        with pytest.raises(ConfigError, match=says):
            read_environment(path)
