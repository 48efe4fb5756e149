"""Puts settings together from all the places they are said, and checks them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
import psutil

from fusestripe.config.checks import check_numbers, check_routes, check_source
from fusestripe.config.document import NO_DOCUMENT, read
from fusestripe.config.settings import SECTIONS, SETTINGS, Settings, default_cache_dir
from fusestripe.config.sources import Given, Key, from_document, from_environ, from_flags, routes_of
from fusestripe.errors import ConfigError

__all__ = ["load"]

_SOURCE: Key = ("route", "source")
_PATH: Key = ("route", "path")


def load(
    source: str | None,
    flags: Mapping[str, object],
    *,
    config: str | None = None,
    environ: Mapping[str, str] = os.environ,
    schemes: Collection[str] | None = None,
) -> Settings:
    """The settings for ``source``, a URL or a TOML file; None: for a command that mounts nothing.

    ``flags`` maps ``-o`` names to values, text or typed; None is "not given". ``config`` is a TOML file to
    go with a URL: where one of its routes shows the URL or a parent of it, that route's endpoint, region,
    profile and anonymous hold for the URL. ``schemes`` are the URL schemes that have an origin; None: any.

    Raises ConfigError: one line with the place, what is wrong, and the mend.
    """
    is_file = source is not None and _is_file(source)
    if is_file and config is not None:
        raise ConfigError(f"two TOML files, {source} and {config}", mend="give one of them")
    if source is not None and is_file:
        document = read(source, _mend_for_source(source))
    elif config is not None:
        document = read(config, "--config names a TOML file with settings")
    else:
        document = NO_DOCUMENT
    given = from_document(document) | from_environ(environ) | from_flags(flags)
    routes = routes_of(document)
    if is_file and not routes:
        raise ConfigError(f"{source}: no route, so nothing to mount", mend="add a [[route]] with a source")
    if source is not None and not is_file:
        check_source(source, "SOURCE", schemes)
        routes = [_route_for(source, routes)]
    said = {key: value for key, value in given.items() if key[0] == "route"}
    routes = [route | said for route in routes]
    check_routes(routes, schemes)
    settings = _build(given, routes, environ)
    check_numbers(settings, given, psutil.virtual_memory().total)
    return settings


def _is_file(source: str) -> bool:
    return "://" not in source and (source.endswith(".toml") or os.path.isfile(source))


def _mend_for_source(path: str) -> str:
    if os.path.isfile(path) and not path.endswith(".toml"):
        directory = Path(os.path.abspath(path)).parent
        return f"name a TOML file or a URL; {directory.as_uri()} is the directory it is in"
    return "give a URL like s3://bucket/prefix, or a TOML file with routes"


def _route_for(url: str, routes: list[dict[Key, Given]]) -> dict[Key, Given]:
    """``url`` at "/", with what the file says of the nearest route that shows it or a parent of it."""
    below = url.rstrip("/") + "/"
    parents = [route for route in routes if below.startswith(route[_SOURCE].value.rstrip("/") + "/")]
    nearest = max(parents, key=lambda route: len(route[_SOURCE].value), default={})
    return nearest | {_SOURCE: Given(url, ("SOURCE",)), _PATH: Given("/", ("SOURCE",))}


def _build(
    given: Mapping[Key, Given], routes: list[dict[Key, Given]], environ: Mapping[str, str]
) -> Settings:
    sections = {section: _values(section, given) for section in SECTIONS if section != "route"}
    if sections["cache"]["dir"] is None:
        sections["cache"]["dir"] = default_cache_dir(environ)
    return msgspec.convert({**sections, "routes": [_values("route", route) for route in routes]}, Settings)


def _values(section: str, given: Mapping[Key, Given]) -> dict[str, object]:
    keys = {setting.key: setting.default for setting in SETTINGS if setting.section == section}
    return keys | {key: given[section, key].value for key in keys if (section, key) in given}
