"""Settings: where they come from, which stands over which, and what bad input gets."""

# ruff: noqa: E501 - the tables of bad input have a row a line

from __future__ import annotations

import os
import string
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fusestripe.cgroups import MemoryLimit
from fusestripe.config import SETTINGS, Route, Settings, default_cache_dir, load, parse_options, point_of
from fusestripe.config.document import read
from fusestripe.config.machine import OWN_MEMORY, Machine, default_budget, this_machine
from fusestripe.errors import ConfigError
from fusestripe.origins.registry import FACTORIES
from fusestripe.units import GIB, MIB

URL = "s3://bucket/prefix"
WHOLE = """\
# what a node of the cluster uses
[cache]
dir = "/nvme/fusestripe"
size = "500GiB"
reserve = 0

[stripes]
size = "16MiB"
count = 32
memory = "2GiB"

[metadata]
ttl = 600
negative_ttl = 0.5

[mount]
allow_other = true
timeout = 60
log_level = "debug"

[[route]]
path = "/ckpt"
source = "s3://checkpoints"

[[route]]
path = "/models/llm"
source = "s3://models/llm"
endpoint = "http://127.0.0.1:8333"
region = "eu-west-1"
profile = "ml"
anonymous = true
"""


def write(directory: Path, text: str) -> str:
    path = directory / "config.toml"
    path.write_text(text)
    return str(path)


def test_defaults() -> None:
    settings = load(URL, {}, environ={}, machine=Machine(64 * GIB))
    assert settings.cache.size is None
    assert settings.cache.reserve == GIB
    assert (settings.stripes.size, settings.stripes.count, settings.stripes.memory) == (8 * MIB, -1, GIB)
    assert (settings.metadata.ttl, settings.metadata.negative_ttl) == (60, 5)
    assert (settings.mount.allow_other, settings.mount.timeout, settings.mount.log_level) == (
        False,
        300,
        "info",
    )
    assert settings.routes == (Route("/", URL),)


def test_a_whole_file(tmp_path: Path) -> None:
    settings = load(write(tmp_path, WHOLE), {}, environ={})
    assert settings.cache.dir == "/nvme/fusestripe"
    assert (settings.cache.size, settings.cache.reserve) == (500 * GIB, 0)
    assert (settings.stripes.size, settings.stripes.count, settings.stripes.memory) == (16 * MIB, 32, 2 * GIB)
    assert (settings.metadata.ttl, settings.metadata.negative_ttl) == (600, 0.5)
    assert (settings.mount.allow_other, settings.mount.timeout, settings.mount.log_level) == (
        True,
        60,
        "debug",
    )
    assert settings.routes == (
        Route("/ckpt", "s3://checkpoints"),
        Route("/models/llm", "s3://models/llm", "http://127.0.0.1:8333", "eu-west-1", "ml", True),
    )


def test_every_setting_can_be_said_everywhere(tmp_path: Path) -> None:
    """The table is the one truth: what is in it works in TOML, environment and -o."""
    samples: dict[str, tuple[str, str, Any]] = {
        "size": ("16777216", '"16MiB"', 16 * MIB),
        "count": ("7", "7", 7),
        "seconds": ("7.5", "7.5", 7.5),
        "switch": ("yes", "true", True),
        "text": ("http://h", '"http://h"', "http://h"),
        "texts": ("a:1 b", '["a:1", "b"]', ("a:1", "b")),
        "directory": ("/d", '"/d"', "/d"),
        "file": ("/f", '"/f"', "/f"),
        "user": ("7", "7", 7),
        "group": ("7", "7", 7),
        "mask": ("027", '"027"', 0o027),
        "level": ("error", '"error"', "error"),
    }
    for setting in SETTINGS:
        if not setting.option:
            continue
        text, toml, value = samples[setting.kind]
        url = "hdfs://name/path" if setting.key == "client" else URL
        if setting.section == "route":
            file = f'[[route]]\nsource = "{url}"\n{setting.key} = {toml}\n'
        else:
            file = f'[{setting.section}]\n{setting.key} = {toml}\n[[route]]\nsource = "{URL}"\n'
        for settings in (
            load(write(tmp_path, file), {}, environ={}),
            load(url, {}, environ={setting.environment: text}),
            load(url, parse_options(f"{setting.option}={text}"), environ={}),
        ):
            part = settings.routes[0] if setting.section == "route" else getattr(settings, setting.section)
            assert getattr(part, setting.key) == value, setting


