"""From what TOML or a line of text says to the value that a setting holds."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping

from fusestripe.config.settings import LEVELS, Kind
from fusestripe.errors import ConfigError
from fusestripe.units import parse_size

__all__ = ["from_text", "typed"]

_SWITCH = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


def typed(kind: Kind, value: object, base: str) -> object:
    """``value`` checked and in the form a setting holds: sizes in bytes, times in seconds, paths absolute.

    Relative directories start at ``base``. Raises ConfigError, without the place.
    """
    return _READERS[kind](value, base)


def from_text(kind: Kind, text: str, base: str) -> object:
    """As ``typed``, from a place where everything is text: the environment, ``-o``."""
    value: object = text
    try:
        if kind == "switch":
            value = _SWITCH.get(text.strip().lower(), text)
        elif kind == "count":
            value = int(text)
        elif kind == "seconds":
            value = float(text)
    except ValueError:
        value = text  # refused below, by name
    return typed(kind, value, base)


def _refuse(value: object, wanted: str, mend: str = "") -> ConfigError:
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    return ConfigError(f"{shown} is not {wanted}", mend=mend)


def _size(value: object, _base: str) -> int:
    if isinstance(value, str):
        return parse_size(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _refuse(value, "a size", 'write it like "8MiB", "500GiB" or 4096')
    return value


def _count(value: object, _base: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _refuse(value, "a whole number")
    return value


def _seconds(value: object, _base: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise _refuse(value, "a number of seconds, 0 or more")
    return float(value)


def _switch(value: object, _base: str) -> bool:
    if not isinstance(value, bool):
        raise _refuse(value, "true or false")
    return value


def _level(value: object, _base: str) -> object:
    if value not in LEVELS:
        raise _refuse(value, f"one of {', '.join(LEVELS)}")
    return value


def _text(value: object, _base: str) -> str:
    if not isinstance(value, str):
        raise _refuse(value, "text")
    return value


def _directory(value: object, base: str) -> str:
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
    if not isinstance(path, str) or not path:
        raise _refuse(value, "the path of a directory")
    return os.path.normpath(os.path.join(base, os.path.expanduser(path)))


_READERS: Mapping[Kind, Callable[[object, str], object]] = {
    "size": _size,
    "count": _count,
    "seconds": _seconds,
    "switch": _switch,
    "level": _level,
    "text": _text,
    "directory": _directory,
}
