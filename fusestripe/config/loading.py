"""Puts settings together from all the places they are said, and checks them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from fusestripe.config.checks import check_numbers, check_routes, check_source
from fusestripe.config.document import NO_DOCUMENT, read
from fusestripe.config.machine import Machine, default_budget, this_machine
from fusestripe.config.settings import SECTIONS, SETTINGS, Settings, default_cache_dir
from fusestripe.config.sources import Given, Key, from_document, from_environ, from_flags, routes_of
from fusestripe.config.stores import split_endpoint, takes
from fusestripe.errors import ConfigError

__all__ = ["load", "point_of"]

_SOURCE: Key = ("route", "source")
_PATH: Key = ("route", "path")
_ENDPOINT: Key = ("route", "endpoint")
_FSNAME: Key = ("mount", "fsname")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST")
"""Where the stores' own tools are told an endpoint."""


def load(
    source: str | None,
    flags: Mapping[str, object],
    *,
    config: str | None = None,
    environ: Mapping[str, str] = os.environ,
    schemes: Collection[str] | None = None,
    machine: Machine | None = None,
) -> Settings:
    """The settings for ``source``, a URL or a TOML file; None: for a command that mounts nothing.

    ``flags`` maps ``-o`` names to values, text or typed; None is "not given". ``config`` is a TOML file to
    go with a URL: where one of its routes shows the URL or a parent of it, that route's endpoint, region,
    profile and anonymous hold for the URL. ``schemes`` are the URL schemes that have an origin; None: any.
    ``machine`` is where it all has to fit; None: this one.

    What a route says of itself stands over what is said for all: the environment, and flags where a file is
    mounted; with a URL flags are of that URL. What is said for all is for stores that have such a setting.

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
    around, said = from_environ(environ), from_flags(flags)
    given = from_document(document) | around | said
    routes = routes_of(document)
    if is_file and not routes:
        raise ConfigError(f"{source}: no route, so nothing to mount", mend="add a [[route]] with a source")
    if source is not None and not is_file:
        check_source(source, "SOURCE", schemes)
        routes = [_route_for(source, routes) | _of_routes(said)]
    general = _of_routes(around | said)
    routes = [_with_endpoint(_with_general(route, general), general, environ) for route in routes]
    check_routes(routes, schemes)
    place = this_machine() if machine is None else machine
    if source is None:  # reads nothing, and takes no memory for it
        place = Machine(place.memory)
    if is_file:
        given = _with_name(given, source, routes)
    settings = _build(given, routes, environ, default_budget(place))
    check_numbers(settings, given, place)
    return settings


def point_of(place: str) -> str:
    """The mountpoint that ``place`` names: itself, or the one that the TOML file ``place`` says.

    Raises ConfigError where it is a file that cannot be read or says none.
    """
    if not place.endswith(".toml") or not os.path.isfile(place):
        return place
    given = from_document(read(place, "name a mountpoint, or a TOML file with one")).get(("mount", "point"))
    if given is None:
        raise ConfigError(f"{place}: where it is mounted is not said", mend="name the mountpoint")
    return str(given.value)


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


def _of_routes(given: Mapping[Key, Given]) -> dict[Key, Given]:
    return {key: value for key, value in given.items() if key[0] == "route"}


def _with_general(route: dict[Key, Given], general: Mapping[Key, Given]) -> dict[Key, Given]:
    """``route`` with what is said for all and concerns its store."""
    url = route[_SOURCE].value
    return {key: value for key, value in general.items() if takes(url, key[1])} | route


def _with_endpoint(
    route: dict[Key, Given], general: Mapping[Key, Given], environ: Mapping[str, str]
) -> dict[Key, Given]:
    """``route`` with the endpoint that its URL names, if it does."""
    source = route[_SOURCE]
    known = [given[_ENDPOINT].value for given in (route, general) if _ENDPOINT in given]
    known += [environ.get(name, "") for name in _ENDPOINT_VARIABLES]
    url, endpoint = split_endpoint(source.value, known)
    if not endpoint:
        return route
    named = {_SOURCE: url, _ENDPOINT: endpoint}
    return route | {key: Given(value, source.place, source.document) for key, value in named.items()}


def _with_name(given: dict[Key, Given], file: str | None, routes: list[dict[Key, Given]]) -> dict[Key, Given]:
    """``given`` with the path of ``file`` as what is shown as mounted, where several routes are."""
    if file is None or len(routes) == 1 or _FSNAME in given:
        return given
    return given | {_FSNAME: Given(os.path.abspath(file), ("SOURCE",))}


def _build(
    given: Mapping[Key, Given], routes: list[dict[Key, Given]], environ: Mapping[str, str], budget: int
) -> Settings:
    sections = {section: _values(section, given) for section in SECTIONS if section != "route"}
    if sections["cache"]["dir"] is None:
        sections["cache"]["dir"] = default_cache_dir(environ)
    if ("stripes", "memory") not in given:
        sections["stripes"]["memory"] = budget
    return msgspec.convert({**sections, "routes": [_values("route", route) for route in routes]}, Settings)


def _values(section: str, given: Mapping[Key, Given]) -> dict[str, object]:
    keys = {setting.key: setting.default for setting in SETTINGS if setting.section == section}
    return keys | {key: given[section, key].value for key in keys if (section, key) in given}