def test_flags_stand_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = write(
        tmp_path, '[stripes]\nsize = "1MiB"\n[[route]]\nsource = "s3://b"\nendpoint = "http://file"\n'
    )
    environ = {"FUSESTRIPE_STRIPE_SIZE": "2MiB", "FUSESTRIPE_ENDPOINT": "http://environment"}
    flags = {"stripe_size": "4MiB", "endpoint": "http://flag"}
    cases: list[tuple[dict[str, Any], dict[str, str], int, str]] = [
        ({}, {}, 1, "http://file"),
        ({}, environ, 2, "http://file"),  # of a route's own, so it stays
        (flags, environ, 4, "http://file"),
        ({"stripe_size": None}, environ, 2, "http://file"),
    ]
    for said, around, size, endpoint in cases:
        settings = load(file, said, environ=around)
        assert (settings.stripes.size, settings.routes[0].endpoint) == (size * MIB, endpoint)
    # With a URL, flags are of that URL.
    for said, around, endpoint in (
        ({}, environ, "http://file"),
        (flags, environ, "http://flag"),
    ):
        assert load("s3://b/x", said, config=file, environ=around).routes[0].endpoint == endpoint
    for said, endpoint in (({}, "http://environment"), (flags, "http://flag")):
        assert load("s3://b/x", said, environ=environ).routes[0].endpoint == endpoint


def test_what_is_said_for_all_is_for_stores_that_have_such_a_setting(tmp_path: Path) -> None:
    sources = [scheme + "://h/" + scheme for scheme in FACTORIES if scheme != "file"] + ["file:///file"]
    text = "".join(f'[[route]]\npath = "/{at}"\nsource = "{url}"\n' for at, url in enumerate(sources))
    general = {"endpoint": "http://h", "region": "r", "profile": "p", "anonymous": True, "client": "libhdfs"}
    for said, environ in (
        (general, {}),
        ({}, {f"FUSESTRIPE_{name.upper()}": str(value) for name, value in general.items()}),
    ):
        routes = load(write(tmp_path, text), said, environ=environ, schemes=FACTORIES).routes
        assert len(routes) == len(FACTORIES)
        for route in routes:
            scheme = route.source.partition(":")[0]
            expected = Route(route.path, route.source)
            if scheme in ("s3", "gs", "az", "abfs", "abfss"):
                expected = replace(expected, endpoint="http://h", anonymous=True)
            if scheme in ("http", "https"):
                expected = replace(expected, anonymous=True)
            if scheme == "s3":
                expected = replace(expected, region="r", profile="p")
            if scheme == "hdfs":
                expected = replace(expected, client="libhdfs")
            assert route == expected


@pytest.mark.parametrize(
    ("url", "environ", "source", "endpoint"),
    [
        ("s3://b/x?endpoint=127.0.0.1:8333", {}, "s3://b/x", "http://127.0.0.1:8333"),
        ("s3://b?endpoint=https://h:9000", {}, "s3://b", "https://h:9000"),
        ("s3://b?endpoint=s3.example.com", {}, "s3://b", "https://s3.example.com"),
        ("s3://b?endpoint=h:9000", {"FUSESTRIPE_ENDPOINT": "https://h:9000"}, "s3://b", "https://h:9000"),
        ("s3://b?endpoint=h:9000", {"AWS_ENDPOINT_URL": "https://h:9000/"}, "s3://b", "https://h:9000/"),
        ("s3://b?endpoint=h:9000", {"FUSESTRIPE_ENDPOINT": "https://other"}, "s3://b", "http://h:9000"),
        ("gs://b/x?endpoint=localhost", {}, "gs://b/x", "http://localhost"),
        ("s3://b/x?y", {}, "s3://b/x?y", ""),
    ],
)
def test_a_url_is_taken_as_it_is_shown_with_its_endpoint(
    tmp_path: Path, url: str, environ: dict[str, str], source: str, endpoint: str
) -> None:
    assert load(url, {}, environ=environ).routes == (Route("/", source, endpoint),)
    file = write(tmp_path, f'[[route]]\nsource = "{url}"\n')
    assert load(file, {}, environ=environ).routes == (Route("/", source, endpoint),)


