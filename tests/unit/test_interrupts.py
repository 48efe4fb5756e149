"""Which signals let a reader go: those that end it, and those with which people end programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fusestripe.kernel.interrupts import ends_caller, ends_reader, is_fatal
from tests.support.mounted import until


def status(pending: int = 0, *, thread: int = 0, blocked: int = 0, ignored: int = 0, caught: int = 0) -> str:
    """The lines of /proc/pid/status that say it; each argument one signal or none."""
    masks = {"SigPnd": thread, "ShdPnd": pending, "SigBlk": blocked, "SigIgn": ignored, "SigCgt": caught}
    lines = [f"{name}:\t{1 << number - 1 if number else 0:016x}" for name, number in masks.items()]
    return "\n".join(["Name:\tpython", *lines, ""])


def test_nothing_waits() -> None:
    assert not is_fatal(status())
    assert not is_fatal("")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGUSR1, 50])
def test_what_ends_a_process_by_default(number: int) -> None:
    assert is_fatal(status(number))
    assert is_fatal(status(thread=number))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_what_a_person_ends_a_program_with_even_if_it_is_handled(number: int) -> None:
    assert is_fatal(status(number, caught=number))
    assert not is_fatal(status(number, blocked=number))
    assert not is_fatal(status(number, ignored=number))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_page_fault_is_not_ended_by_what_is_handled(number: int) -> None:
    """It would be SIGBUS; without a handler the process ends anyway."""
    assert not is_fatal(status(number, caught=number), may_return=False)
    assert is_fatal(status(number), may_return=False)


@pytest.mark.parametrize("number", [signal.SIGPROF, signal.SIGALRM, signal.SIGURG, signal.SIGUSR1, 34])
def test_what_a_program_handles_is_its_own_affair(number: int) -> None:
    assert not is_fatal(status(number, caught=number))


@pytest.mark.parametrize("number", [signal.SIGCHLD, signal.SIGWINCH, signal.SIGSTOP, signal.SIGTSTP])
def test_what_ends_nothing(number: int) -> None:
    assert not is_fatal(status(number))


def test_of_a_real_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not ends_reader(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not ends_reader(process.pid)  # gone: what it asked for may be for another thread


def test_a_blocked_signal_that_waits_does_not_end_a_process() -> None:
    code = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        status_file = Path(f"/proc/{process.pid}/status")
        until(lambda: "ShdPnd:\t0000000000004000" in status_file.read_text())
        assert not ends_reader(process.pid)
        process.kill()


def test_where_proc_is_hidden_a_process_that_lives_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(*arguments: object, **keywords: object) -> None:
        raise FileNotFoundError

    def forbidden(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr("builtins.open", hidden)
    monkeypatch.setattr(os, "kill", forbidden)
    assert not ends_reader(12345)


def test_a_thread_that_cannot_be_seen_is_left_alone() -> None:
    assert not ends_reader(0)


@pytest.mark.parametrize(("number", "handled"), [(signal.SIGTERM, True), (signal.SIGUSR1, False)])
def test_who_waits_for_a_name_may_always_return(number: int, handled: bool) -> None:
    """Where a thread that reads is asked which system call it is in, this one is not."""
    code = (
        f"import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, [{number:d}]); "
        f"signal.signal({number:d}, lambda *_: None); print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        text = Path(f"/proc/{process.pid}/status").read_text
        until(lambda: f"ShdPnd:\t{1 << number - 1:016x}" in text())
        unblocked = "\n".join(line for line in text().splitlines() if not line.startswith("SigBlk"))
        assert is_fatal(unblocked) is handled
        assert not is_fatal(unblocked, may_return=False)
        assert not ends_caller(process.pid)  # blocked: it stays where it is
        process.kill()
