"""What the small files of a checkpoint name, and whether all of that is there."""

from __future__ import annotations

import msgspec

from fusestripe.checkpoints.parts import Files, Index, joined

__all__ = ["NAMES_MAXIMUM", "Unreadable", "lacking", "names_in_json", "names_in_tag", "tag_of"]

NAMES_MAXIMUM = 256
"""Bytes of a name in a file that holds one (NAME_MAX of Linux is 255)."""


class Unreadable(Exception):
    """A small file is not what its name says; the message goes after its name."""


class _Weights(msgspec.Struct):
    weight_map: dict[str, str]


def names_in_json(data: bytes) -> dict[str, int]:
    """The shards that an index of safetensors (or of pytorch_model.bin) names; each has a byte at least."""
    try:
        shards = msgspec.json.decode(data, type=_Weights).weight_map.values()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unreadable("is no index of shards") from None
    return dict.fromkeys(shards, 1)


def names_in_tag(data: bytes) -> dict[str, int]:
    """The directory that `latest` of DeepSpeed names, with a "/" behind it."""
    name = tag_of(data)
    if not name:
        raise Unreadable("names no directory")
    return {f"{name}/": 0}


def tag_of(data: bytes) -> str:
    """The name that is all of a file; "" where it is none."""
    try:
        name = data.decode().strip()
    except UnicodeDecodeError:
        return ""
    bad = not name.isprintable() or "/" in name or name in (".", "..") or len(data) > NAMES_MAXIMUM
    return "" if bad else name


def lacking(index: Index, named: dict[str, int], files: Files) -> str:
    """What is missing of that which ``index`` names: a few words, or ""."""
    directory = index.path.rpartition("/")[0]
    short = index.path.rpartition("/")[2]
    for name in sorted(named):
        if name.startswith("/") or ".." in name.split("/"):
            return f"{index.path} names a file elsewhere"
        path = joined(directory, name)
        if name.endswith("/"):
            if not any(other.startswith(path) for other in files):
                return f"{name} is missing, which {short} names"
            continue
        size = files.get(path)
        if size is None:
            return f"{path} is missing"
        if size < named[name]:
            return f"{path} has {size:,} bytes of {named[name]:,}"
    return ""
