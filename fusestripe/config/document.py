"""A TOML file that can tell the line of each of its keys."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from fusestripe.errors import ConfigError, reason_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["NO_DOCUMENT", "Document", "read"]

_SYNTAX_ERROR = re.compile(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)")


class Document(msgspec.Struct, frozen=True):
    """The TOML file ``name``: its text, and what it parses to."""

    name: str
    text: str
    data: dict[str, Any]

    @property
    def directory(self) -> str:
        """Where its relative paths start."""
        return os.path.dirname(os.path.abspath(self.name))

    def where(self, *path: str | int) -> str:
        """ "name:line" of the statement that made ``path``: keys of tables, indexes of arrays.

        A prefix of the lines parses exactly where it ends between two statements, so the statement begins
        after the longest parsing prefix that lacks ``path``.
        """
        begin = 0
        for end, data in _prefixes(self.text):
            if _has(data, path):
                break
            begin = end
        return f"{self.name}:{begin + 1}"


NO_DOCUMENT = Document("", "", {})


def read(path: str, mend: str) -> Document:
    """The document in the file ``path``. Raises ConfigError, with the line where it is not TOML.

    ``mend`` is for a file that cannot be read, or is none of ours.
    """
    try:
        # O_NONBLOCK: nobody may ever write to a FIFO (fifo(7)).
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path}: not a regular file", mend=mend)
            text = file.read()
        return Document(path, text, tomllib.loads(text))
    except OSError as error:
        raise ConfigError(f"{path}: {reason_of(error)}", mend=mend) from None
    except UnicodeDecodeError:
        is_ours = path.endswith(".toml")
        raise ConfigError(f"{path}: not TOML", mend="write it in UTF-8" if is_ours else mend) from None
    except tomllib.TOMLDecodeError as error:
        place = _SYNTAX_ERROR.fullmatch(str(error))
        what, line = (place[1], place[2]) if place else (str(error), None)
        at = line or max(1, len(text.splitlines()))
        said = f"{path}:{at}: not TOML: {what[:1].lower()}{what[1:]}"
        raise ConfigError(said, mend="" if path.endswith(".toml") else mend) from None


def _prefixes(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The first ``n`` lines of ``text``, parsed, for each ``n`` that ends between two statements."""
    lines = text.split("\n")
    for end in range(1, len(lines) + 1):
        try:
            yield end, tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue


def _has(data: Any, path: tuple[str | int, ...]) -> bool:
    for step in path:
        if isinstance(data, list):
            data = dict(enumerate(data))
        if not isinstance(data, dict) or step not in data:
            return False
        data = data[step]
    return True