def test_a_file_beside_a_url_gives_the_nearest_route_that_shows_it(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        '[[route]]\npath="/a"\nsource="s3://b"\nprofile="outer"\n'
        '[[route]]\npath="/c"\nsource="s3://b/x/"\nprofile="inner"\n',
    )
    for url, profile in (
        ("s3://b/x/y", "inner"),
        ("s3://b/xy", "outer"),
        ("s3://b", "outer"),
        ("s3://bb", ""),
    ):
        routes = load(url, {}, config=file, environ={}).routes
        assert routes == (Route("/", url, profile=profile),)


def test_settings_survive_the_way_to_the_daemon(tmp_path: Path) -> None:
    settings = load(write(tmp_path, WHOLE), {}, environ={})
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, f'[cache]\ndir = "nvme"\n[[route]]\nsource = "{URL}"\n')
    monkeypatch.chdir("/")
    assert load(file, {}, environ={}).cache.dir == str(tmp_path / "nvme")
    assert load(file, {"cache_dir": "nvme"}, environ={}).cache.dir == "/nvme"
    monkeypatch.setenv("HOME", "/home/somebody")
    assert load(file, {"cache_dir": "~/nvme"}, environ={}).cache.dir == "/home/somebody/nvme"


def test_a_file_can_say_where_it_is_mounted(tmp_path: Path) -> None:
    route = f'[[route]]\nsource = "{URL}"\n'
    assert load(write(tmp_path, route), {}, environ={}).mount.point == ""
    for point, place in (("/mnt/ckpt/", "/mnt/ckpt"), ("mnt", f"{tmp_path}/mnt")):
        file = write(tmp_path, f'[mount]\npoint = "{point}"\n{route}')
        assert load(file, {}, environ={}).mount.point == place


def test_a_file_stands_for_where_it_is_mounted(tmp_path: Path) -> None:
    file = write(tmp_path, f'[mount]\npoint = "/mnt/ckpt"\n[[route]]\nsource = "{URL}"\n')
    assert point_of(file) == "/mnt/ckpt"
    assert point_of("/mnt/other") == "/mnt/other"
    assert point_of("/mnt/no-such.toml") == "/mnt/no-such.toml"
    (tmp_path / "directory.toml").mkdir()
    assert point_of(f"{tmp_path}/directory.toml") == f"{tmp_path}/directory.toml"
    file = write(tmp_path, f'[[route]]\nsource = "{URL}"\n')
    with pytest.raises(ConfigError) as refused:
        point_of(file)
    assert str(refused.value) == f"{file}: where it is mounted is not said: name the mountpoint"


def test_the_cache_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert default_cache_dir({}) == "/home/somebody/.cache/fusestripe"
    assert default_cache_dir({"XDG_CACHE_HOME": "/x"}) == "/x/fusestripe"
    assert default_cache_dir({"XDG_CACHE_HOME": "relative"}) == "/home/somebody/.cache/fusestripe"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_cache_dir({"XDG_CACHE_HOME": "/x"}) == "/var/cache/fusestripe"


