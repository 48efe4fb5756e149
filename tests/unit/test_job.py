"""What a job asks for, by its comment and by a file, and what that comes to."""

# ruff: noqa: E501 - the tables of bad input have a row a line

from __future__ import annotations

import os
import string
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fusestripe.cli import cli
from fusestripe.config import JOB_FILE, JobRequest, Route, load, request_of
from fusestripe.errors import ConfigError
from fusestripe.job import Job, end, plan, prefetch_command, urls_of

URL = "s3://bucket/run"
FILE = (
    '[[route]]\npath = "/ckpt"\nsource = "s3://bucket/ckpt"\n[job]\nprefetch = ["ckpt/step-1"]\nwait = "2m"\n'
)


def write(directory: Path, text: str = FILE, name: str = JOB_FILE) -> str:
    (directory / name).write_text(text)
    return str(directory)


@pytest.mark.parametrize("comment", ["", "about fusestripe", "notfusestripe:source=x", "fusestripe"])
def test_most_jobs_ask_for_nothing(comment: str, tmp_path: Path) -> None:
    assert request_of(comment, str(tmp_path)) is None
    assert request_of(comment, write(tmp_path, FILE.partition("[job]")[0])) is None


def test_a_comment_asks(tmp_path: Path) -> None:
    comment = (
        f"project=x fusestripe:source={URL},prefetch=step-1,prefetch=/step-2/,latest,pin,wait=5m,"
        "rank_local=no,stripe_count=32,anonymous,mountpoint=/home/ada/%j for ada"
    )
    request = request_of(comment, str(tmp_path))
    assert request == JobRequest(
        URL,
        {"stripe_count": "32", "anonymous": True},
        ("step-1", "step-2"),
        latest=True,
        pin=True,
        wait=300.0,
        mountpoint="/home/ada/%j",
    )
    assert request.mountpoint_for("17") == "/home/ada/17"


def test_a_file_asks_and_the_comment_stands_over_it(tmp_path: Path) -> None:
    directory = write(tmp_path)
    name = str(tmp_path / JOB_FILE)
    assert request_of("", directory) == JobRequest(name, {}, ("ckpt/step-1",), wait=120.0)
    more = request_of("fusestripe:prefetch=ckpt/step-2,ttl=5", directory)
    assert more == JobRequest(name, {"ttl": "5"}, ("ckpt/step-2",), wait=120.0)
    assert request_of(f"fusestripe:source={URL}", directory) == JobRequest(URL)
    write(tmp_path, name="other.toml")
    other = request_of("fusestripe:source=other.toml", directory)
    assert other == JobRequest(str(tmp_path / "other.toml"), {}, ("ckpt/step-1",), wait=120.0)


def test_a_file_with_a_job_can_be_mounted_as_any_other(tmp_path: Path) -> None:
    write(tmp_path)
    assert load(str(tmp_path / JOB_FILE), {}, environ={}).routes == (Route("/ckpt", "s3://bucket/ckpt"),)


def test_latest_alone_is_of_all() -> None:
    assert request_of(f"fusestripe:source={URL},latest", "/") == JobRequest(URL, {}, (".",), latest=True)


