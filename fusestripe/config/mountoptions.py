"""What mount(8) and fstab say with ``-o``, read as settings. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

import msgspec

from fusestripe.config.settings import SETTINGS
from fusestripe.errors import ConfigError

__all__ = ["MountRequest", "read_mount_options", "read_standard", "split_mount_options"]

_SETTINGS = frozenset(setting.option for setting in SETTINGS if setting.option)
_FILES = frozenset(("config", "env_file"))

_HOLD_ANYWAY = frozenset(
    (
        # Every mount is so: nothing is written, nor is any time of access kept.
        *("ro", "defaults", "nosuid", "nodev", "nosymfollow", "default_permissions"),
        *("sync", "async", "dirsync", "silent", "loud", "mand", "nomand", "iversion", "noiversion"),
        *("atime", "noatime", "diratime", "nodiratime", "relatime", "norelatime"),
        *("strictatime", "nostrictatime", "lazytime", "nolazytime", "symfollow"),
        # mount(8) passes it for each entry that does not say "ro", so nobody need have asked for it.
        "rw",
        # Of who mounts, and when: mount(8) and init have done by them.
        *("auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "owner", "group"),
    )
)
"""Nothing is left to do for these (mount(8), FILESYSTEM-INDEPENDENT MOUNT OPTIONS)."""

_REFUSED: Mapping[str, tuple[str, str]] = {
    "suid": ("set-user-ID bits count for nothing in what a store holds", "leave it out"),
    "dev": ("a store holds no devices", "leave it out"),
    "remount": ("a mount cannot be changed while it is there", "umount it, and mount it anew"),
    "allow_root": ("only who mounts can be let in, or all", "take allow_other, and modes by umask= and uid="),
}


class MountRequest(msgspec.Struct, frozen=True):
    """What an option string asks for.

    ``flags`` are settings by their names in ``-o``. ``config`` is a TOML file that goes with a URL,
    ``env_file`` one with environment variables; "" where there is none. ``ignored`` are unknown options.
    """

    flags: Mapping[str, str | bool] = {}
    config: str = ""
    env_file: str = ""
    ignored: tuple[str, ...] = ()


def read_mount_options(text: str, *, is_sloppy: bool = False) -> MountRequest:
    """What ``text``, as in fstab's fourth field, asks for. The last word on something counts.

    Raises ConfigError for an option that nobody knows, unless ``is_sloppy``, and for what cannot be given.
    """
    flags: dict[str, str | bool] = {}
    files: dict[str, str] = {}
    ignored: list[str] = []
    for name, value in split_mount_options(text):
        standard = read_standard(name, value)
        if standard is not None:
            flags |= standard
        elif name in _SETTINGS:
            flags[name] = True if value is None else value
        elif name in _FILES:
            files[name] = _path(name, value)
        elif is_sloppy:
            ignored.append(name)
        else:
            raise ConfigError(f'unknown option "{name}"', mend=_nearest(name))
    return MountRequest(flags, files.get("config", ""), files.get("env_file", ""), tuple(ignored))


def read_standard(name: str, value: str | None) -> dict[str, bool] | None:
    """The settings that an option of mount(8) is here, none where nothing is left to do; None: it is no such.

    Raises ConfigError for one that cannot be given.
    """
    if name in _REFUSED:
        what, mend = _REFUSED[name]
        raise ConfigError(f"{name}: {what}", mend=mend)
    if name == "comment" or name.startswith(("x-", "X-")):  # remarks, and for other programs (mount(8))
        return {}
    if name not in _HOLD_ANYWAY and name not in ("exec", "noexec"):
        return None
    if name == "noexec" and value is not None:  # the setting, which has one
        return None
    if value is not None and name != "user":  # which mount(8) has as user=NAME too
        raise ConfigError(f"{name} takes no value", mend=f"write {name}")
    return {"noexec": name == "noexec"} if name in ("exec", "noexec") else {}


def split_mount_options(text: str) -> Iterator[tuple[str, str | None]]:
    r"""``name=value,name`` in order; a name alone has None.

    As libmount has it (ul_optstr_next in util-linux): a comma does not end an option between double quotes,
    nor behind a backslash outside of them. Quotes, and that backslash, are no part of the value. Raises
    ConfigError for a quote that is not closed.
    """
    for item in _split(text):
        name, equals, value = item.partition("=")
        if name.strip():
            yield name.strip(), value if equals else None


def _split(text: str) -> Iterator[str]:
    item, is_quoted, at = "", False, 0
    while at < len(text):
        letter = text[at]
        if letter == '"':
            is_quoted = not is_quoted
        elif not is_quoted and text.startswith("\\,", at):
            item, at = item + ",", at + 1
        elif letter == "," and not is_quoted:
            yield item
            item = ""
        else:
            item += letter
        at += 1
    if is_quoted:
        raise ConfigError(f"a quote is not closed in {text!r}", mend='write it like peers="node1,node2"')
    yield item


def _path(name: str, value: str | None) -> str:
    if not value:
        raise ConfigError(f"{name} names a file", mend=f"write {name}=/etc/fusestripe/...")
    return value


def _nearest(name: str) -> str:
    known = sorted(_SETTINGS | _FILES)
    near = difflib.get_close_matches(name, [*known, *_HOLD_ANYWAY, "exec", "noexec"], 1)
    return f"did you mean {near[0]}?" if near else f"known are those of mount(8) and {', '.join(known)}"
