"""A file of environment variables, as systemd's EnvironmentFile= (systemd.exec(5)) takes it but for escapes.

A line that escapes something, or goes on in the next, is refused: no value is silently another one here.
"""

from __future__ import annotations

import os
import re
import stat

from fusestripe.errors import ConfigError, reason_of

__all__ = ["read_environment"]

_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_PLAIN = re.compile(r"""[^'"\\]*""")
_QUOTED = re.compile(r"""'[^']*'|"[^"\\]*["]""")
_OTHERS = 0o027


def read_environment(path: str) -> dict[str, str]:
    """The variables in the file ``path``: NAME=VALUE lines, VALUE in quotes or not. "#", ";" begin remarks.

    In quotes every character stands for itself. There are no escapes and no lines that go on: a backslash
    stands in single quotes alone, and a quote only in quotes of the other kind.

    It may hold secrets, and decides what the daemon does: root or this user owns it, its group may read it
    at most, and others may nothing. Raises ConfigError, which names the line and shows nothing of it.
    """
    try:
        # O_NONBLOCK: nobody may ever write to a FIFO (fifo(7)).
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(
                    f"{path}: not a regular file", mend="env_file names a file of NAME=VALUE lines"
                )
            if found.st_uid not in (0, os.geteuid()):
                raise ConfigError(f"{path}: it belongs to another user", mend="chown it to root or this user")
            if found.st_mode & _OTHERS:
                raise ConfigError(f"{path}: others have rights to it", mend=f"chmod 600 {path}")
            text = file.read()
    except OSError as error:
        what = reason_of(error)
        raise ConfigError(f"{path}: {what}", mend="env_file names a file of NAME=VALUE lines") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not text", mend="write it in UTF-8") from None
    return dict(_variable(line, f"{path}:{number}") for number, line in _lines(text))


def _lines(text: str) -> list[tuple[int, str]]:
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1)]
    return [(number, line) for number, line in lines if line and line[0] not in "#;"]


def _variable(line: str, where: str) -> tuple[str, str]:
    found = _ASSIGNMENT.fullmatch(line)
    if found is None or "\0" in line:
        raise ConfigError(f"{where}: no variable", mend="write NAME=VALUE")
    name, value = found.groups()
    value = value.strip()
    if _PLAIN.fullmatch(value):
        return name, value
    if _QUOTED.fullmatch(value):
        return name, value[1:-1]
    raise ConfigError(
        f"{where}: quotes or backslashes that are not taken: nothing is escaped, and no line goes on",
        mend="write NAME='VALUE', or \"VALUE\" where a ' is in it",
    )
