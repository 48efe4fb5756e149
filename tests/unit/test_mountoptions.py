"""What -o and fstab say: every option of mount(8) and of fusestripe, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusestripe.config import SETTINGS, load
from fusestripe.config.mountoptions import MountRequest, read_mount_options, split_mount_options
from fusestripe.errors import ConfigError

# mount(8), FILESYSTEM-INDEPENDENT MOUNT OPTIONS, as far as mount(8) hands them on.
INDEPENDENT = (
    *("async", "atime", "noatime", "auto", "noauto", "defaults", "noiversion", "iversion", "mand", "nomand"),
    *(
        "_netdev",
        "nofail",
        "relatime",
        "norelatime",
        "strictatime",
        "nostrictatime",
        "lazytime",
        "nolazytime",
    ),
    *("nosuid", "silent", "loud", "owner", "group", "sync", "user", "nouser", "users", "ro", "rw", "dirsync"),
    *("nodev", "diratime", "nodiratime", "nosymfollow", "symfollow", "default_permissions"),
)
NAMES = sorted(setting.option for setting in SETTINGS if setting.option)

names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,12}", fullmatch=True)
values = st.none() | st.text(st.characters(exclude_characters='"\0', exclude_categories=["Cs"]))


def written(name: str, value: str | None, is_quoted: bool) -> str:
    """As a person writes it."""
    if value is None:
        return name
    needs_quotes = is_quoted or "\\," in value or value.endswith("\\")
    return f'{name}="{value}"' if needs_quotes else f"{name}={value}".replace(",", "\\,")


@given(st.lists(st.tuples(names, values, st.booleans())))
def test_what_is_written_is_read_back(options: list[tuple[str, str | None, bool]]) -> None:
    text = ",".join(written(*option) for option in options)
    assert list(split_mount_options(text)) == [(name, value) for name, value, _ in options]


@given(st.text('a=,"\\ '))
def test_any_text_is_read_or_refused(text: str) -> None:
    if text.count('"') % 2:
        with pytest.raises(ConfigError, match="a quote is not closed"):
            list(split_mount_options(text))
    else:
        assert all(name and name == name.strip() for name, _ in split_mount_options(text))


@given(
    st.lists(
        st.sampled_from([*INDEPENDENT, "comment=a b", "x-systemd.automount", "X-mount.mkdir=0755", "user=a"])
    )
)
def test_what_mount_itself_has_changes_nothing_here(options: list[str]) -> None:
    assert read_mount_options(",".join(options)) == MountRequest()


@given(st.lists(st.sampled_from(["noexec", "exec", "ro", "noatime"])))
def test_the_last_word_on_programs_counts(options: list[str]) -> None:
    said = [option for option in options if option.endswith("exec")]
    flags = read_mount_options(",".join(options)).flags
    assert flags == ({"noexec": said[-1] == "noexec"} if said else {})


@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["1", "a,b", "", None])))
def test_every_setting_is_one_by_its_name(options: dict[str, str | None]) -> None:
    text = ",".join(written(name, value, is_quoted=True) for name, value in options.items())
    expected = {name: True if value is None else value for name, value in options.items()}
    assert read_mount_options(text) == MountRequest(expected)


@given(st.lists(names, max_size=4), st.booleans())
def test_what_nobody_knows_is_refused_by_name_or_left_out(unknown: list[str], has_value: bool) -> None:
    known = {
        *INDEPENDENT,
        *NAMES,
        "exec",
        "suid",
        "dev",
        "remount",
        "config",
        "comment",
        "allow_root",
        "env_file",
    }
    unknown = [name for name in unknown if name not in known and not name.startswith(("x-", "X-"))]
    text = ",".join(["ttl=5", *(f"{name}=1" if has_value else name for name in unknown), "noexec"])
    request = read_mount_options(text, is_sloppy=True)
    assert request == MountRequest({"ttl": "5", "noexec": True}, ignored=tuple(unknown))
    if unknown:
        with pytest.raises(ConfigError, match=f'^unknown option "{re.escape(unknown[0])}": '):
            read_mount_options(text)


REFUSED = [
    ("cache_dirr=/x", 'unknown option "cache_dirr": did you mean cache_dir?'),
    ("cache-dir=/x", 'unknown option "cache-dir": did you mean cache_dir?'),
    ("noatim", 'unknown option "noatim": did you mean noatime?'),
    ("suid", "suid: set-user-ID bits count for nothing in what a store holds: leave it out"),
    ("dev", "dev: a store holds no devices: leave it out"),
    ("ro=1", "ro takes no value: write ro"),
    ("exec=yes", "exec takes no value: write exec"),
    ("config", "config names a file: write config=/etc/fusestripe/..."),
    ("env_file=", "env_file names a file: write env_file=/etc/fusestripe/..."),
    ('ttl="5', 'a quote is not closed in \'ttl="5\': write it like peers="node1,node2"'),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_a_refusal_is_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_mount_options(text)
    assert str(refused.value) == message


def test_what_is_beside_settings() -> None:
    request = read_mount_options('config=/a b.toml,env_file=/c,peers="a:1,b:2",allow_other')
    assert request == MountRequest({"peers": "a:1,b:2", "allow_other": True}, "/a b.toml", "/c")


def test_what_is_read_are_settings(tmp_path: Path) -> None:
    settings = load(
        "s3://bucket",
        read_mount_options("rw,noexec,uid=7,gid=root,umask=027,peers=a:1\\,b:2,fsname=x").flags,
        environ={},
    )
    mount = settings.mount
    assert (mount.noexec, mount.uid, mount.gid, mount.umask, mount.fsname) == (True, 7, 0, 0o027, "x")
    assert settings.peers.members == ("a:1", "b:2")


ROUTE = '[[route]]\npath = "/{0}"\nsource = "s3://{0}"\n'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (ROUTE.format("a"), ""),
        (ROUTE.format("a") + ROUTE.format("b"), "{file}"),
        ('[mount]\nfsname = "all"\n' + ROUTE.format("a") + ROUTE.format("b"), "all"),
    ],
    ids=["one", "several", "named"],
)
def test_what_several_routes_are_called(text: str, shown: str, tmp_path: Path) -> None:
    """By their file: one route is called by its source."""
    (tmp_path / "c.toml").write_text(text)
    settings = load(str(tmp_path / "c.toml"), {}, environ={})
    assert settings.mount.fsname == shown.format(file=tmp_path / "c.toml")


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("uid=-1", "uid: '-1' is not a user of this machine: name a user, or write the number"),
        ("uid=4294967295", "uid: '4294967295' is not a user: name a user, or write the number"),
        (
            "gid=no-such-group",
            "gid: 'no-such-group' is not a group of this machine: name a group, or write the",
        ),
        ("umask=1777", "umask: '1777' is not a umask: write it in octal and, in TOML, as text: \"022\""),
        ("umask", "umask needs a value: write umask=..."),
    ],
)
def test_owners_and_modes_that_are_none(option: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load("s3://bucket", read_mount_options(option).flags, environ={})
    assert str(refused.value).startswith(says)


def test_a_umask_in_toml_is_text(tmp_path: Path) -> None:
    """A number there would be decimal."""
    (tmp_path / "c.toml").write_text("[mount]\numask = 22\n" + ROUTE.format("a"))
    with pytest.raises(
        ConfigError, match=r"c\.toml:2: umask in \[mount\]: 22 is not a umask: write it in octal"
    ):
        load(str(tmp_path / "c.toml"), {}, environ={})