ROUTE = '[[route]]\nsource = "s3://b"\n'
BAD_FILES = [
    (
        "[stripes]\n\nstripe_sise = 4\n",
        'config.toml:3: unknown key "stripe_sise" in [stripes]: did you mean "size"?',
    ),
    ("[stripes]\nmemry = 4\n", 'config.toml:2: unknown key "memry" in [stripes]: did you mean "memory"?'),
    (
        "[cache]\nstripe_count = 4\n",
        'config.toml:2: unknown key "stripe_count" in [cache]: did you mean "count" in [stripes]?',
    ),
    ("[cache]\nqqq = 4\n", 'config.toml:2: unknown key "qqq" in [cache]: known are "dir", "size", "reserve"'),
    ("# c\n[stripe]\nsize = 4\n", 'config.toml:2: unknown key "stripe" at the top: did you mean [stripes]?'),
    (
        "stripe_size = 4\n",
        'config.toml:1: unknown key "stripe_size" at the top: did you mean "size" in [stripes]?',
    ),
    ("cache.dirr = 4\n", 'config.toml:1: unknown key "dirr" in [cache]: did you mean "dir"?'),
    (
        ROUTE + '\n[[route]]\nsource = "s3://c"\nendpiont = ""\n',
        'config.toml:6: unknown key "endpiont" in [route]: did you mean "endpoint"?',
    ),
    (
        '[cache]\ndir = """\n[stripes]\nsise = 1\n"""\n[mount]\ntimeot = 1\n',
        'config.toml:7: unknown key "timeot" in [mount]: did you mean "timeout"?',
    ),
    (
        "[stripes]\nsize = true\n",
        'config.toml:2: size in [stripes]: true is not a size: write it like "8MiB", "500GiB" or 4096',
    ),
    (
        "[stripes]\nsize = -4096\n",
        'config.toml:2: size in [stripes]: -4096 is not a size: write it like "8MiB", "500GiB" or 4096',
    ),
    (
        '[stripes]\nsize = "8 apples"\n',
        'config.toml:2: size in [stripes]: \'8 apples\' is not a size: write it like "8MiB", "500GiB" or 4096',
    ),
    ('[stripes]\ncount = "16"\n', "config.toml:2: count in [stripes]: '16' is not a whole number"),
    (
        "[metadata]\nttl = -1\n",
        'config.toml:2: ttl in [metadata]: -1 is not a number of seconds, 0 or more: write it like 60, "60s" or "5m"',
    ),
    (
        "[metadata]\nttl = inf\n",
        'config.toml:2: ttl in [metadata]: inf is not a number of seconds, 0 or more: write it like 60, "60s" or "5m"',
    ),
    ('[mount]\nallow_other = "yes"\n', "config.toml:2: allow_other in [mount]: 'yes' is not true or false"),
    (
        '[mount]\nlog_level = "loud"\n',
        "config.toml:2: log_level in [mount]: 'loud' is not one of debug, info, warning, error",
    ),
    ("[cache]\ndir = 7\n", "config.toml:2: dir in [cache]: 7 is not the path of a directory"),
    ("cache = 7\n", 'config.toml:1: "cache" is a table: write [cache]'),
    ('[route]\nsource = "s3://b"\n', 'config.toml:1: "route" is a list of tables: write [[route]]'),
    (
        '[[route]]\npath = "/a"\n',
        'config.toml:1: this route has no source: add one, like source = "s3://bucket/prefix"',
    ),
    ("[cache]\n", "config.toml: no route, so nothing to mount: add a [[route]] with a source"),
    (
        "[stripes]\nsize = 0\n" + ROUTE,
        "config.toml:2: the stripe size is zero: take a multiple of 4 KiB, like 8MiB",
    ),
    (
        "[stripes]\nsize = 5000\n" + ROUTE,
        "config.toml:2: a stripe size of 5000 bytes is not a multiple of 4 KiB: take one, like 8MiB",
    ),
    (
        '[stripes]\nmemory = "4MiB"\n' + ROUTE,
        "config.toml:2: a stripe of 8 MiB is larger than the memory budget of 4 MiB: raise memory or take smaller stripes",
    ),
    (
        '[stripes]\nmemory = "64KiB"\n' + ROUTE,
        "config.toml:2: a memory budget of 64 KiB is too small: give it 1 MiB or more; 1GiB serves well",
    ),
    (
        "[stripes]\ncount = 0\n" + ROUTE,
        "config.toml:2: a stripe count of 0 would fetch nothing: take 1 or more, or -1 to leave it to fusestripe",
    ),
    (
        "[stripes]\ncount = -2\n" + ROUTE,
        "config.toml:2: a stripe count of -2 would fetch nothing: take 1 or more, or -1 to leave it to fusestripe",
    ),
    (
        '[cache]\nsize = "1MiB"\n' + ROUTE,
        "config.toml:2: a cache of 1 MiB cannot hold one stripe of 8 MiB: give it room for the files you resume from",
    ),
    (
        "[mount]\ntimeout = 0\n" + ROUTE,
        "config.toml:2: a timeout of 0 seconds fails every read: take 300, or what your job can wait",
    ),
    (
        '[[route]]\npath = "a"\nsource = "s3://b"\n',
        "config.toml:2: 'a' is not a route's path: write it \"/a\"",
    ),
    (
        '[[route]]\npath = "/a/"\nsource = "s3://b"\n',
        "config.toml:2: '/a/' is not a route's path: write it \"/a\"",
    ),
    (
        '[[route]]\npath = "/a/../b"\nsource = "s3://b"\n',
        "config.toml:2: '/a/../b' is not a route's path: write it \"/b\"",
    ),
    (
        '[[route]]\npath = "//"\nsource = "s3://b"\n',
        "config.toml:2: '//' is not a route's path: write it \"/\"",
    ),
    (
        '[[route]]\npath = "' + "/" + "x" * 256 + '"\nsource = "s3://b"\n',
        "config.toml:2: this route's path cannot be a path: a name has up to 255 bytes and no NUL",
    ),
    (
        '[[route]]\npath = "/a\\u0000"\nsource = "s3://b"\n',
        "config.toml:2: this route's path cannot be a path: a name has up to 255 bytes and no NUL",
    ),
    (
        '[[route]]\npath = "/a"\nsource = "s3://b"\n' * 2,
        'config.toml:5: two routes have the path "/a": give each its own',
    ),
    (
        '[[route]]\npath = "/a"\nsource = "s3://b"\n[[route]]\npath = "/a/b"\nsource = "s3://c"\n',
        'config.toml:5: the route "/a/b" lies inside the route "/a": give them paths side by side',
    ),
    (
        '[[route]]\npath = "/a/b"\nsource = "s3://b"\n[[route]]\npath = "/a"\nsource = "s3://c"\n',
        'config.toml:5: the route "/a/b" lies inside the route "/a": give them paths side by side',
    ),
    (
        '[[route]]\npath = "/a"\nsource = "s3://b"\n' + ROUTE,
        'config.toml:5: the route "/a" lies inside the route "/": give them paths side by side',
    ),
    (
        '[[route]]\nsource = "bucket/prefix"\n',
        "config.toml:2: 'bucket/prefix' is no URL: write it like s3://bucket/prefix or file:///directory",
    ),
    ('[[route]]\nsource = "flie://b"\n', "config.toml:2: unknown scheme flie://: did you mean file://?"),
    ('[[route]]\nsource = "dav://b"\n', "config.toml:2: unknown scheme dav://: known are file://, s3://"),
    (
        ROUTE + 'endpoint = "127.0.0.1:80"\n',
        "config.toml:3: '127.0.0.1:80' is no URL of a server: "
        "write it like http://127.0.0.1:80, or with https://",
    ),
    (
        ROUTE + 'endpoint = "s3://host:1"\n',
        "config.toml:3: 's3://host:1' is no URL of a server: write it like http://host:1, or with https://",
    ),
    (
        ROUTE + 'endpoint = "https://"\n',
        "config.toml:3: 'https://' is no URL of a server: write it like http://host:port, or with https://",
    ),
    (
        '[[route]]\nsource = "/data/a b"\n',
        "config.toml:2: '/data/a b' is no URL: a directory is written file:///data/a%20b",
    ),
    (
        "[stripes]\ncount = 1025\n" + ROUTE,
        "config.toml:2: a stripe count of 1025 would open as many connections for one file: "
        "take 1024 or fewer; 16 to 64 fill most networks",
    ),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES, ids=[message[:60] for _, message in BAD_FILES])
