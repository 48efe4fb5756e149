"""The command line that mount(8) makes, and what its helper ends with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusestripe.config import Settings
from fusestripe.errors import ConfigError, FusestripeError, MountError
from fusestripe.mount_helper import Call, main, read_call

SWITCHES = ("-s", "-f", "-n", "-v")


def test_as_mount_calls_it() -> None:
    call = read_call(["s3://b/a b", "/mnt/c d", "-v", "-o", "rw,ttl=5", "-t", "fuse.fusestripe"])
    assert call == Call("s3://b/a b", "/mnt/c d", "rw,ttl=5", is_verbose=True)
    assert read_call(["s", "d", "-sfnv", "-N", "/proc/7/fd/4"]).namespace == "/proc/7/fd/4"
    assert read_call(["-N", "123", "-o", "a", "s", "d", "-ob,c"]) == Call(
        "s", "d", "a,b,c", "/proc/123/ns/mnt"
    )


@given(st.permutations([*SWITCHES, "-oro", "SPEC", "DIR"]), st.sets(st.sampled_from(SWITCHES)))
def test_in_any_order(order: list[str], left_out: set[str]) -> None:
    said = [word for word in order if word not in left_out]
    spec, directory = (word for word in said if not word.startswith("-"))
    call = read_call(said)
    assert (call.spec, call.directory, call.options) == (spec, directory, "ro")
    assert (call.is_sloppy, call.is_fake, call.is_verbose) == tuple(
        each in said for each in ("-s", "-f", "-v")
    )


@pytest.mark.parametrize("arguments", [[], ["s3://b"], ["a", "b", "c"], ["a", "b", "-x"], ["a", "b", "-o"]])
def test_what_cannot_be_understood_gets_the_usage(arguments: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"usage: mount\.fusestripe SPEC DIR "):
        read_call(arguments)


OUTCOMES: list[tuple[BaseException | None, int, str]] = [
    (None, 0, ""),
    (ConfigError("a", mend="b"), 1, "mount.fusestripe: a: b\n"),
    (OSError(12, "Cannot allocate memory"), 2, "mount.fusestripe: [Errno 12] Cannot allocate memory\n"),
    (ValueError("x\ny"), 4, "mount.fusestripe: ValueError: x y: FUSESTRIPE_DEBUG=1 shows where\n"),
    (KeyboardInterrupt(), 8, "mount.fusestripe: interrupted\n"),
    (MountError("a"), 32, "mount.fusestripe: a\n"),
    (FusestripeError("a"), 32, "mount.fusestripe: a\n"),
]


@pytest.mark.parametrize(("outcome", "status", "says"), OUTCOMES, ids=[repr(each[0]) for each in OUTCOMES])
def test_the_status_is_one_of_mounts(
    outcome: BaseException | None,
    status: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[Settings] = []

    def launch(settings: Settings, directory: str) -> int:
        assert directory == "/mnt/x"
        seen.append(settings)
        if outcome is not None:
            raise outcome
        return 1

    monkeypatch.setattr("fusestripe.mount_helper.launch", launch)
    monkeypatch.setattr("fusestripe.mount_helper.signal.signal", lambda *_: None)
    monkeypatch.setattr(
        sys, "argv", ["mount.fusestripe", "s3://b?endpoint=h:1", "/mnt/x", "-o", "rw,user,noexec"]
    )
    monkeypatch.setattr(os, "environ", {"HOME": "/h"})
    with pytest.raises(SystemExit) as end:
        main()
    assert (end.value.code, capsys.readouterr().err) == (status, says)
    (settings,) = seen
    # As fstab has it, by which `mount -a` knows that it is there.
    assert settings.mount.fsname == "s3://b?endpoint=h:1"
    assert settings.mount.noexec


def test_help() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fusestripe.mount_helper", "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.startswith("usage: mount.fusestripe SPEC DIR [-sfnv] ")
