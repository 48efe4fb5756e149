"""What a job of a batch system asks for: in the job's comment, or in a file of its working directory."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from fusestripe.config.document import Document, read
from fusestripe.config.settings import JOB_SETTINGS, SETTINGS
from fusestripe.config.sources import Given, from_document, split_options
from fusestripe.config.values import from_text, typed
from fusestripe.errors import ConfigError

__all__ = ["FILE", "JobRequest", "request_of"]

FILE = "fusestripe.toml"
"""Asks by its table [job]; one without that table is there for other uses."""

_WORD = re.compile(r"(?:^|\s)fusestripe:(\S*)", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_KEYS = {setting.key: setting for setting in JOB_SETTINGS}
_OPTIONS = {setting.option for setting in SETTINGS if setting.option}
_EXAMPLE = "write it like fusestripe:source=s3://bucket/prefix,prefetch=step-9000, without spaces"


class JobRequest(msgspec.Struct, frozen=True):
    """One mount for a job.

    ``source`` is a URL or the absolute path of a TOML file, ``flags`` are settings by their ``-o`` names.
    ``prefetch`` are paths of the mounted tree without a "/" before them, "." is all of it. ``wait``: seconds.
    ``mountpoint`` is "" where the job leaves it to the administrator.
    """

    source: str
    flags: Mapping[str, str | bool] = {}
    prefetch: tuple[str, ...] = ()
    latest: bool = False
    rank_local: bool = False
    pin: bool = False
    wait: float = 0.0
    mountpoint: str = ""

    def mountpoint_for(self, job: str) -> str:
        """Where to mount for the job with this id; "" as above."""
        return self.mountpoint.replace("%j", job)


def request_of(comment: str, directory: str) -> JobRequest | None:
    """What a job with ``comment`` and the working directory ``directory`` asks for; None: nothing.

    The comment asks with a word "fusestripe:" and, behind that, key=value by commas. What it says stands over
    the file; where it names a source, that is the source, and FILE is not looked at. Raises ConfigError.
    """
    said = _from_comment(comment)
    source = said.pop("source", None) if said is not None else None
    name = os.path.join(directory, FILE) if source is None else str(source)
    document = None
    if "://" not in name:
        name = os.path.join(directory, name)
        if source is not None or os.path.lexists(name):
            document = read(name, "a source is a URL like s3://bucket/prefix, or a TOML file with routes")
    if said is None and (document is None or "job" not in document.data):
        return None
    if source is None and document is None:
        raise ConfigError(
            f"comment: there is no source, and no {FILE} in {directory}",
            mend="add source=s3://bucket/prefix",
        )
    given = _of_document(document) | {key: value for key, value in (said or {}).items() if key in _KEYS}
    flags = {key: value for key, value in (said or {}).items() if key not in _KEYS}
    return _checked(name, flags, given)


def _from_comment(comment: str) -> dict[str, Any] | None:
    """By key, what the comment says: of the job's settings their values, all else as it stands there."""
    words = _WORD.findall(comment)
    if not words:
        return None
    if len(words) > 1:
        raise ConfigError("comment: fusestripe: is there twice", mend="say all behind the first")
    (text,) = words
    if not text or text.endswith(","):
        after = "a comma" if text else '"fusestripe:"'
        raise ConfigError(f"comment: a space, or nothing, follows {after}", mend=_EXAMPLE)
    said: dict[str, Any] = {}
    for name, value in split_options(text):
        _check_key(name, name in said and name != "prefetch")
        is_switch = name in _OPTIONS or (name in _KEYS and _KEYS[name].kind == "switch")
        if value is None and not is_switch:
            raise ConfigError(f"comment: {name} needs a value", mend=f"write {name}=...")
        said[name] = _value(name, value, said.get(name, ()))
    return said


def _check_key(name: str, is_again: bool) -> None:
    if "://" in name:
        raise ConfigError("comment: a URL without a key before it", mend="write source=URL")
    known = ["source", *_KEYS, *sorted(_OPTIONS)]
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        mend = f'did you mean "{near[0]}"?' if near else f"known are {', '.join(known)}"
        raise ConfigError(f"comment: unknown key {name!r}", mend=mend)
    if is_again:
        raise ConfigError(f"comment: {name} is there twice", mend="say it once")


def _value(name: str, text: str | None, before: tuple[str, ...]) -> object:
    if name not in _KEYS:
        return True if text is None else text
    if name == "prefetch":
        return (*before, text)
    try:
        return from_text(_KEYS[name].kind, text, "/") if text is not None else typed("switch", True, "/")
    except ConfigError as error:
        raise ConfigError(f"comment: {name}: {error.message}", mend=error.mend) from None


def _of_document(document: Document | None) -> dict[str, Any]:
    """What its [job] says, by key; each with its place."""
    given = from_document(document) if document is not None else {}
    return {key: value for (section, key), value in given.items() if section == "job"}


def _checked(source: str, flags: Mapping[str, str | bool], given: Mapping[str, Any]) -> JobRequest:
    places = {key: said.where if isinstance(said, Given) else "comment" for key, said in given.items()}
    values = {key: said.value if isinstance(said, Given) else said for key, said in given.items()}
    for key in ("prefetch", "mountpoint"):
        texts = values.get(key, ())
        for text in (texts,) if isinstance(texts, str) else texts:
            if _CONTROL.search(text):
                raise ConfigError(f"{places[key]}: a control character in {key}", mend="name another")
    if values.get("latest") and not values.get("prefetch"):
        values["prefetch"] = (".",)
    values["prefetch"] = tuple(_path(path, places.get("prefetch", "")) for path in values.get("prefetch", ()))
    for key in ("rank_local", "pin", "wait"):
        if values.get(key) and not values["prefetch"]:
            raise ConfigError(f"{places[key]}: {key}, but nothing to prefetch", mend="name it: prefetch")
    mountpoint = values.get("mountpoint", "")
    if mountpoint and not os.path.isabs(mountpoint):
        raise ConfigError(f"{places['mountpoint']}: {mountpoint!r} is relative", mend="write the whole path")
    return JobRequest(source, flags, **values)


def _path(path: str, where: str) -> str:
    """``path`` of the mounted tree, as the request holds it."""
    if "://" in path:
        raise ConfigError(f"{where}: prefetch takes paths below the source", mend='write it like "step-9000"')
    if ".." in path.split("/"):
        raise ConfigError(f'{where}: ".." in {path!r}', mend="name a path below the source")
    return os.path.normpath(path.lstrip("/") or ".")