def test_a_bad_file_gets_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    write(tmp_path, text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        load("config.toml", {}, environ={}, schemes=("s3", "file"))
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[cache\n", 1),
        ("[cache]\ndir = /nvme\n", 2),
        ('[cache]\ndir = "a"\ndir = "b"\n', 3),
        ('\n[cache]\ndir = """a\n\n', 4),
        ("dir = [", 1),
    ],
)
def test_what_is_not_toml_is_refused_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    """The words are the parser's, and differ between versions of Python."""
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load(file, {}, environ={})
    assert str(refused.value).startswith(f"{file}:{line}: not TOML: ")


BAD_FLAGS: list[tuple[dict[str, Any], str]] = [
    ({"stripe_sise": 4}, 'unknown option "stripe_sise": did you mean stripe_size?'),
    ({"stripe_size": "0"}, "stripe_size: the stripe size is zero: take a multiple of 4 KiB, like 8MiB"),
    ({"stripe_size": True}, "stripe_size needs a value: write stripe_size=..."),
    ({"stripe_count": "many"}, "stripe_count: 'many' is not a whole number"),
    ({"ttl": "soon"}, 'ttl: \'soon\' is not a number of seconds, 0 or more: write it like 60, "60s" or "5m"'),
    ({"ttl": "nan"}, 'ttl: nan is not a number of seconds, 0 or more: write it like 60, "60s" or "5m"'),
    ({"allow_other": "perhaps"}, "allow_other: 'perhaps' is not true or false"),
    ({"cache_dir": ""}, "cache_dir: '' is not the path of a directory"),
    (
        {"memory": "4MiB", "stripe_size": "8MiB"},
        "stripe_size: a stripe of 8 MiB is larger than the memory budget of 4 MiB: raise memory or take smaller stripes",
    ),
]