@pytest.mark.parametrize(
    ("comment", "told"),
    [
        ("fusestripe:", 'a space, or nothing, follows "fusestripe:"'),
        ("fusestripe: source=s3://b", 'a space, or nothing, follows "fusestripe:"'),
        (f"fusestripe:source={URL}, prefetch=x", "a space, or nothing, follows a comma"),
        (f"fusestripe:source={URL} fusestripe:pin", "fusestripe: is there twice"),
        (f"fusestripe:{URL}", "a URL without a key before it: write source=URL"),
        (f"fusestripe:{URL}?endpoint=h:1", "a URL without a key before it"),
        (f"fusestripe:sorce={URL}", "unknown key 'sorce': did you mean \"source\"?"),
        (f"Fusestripe:source={URL},prefech=x", 'did you mean "prefetch"?'),
        (f"fusestripe:source={URL},wait=1,wait=2", "wait is there twice"),
        (f"fusestripe:source={URL},wait", "wait needs a value"),
        (f"fusestripe:source={URL},prefetch=x,wait=soon", "wait: 'soon' is not a number of seconds"),
        (f"fusestripe:source={URL},prefetch=x,pin=perhaps", "pin: 'perhaps' is not true or false"),
        (f"fusestripe:source={URL},pin", "pin, but nothing to prefetch"),
        (f"fusestripe:source={URL},prefetch=a/../../b", '".." in'),
        (f"fusestripe:source={URL},prefetch={URL}/x", "prefetch takes paths below the source"),
        (f"fusestripe:source={URL},mountpoint=here", "'here' is relative"),
        (f"fusestripe:source={URL},mountpoint=/a\x1b[2Jb", "a control character in mountpoint"),
        ("fusestripe:prefetch=x", f"there is no source, and no {JOB_FILE}"),
        ("fusestripe:source=x.toml", "x.toml: no such file or directory"),
    ],
)
def test_a_comment_that_is_wrong_is_refused(comment: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        request_of(comment, str(tmp_path))
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[job]\nprefech = []\n",
            'fusestripe.toml:2: unknown key "prefech" in [job]: did you mean "prefetch"?',
        ),
        ("[job]\nprefetch = 'x'\n", "fusestripe.toml:2: prefetch in [job]: 'x' is not a list of texts"),
        ("[jobs]\n[job]\n", 'fusestripe.toml:1: unknown key "jobs" at the top: did you mean [job]?'),
        ("[job]\n\npin = true\n", "fusestripe.toml:3: pin, but nothing to prefetch"),
        ("[job]\nprefetch = ['..']\n", 'fusestripe.toml:2: ".." in'),
        ("[job]\ncache_dir = '/x'\n", 'did you mean "dir" in [cache]?'),
        ("job = 3\n", 'fusestripe.toml:1: "job" is a table: write [job]'),
        ("[job\n", "fusestripe.toml:1: not TOML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_line(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        request_of("", write(tmp_path, text))
    assert told in str(refused.value)


@given(st.text(string.printable, max_size=60))
def test_whatever_a_comment_says_there_is_a_request_or_a_line(text: str) -> None:
    try:
        request = request_of(f"fusestripe:{text}", "/nonexistent")
    except ConfigError as error:
        lines = str(error).splitlines()
    else:
        lines = ["none"]
        assert request is not None
        assert all(".." not in path.split("/") for path in request.prefetch)
    assert len(lines) == 1


def test_the_request_comes_to_a_command_whose_options_are_ours() -> None:
    request = JobRequest(URL, {}, ("--help", ".", "a b"), latest=True, rank_local=True, pin=True)
    command = prefetch_command(request, "/mnt/7")
    options = ["--latest", "--rank-local", "--pin", "--"]
    assert command == ["prefetch", *options, "/mnt/7/--help", "/mnt/7", "/mnt/7/a b"]


def test_paths_of_the_tree_are_urls_of_the_stores() -> None:
    routes = (Route("/a/x", "s3://b/one/"), Route("/a/y", "file:///data"))
    assert urls_of(routes, (".",)) == ("s3://b/one", "file:///data")
    assert urls_of(routes, ("a", "a/x/step-1")) == ("s3://b/one", "file:///data", "s3://b/one/step-1")
    assert urls_of(routes, ("a/xx",)) == ()
    assert urls_of((Route("/", URL),), ("step-1", ".")) == (f"{URL}/step-1", URL)


def test_a_plan_is_checked_like_a_mount(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown scheme s4"):
        plan(Job("1", "fusestripe:source=s4://b", str(tmp_path)))
    with pytest.raises(ConfigError, match="is not a size"):
        plan(Job("1", f"fusestripe:source={URL},stripe_size=much", str(tmp_path)))


def test_check_shows_the_request(tmp_path: Path) -> None:
    def check(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli, ["job", "check", "--directory", str(tmp_path), *arguments])
        return result.exit_code, result.output

    code, said = check()
    assert (code, said.startswith("fusestripe: this job asks for nothing: ")) == (1, True)
    write(tmp_path)
    assert check() == (
        0,
        "mount      s3://bucket/ckpt at $FUSESTRIPE_MOUNT/ckpt\nprefetch   ckpt/step-1\nwait       up to 120 s for it\n",
    )
    code, said = check("--json", "--comment", "fusestripe:pin,mountpoint=/m/%j")
    assert code == 0
    assert '"prefetch":["ckpt/step-1"],"latest":false,"rank_local":false,"pin":true' in said
    assert '"mountpoint":"/m/%j"' in said


def test_the_end_of_a_job_that_never_began_is_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "7/run"
    run.mkdir(parents=True)
    monkeypatch.setenv("FUSESTRIPE_RUNTIME_DIR", str(run))
    end(Job("7", "", "/", str(tmp_path)))
    assert os.listdir(run) == []
    monkeypatch.delenv("FUSESTRIPE_RUNTIME_DIR")
    with pytest.raises(ConfigError, match="FUSESTRIPE_RUNTIME_DIR is not set"):
        end(Job("7", "", "/", str(tmp_path)))
