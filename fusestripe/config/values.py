"""From what TOML or a line of text says to the value that a setting holds."""

from __future__ import annotations

import grp
import math
import os
import pwd
import re
from collections.abc import Callable, Mapping

from fusestripe.config.settings import LEVELS, Kind
from fusestripe.errors import ConfigError
from fusestripe.units import parse_size

__all__ = ["from_text", "typed"]

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)\s*", re.IGNORECASE)
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_MASK = re.compile(r"0*[0-7]{1,3}")
_NO_ID = 2**32 - 1
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
        elif kind == "texts":
            value = text.replace(",", " ").split()
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
    duration = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if duration is not None:
        return float(duration[1]) * _UNITS[duration[2].lower()]
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise _refuse(value, "a number of seconds, 0 or more", 'write it like 60, "60s" or "5m"')
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


def _texts(value: object, _base: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
        raise _refuse(value, "a list of texts", 'write it like ["one", "two"]')
    return tuple(value)


def _file(value: object, base: str) -> str:
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str):
        raise _refuse(value, "the path of a file")
    return os.path.normpath(os.path.join(base, os.path.expanduser(path))) if path else ""


def _directory(value: object, base: str) -> str:
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
    if not isinstance(path, str) or not path:
        raise _refuse(value, "the path of a directory")
    return os.path.normpath(os.path.join(base, os.path.expanduser(path)))


def _user(value: object, _base: str) -> int:
    return _id(value, "a user", lambda name: pwd.getpwnam(name).pw_uid)


def _group(value: object, _base: str) -> int:
    return _id(value, "a group", lambda name: grp.getgrnam(name).gr_gid)


def _id(value: object, wanted: str, number_of: Callable[[str], int]) -> int:
    """The number of a user or a group: 32 bits, and -1 is nobody (chown(2))."""
    number = value
    if isinstance(value, str):
        try:
            number = int(value) if value.isascii() and value.isdigit() else number_of(value)
        except (KeyError, ValueError):
            raise _refuse(value, f"{wanted} of this machine", f"name {wanted}, or write the number") from None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < _NO_ID:
        raise _refuse(value, wanted, f"name {wanted}, or write the number")
    return number


def _mask(value: object, _base: str) -> int:
    if not isinstance(value, str) or not _MASK.fullmatch(value):
        raise _refuse(value, "a umask", 'write it in octal and, in TOML, as text: "022"')
    return int(value, 8)


_READERS: Mapping[Kind, Callable[[object, str], object]] = {
    "size": _size,
    "count": _count,
    "seconds": _seconds,
    "switch": _switch,
    "level": _level,
    "text": _text,
    "texts": _texts,
    "directory": _directory,
    "file": _file,
    "user": _user,
    "group": _group,
    "mask": _mask,
}