@pytest.mark.parametrize(("flags", "message"), BAD_FLAGS)
def test_a_bad_flag_gets_one_line(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(URL, flags, environ={})
    assert str(refused.value) == message


def test_a_mistyped_variable_is_named_and_others_pass() -> None:
    with pytest.raises(
        ConfigError, match="unknown environment variable FUSESTRIPE_STRIPE_SISE: did you mean FUSES"
    ):
        load(URL, {}, environ={"FUSESTRIPE_STRIPE_SISE": "4MiB"})
    # As Kubernetes sets them for a service named fusestripe, and our own.
    passing = (
        "FUSESTRIPE_PORT",
        "FUSESTRIPE_SERVICE_HOST",
        "FUSESTRIPE_PORT_80_TCP_ADDR",
        "FUSESTRIPE_DEBUG",
    )
    assert load(URL, {}, environ=dict.fromkeys(passing, "x")) == load(URL, {}, environ={})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nothing.toml", "nothing.toml: no such file or directory: give a URL like s3://"),
        ("no-url", "SOURCE: 'no-url' is no URL: write it like s3://"),
        ("s4://bucket", "SOURCE: unknown scheme s4://: known are s3://"),
    ],
)
def test_a_bad_source_gets_one_line(source: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(source, {}, environ={}, schemes=("s3",))
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("allowed", "budget"),
    [
        (64 * GIB, GIB),
        (3 * GIB, GIB),
        (2 * GIB, 896 * MIB),
        (GIB, 384 * MIB),
        (512 * MIB, 128 * MIB),
        (272 * MIB, 8 * MIB),
    ],
)
def test_the_default_budget_leaves_room_below_a_limit(allowed: int, budget: int) -> None:
    machine = Machine(64 * GIB, MemoryLimit(allowed, "/memory.max"))
    assert load(URL, {}, environ={}, machine=machine).stripes.memory == budget
    assert budget + OWN_MEMORY <= allowed


def test_a_budget_that_is_said_is_taken_while_it_fits_below_the_limit() -> None:
    machine = Machine(64 * GIB, MemoryLimit(GIB, "/memory.max"))
    settings = load(URL, {"memory": "768MiB"}, environ={}, machine=machine)
    assert settings.stripes.memory == 768 * MIB
    assert load(None, {"memory": "2GiB"}, environ={}, machine=machine).stripes.memory == 2 * GIB


@pytest.mark.parametrize(
    ("allowed", "flags", "message"),
    [
        (
            GIB,
            {"memory": "1GiB"},
            "memory: a memory budget of 1 GiB, and 256 MiB that fusestripe takes beside it, are more than the "
            "1 GiB that /memory.max allows: take 768MiB or less, or raise the limit",
        ),
        (
            200 * MIB,
            {"memory": "64MiB"},
            "memory: a memory budget of 64 MiB, and 256 MiB that fusestripe takes beside it, are more than the "
            "200 MiB that /memory.max allows: raise the limit to 512 MiB or more",
        ),
        (
            200 * MIB,
            {},
            "settings: the 200 MiB of memory that /memory.max allows leave no room to read stripes of 8 MiB: "
            "raise the limit to 512 MiB or more",
        ),
        (
            512 * MIB,
            {"stripe_size": "256MiB"},
            "stripe_size: the 512 MiB of memory that /memory.max allows leave no room to read stripes of "
            "256 MiB: raise the limit to 768 MiB or more",
        ),
    ],
)
def test_what_does_not_fit_below_a_limit_is_refused(
    allowed: int, flags: dict[str, object], message: str
) -> None:
    machine = Machine(64 * GIB, MemoryLimit(allowed, "/memory.max"))
    with pytest.raises(ConfigError) as refused:
        load(URL, flags, environ={}, machine=machine)
    assert str(refused.value) == message


