"""Where settings are said: a TOML file, the environment, flags. Each value comes with its place."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from fusestripe.config.document import Document
from fusestripe.config.mountoptions import read_standard
from fusestripe.config.settings import JOB_SETTINGS, SECTIONS, SETTINGS, Setting
from fusestripe.config.values import from_text, typed
from fusestripe.errors import ConfigError

__all__ = [
    "Given",
    "Key",
    "from_document",
    "from_environ",
    "from_flags",
    "parse_options",
    "routes_of",
    "split_options",
]

Key = tuple[str, str]
"""Section and key, as in TOML."""

_OPTIONS = {setting.option: setting for setting in SETTINGS if setting.option}
_IN_FILES = (*SETTINGS, *JOB_SETTINGS)
_SECTIONS = (*SECTIONS, "job")


class Given(msgspec.Struct, frozen=True):
    """A value and the place it was said: a path in ``document``, or the name of an option or variable."""

    value: Any
    place: tuple[str | int, ...]
    document: Document | None = None

    @property
    def where(self) -> str:
        """As an error message begins: "config.toml:7", "stripe_size"."""
        return self.document.where(*self.place) if self.document else str(self.place[0])


def parse_options(text: str) -> dict[str, str | bool]:
    """``key=value,key`` as in mount(8): a key alone is True; a comma in a value is written ``\\,``.

    Options of mount(8) itself are taken as there. Raises ConfigError for those that cannot be given, as "rw".
    """
    options: dict[str, str | bool] = {}
    for name, value in split_options(text):
        if name == "rw" and value is None:
            raise ConfigError("rw: a mount is only ever read", mend="leave it out")
        standard = read_standard(name, value)
        options |= standard if standard is not None else {name: True if value is None else value}
    return options


def split_options(text: str) -> list[tuple[str, str | None]]:
    """``key=value,key`` in order: a key alone has None; a comma in a value is written ``\\,``."""
    items = [item.replace("\\,", ",").strip() for item in re.split(r"(?<!\\),", text)]
    parts = [item.partition("=") for item in items]
    return [(name, value if equals else None) for name, equals, value in parts if name]


def from_document(document: Document) -> dict[Key, Given]:
    """What the file says outside its routes. Raises ConfigError for a key it should not hold."""
    given: dict[Key, Given] = {}
    for section, table in document.data.items():
        if section not in _SECTIONS:
            raise _unknown_key(document, (section,), "")
        if section == "route":
            continue
        if not isinstance(table, dict):
            raise ConfigError(f'{document.where(section)}: "{section}" is a table', mend=f"write [{section}]")
        given |= _from_table(document, section, table, (section,))
    return given


def routes_of(document: Document) -> list[dict[Key, Given]]:
    """Its routes, in order; each holds its source."""
    tables = document.data.get("route", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f'{document.where("route")}: "route" is a list of tables', mend="write [[route]]")
    routes = []
    for at, table in enumerate(tables):
        route = _from_table(document, "route", table, ("route", at))
        if ("route", "source") not in route:
            raise ConfigError(
                f"{document.where('route', at)}: this route has no source",
                mend='add one, like source = "s3://bucket/prefix"',
            )
        routes.append(route)
    return routes


def from_environ(environ: Mapping[str, str]) -> dict[Key, Given]:
    """What FUSESTRIPE_* say.

    Of the unknown ones only those that look mistyped are refused: Kubernetes sets FUSESTRIPE_PORT and the
    like in every pod beside a service of that name.
    """
    known = {setting.environment: setting for setting in _OPTIONS.values()}
    given: dict[Key, Given] = {}
    for name, text in environ.items():
        if name in known:
            given[known[name].section, known[name].key] = _from_text(known[name], text, name)
        elif name.startswith("FUSESTRIPE_"):
            near = difflib.get_close_matches(name[11:].lower(), _OPTIONS, 1, 0.85)
            if near:
                raise ConfigError(
                    f"unknown environment variable {name}",
                    mend=f"did you mean {_OPTIONS[near[0]].environment}?",
                )
    return given


def from_flags(flags: Mapping[str, object]) -> dict[Key, Given]:
    """What flags and ``-o`` say, by option name; a value of None is not given."""
    given: dict[Key, Given] = {}
    for name, value in flags.items():
        setting = _OPTIONS.get(name)
        if setting is None:
            raise ConfigError(f'unknown option "{name}"', mend=_nearest(name, {key: key for key in _OPTIONS}))
        if value is not None:
            given[setting.section, setting.key] = _from_text(setting, value, name)
    return given


def _from_table(
    document: Document, section: str, table: Mapping[str, object], path: tuple[str | int, ...]
) -> dict[Key, Given]:
    known = {setting.key: setting for setting in _IN_FILES if setting.section == section}
    given: dict[Key, Given] = {}
    for key, value in table.items():
        if key not in known:
            raise _unknown_key(document, (*path, key), section)
        try:
            held = typed(known[key].kind, value, document.directory)
        except ConfigError as error:
            where = document.where(*path, key)
            raise ConfigError(f"{where}: {key} in [{section}]: {error.message}", mend=error.mend) from None
        given[section, key] = Given(held, (*path, key), document)
    return given


def _from_text(setting: Setting, value: object, where: str) -> Given:
    if value is True and setting.kind != "switch":
        raise ConfigError(f"{where} needs a value", mend=f"write {setting.option}=...")
    try:
        if isinstance(value, str):
            return Given(from_text(setting.kind, value, os.getcwd()), (where,))
        return Given(typed(setting.kind, value, os.getcwd()), (where,))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}", mend=error.mend) from None


def _unknown_key(document: Document, path: tuple[str | int, ...], section: str) -> ConfigError:
    """An error that names the key, its line, and the nearest key there is, in this section or another."""
    key = str(path[-1])
    here = {setting.key: f'"{setting.key}"' for setting in _IN_FILES if setting.section == section}
    here |= {setting.option: f'"{setting.key}"' for setting in _IN_FILES if setting.section == section}
    elsewhere = {other: f"[{other}]" for other in _SECTIONS} if not section else {}
    for setting in _IN_FILES:
        name = f'"{setting.key}" in [{setting.section}]'
        elsewhere |= {setting.option: name} if setting.section != section else {}
    place = f"in [{section}]" if section else "at the top"
    near = difflib.get_close_matches(key, _SECTIONS, 1, 0.8) if not section else []
    mend = f"did you mean [{near[0]}]?" if near else _nearest(key, here, elsewhere)
    return ConfigError(f'{document.where(*path)}: unknown key "{key}" {place}', mend=mend)


def _nearest(name: str, *candidates: Mapping[str, str]) -> str:
    """A question with the nearest name, or the list of names; earlier candidates are preferred."""
    for names in candidates:
        near = difflib.get_close_matches(name, [known for known in names if known], 1)
        if near:
            return f"did you mean {names[near[0]]}?"
    known = dict.fromkeys(shown for names in candidates[:1] for shown in names.values())
    known = known or dict.fromkeys(f"[{section}]" for section in _SECTIONS)
    return f"known are {', '.join(known)}"