def test_more_memory_than_there_is_is_refused() -> None:
    machine = Machine(4 * GIB)
    assert load(URL, {"memory": 4 * GIB}, environ={}, machine=machine).stripes.memory == 4 * GIB
    with pytest.raises(ConfigError) as refused:
        load(URL, {"memory": "5GiB"}, environ={}, machine=machine)
    assert str(refused.value) == (
        "memory: a memory budget of 5 GiB is more than the 4 GiB of this machine: "
        "leave the larger part to the job; 1GiB serves well"
    )


def test_this_machine_is_asked_where_none_is_named() -> None:
    there_is = this_machine()
    assert there_is.memory == psutil.virtual_memory().total
    assert load(URL, {}, environ={}).stripes.memory == default_budget(there_is)
    with pytest.raises(ConfigError, match=r"^memory: a memory budget of 1 PiB.* more than the "):
        load(URL, {"memory": "1024TiB"}, environ={})


@pytest.mark.parametrize("name", ["source", "c.toml"])
def test_what_is_no_regular_file_is_refused_and_nobody_waits_for_it(tmp_path: Path, name: str) -> None:
    """A FIFO that nobody writes to, a device that never ends."""
    os.mkfifo(tmp_path / name)
    for path in (str(tmp_path / name), "/dev/zero", str(tmp_path)):
        with pytest.raises(
            ConfigError, match=r"(not a regular file|is a directory): --config names a TOML file"
        ):
            load(URL, {}, config=path, environ={})
    with pytest.raises(
        ConfigError, match=r"not a regular file: give a URL|is no URL: a directory is written"
    ):
        load(str(tmp_path / name), {}, environ={})


@pytest.mark.parametrize("content", [b"\x80\x02model", b"# a page of text\n\nof some sort\n"])
def test_a_file_that_is_no_settings_is_refused_with_the_way_to_show_it(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "a model.pt").write_bytes(content)
    with pytest.raises(ConfigError, match="not TOML") as refused:
        load(str(tmp_path / "a model.pt"), {}, environ={})
    assert refused.value.mend == f"name a TOML file or a URL; {tmp_path.as_uri()} is the directory it is in"


def test_a_config_that_is_not_there_is_told_as_one() -> None:
    with pytest.raises(ConfigError) as refused:
        load(URL, {}, config="nope.toml", environ={})
    assert str(refused.value) == (
        "nope.toml: no such file or directory: --config names a TOML file with settings"
    )


def test_two_files_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path, WHOLE)
    with pytest.raises(ConfigError, match="two TOML files"):
        load(file, {}, config=file, environ={})


def test_what_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigError, match="not TOML: write it in UTF-8"):
        load(str(tmp_path / "c.toml"), {}, environ={})


SECRETS = [
    "s3://key:hunter2@bucket",
    "s3://:hunter2@bucket/x",
    "s3://key:hunt/er2@bucket",
    "http://h/x?sig=hunter2",
    "https://h/x?a=1&X-Amz-Signature=hunter2",
    "https://[broken:hunter2@h/",
]


@pytest.mark.parametrize("url", SECRETS)
def test_a_secret_in_a_url_is_refused_and_not_printed(tmp_path: Path, url: str) -> None:
    (tmp_path / "source.toml").write_text(f'[[route]]\nsource = "{url}"\n')
    (tmp_path / "endpoint.toml").write_text(f'[[route]]\nsource = "s3://b"\nendpoint = "{url}"\n')
    for source in (url, str(tmp_path / "source.toml"), str(tmp_path / "endpoint.toml")):
        with pytest.raises(ConfigError, match="password or token") as refused:
            load(source, {}, environ={}, schemes=("s3", "http", "https"))
        assert "hunt" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080/a@b",
        "s3://bucket/a:b@c",
        "hdfs://user@host:8020/x",
        "http://[::1]:80/x@y",
        "s3://b/x?y",
    ],
)
def test_a_url_that_only_looks_like_it_is_taken(url: str) -> None:
    assert load(url, {}, environ={}).routes[0].source == url


names = st.text(string.ascii_lowercase, min_size=1, max_size=2)
paths = st.lists(names, max_size=3).map(lambda parts: "/" + "/".join(parts))


@given(st.lists(paths, min_size=1, max_size=4))
def test_routes_are_taken_just_when_none_is_inside_another(tmp_path_factory: Any, routes: list[str]) -> None:
    file = write(
        tmp_path_factory.getbasetemp(),
        "".join(f'[[route]]\npath = "{p}"\nsource = "s3://b"\n' for p in routes),
    )
    parts = [[part for part in path.split("/") if part] for path in routes]
    clash = any(
        parts[i] == parts[j][: len(parts[i])] for i in range(len(parts)) for j in range(len(parts)) if i != j
    )
    if clash:
        with pytest.raises(ConfigError):
            load(file, {}, environ={})
    else:
        assert [route.path for route in load(file, {}, environ={}).routes] == routes


@given(
    st.lists(st.sampled_from(["", "# c", 'x = """', "y", '"""', "[t]", "k = [", "1,", "]", "[[r]]", "z = 1"]))
)
def test_the_line_of_a_key_is_where_its_statement_begins(tmp_path_factory: Any, lines: list[str]) -> None:
    """What comes behind lines that make a document of their own stands on the lines behind them."""
    text = "".join(line + "\n" for line in lines)
    directory = tmp_path_factory.getbasetemp()
    try:
        read(write(directory, text), "")
    except ConfigError:
        return
    document = read(write(directory, text + "[last]\nkey = 1\n"), "")
    assert document.where("last") == f"{document.name}:{len(lines) + 1}"
    assert document.where("last", "key") == f"{document.name}:{len(lines) + 2}"


@given(st.dictionaries(st.text(string.ascii_lowercase + "_", min_size=1), st.text(string.printable)))
def test_options_are_read_back(options: dict[str, str]) -> None:
    options = {f"our_{name}": value for name, value in options.items()}  # none of mount(8)'s own
    text = ",".join(f"{name}={value.strip()}".replace(",", "\\,") for name, value in options.items())
    expected = {name: value.strip() for name, value in options.items()}
    if not any(value.endswith("\\") or "\\," in value for value in expected.values()):
        assert parse_options(text) == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60), ("1m", 60), ("1.5h", 5400), ("2 min", 120), ("1d", 86400), ("500ms", 0.5)],
)
def test_times_are_written_with_their_unit_too(tmp_path: Path, text: str, seconds: float) -> None:
    assert load(URL, parse_options(f"ttl={text}"), environ={}).metadata.ttl == seconds
    file = write(tmp_path, f'[metadata]\nttl = "{text}"\n[[route]]\nsource = "{URL}"\n')
    assert load(file, {}, environ={}).metadata.ttl == seconds


def test_every_mount_is_read_only() -> None:
    """As fstab and mount(8) say it."""
    assert parse_options("ro,ttl=5") == {"ttl": "5"}
    assert parse_options("nosuid,nodev,noexec,noatime,_netdev,x-a=b") == {"noexec": True}
    with pytest.raises(ConfigError, match="rw: a mount is only ever read: leave it out"):
        parse_options("ttl=5,rw")
    with pytest.raises(ConfigError, match="suid: set-user-ID bits count for nothing in what a store holds"):
        parse_options("suid")


def test_an_option_alone_is_a_switch() -> None:
    assert parse_options("allow_other,ttl=5,,") == {"allow_other": True, "ttl": "5"}
    assert load(URL, parse_options("allow_other"), environ={}).mount.allow_other is True


def test_a_document_is_read_with_its_lines(tmp_path: Path) -> None:
    document = read(write(tmp_path, WHOLE), "")
    place = os.path.join(tmp_path, "config.toml")
    assert document.where("stripes", "count") == f"{place}:9"
    assert document.where("route", 1) == f"{place}:25"
    assert document.where("route", 1, "region") == f"{place}:29"
