"""Who waits for a name or a listing that the origin holds back, and is ended by a signal."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.mounted import until
from tests.support.mounted_store import MountedStore, is_gone
from tests.support.proxy import Fault

# Seconds from the signal to the end, on a busy machine; an origin's silence lasts for 300.
AT_ONCE = 5.0
STAT = "os.stat(path + '/file')"
LIST = "os.listdir(path)"
OPEN = "open(path + '/file', 'rb')"
# A signal, what the program does with it, and what the program ends with.
ENDS = (
    (signal.SIGKILL, "default", -signal.SIGKILL),
    (signal.SIGTERM, "default", -signal.SIGTERM),
    (signal.SIGINT, "default", -signal.SIGINT),
    (signal.SIGINT, "handled", 7),
    (signal.SIGTERM, "handled", 7),
)
# What asks for a name, with a handler for SIGINT and SIGTERM, or with what those do by default.
_PROGRAM = """
import os, signal, sys
path = sys.argv[1]
if sys.argv[2] == "handled":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
else:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGALRM, lambda *_: None)
print("ready", flush=True)
try:
    {ask}
except KeyboardInterrupt:
    sys.exit(7)
print("answered", flush=True)
"""


@contextmanager
def waiting(store: MountedStore, path: str, ask: str, handling: str) -> Iterator[subprocess.Popen[str]]:
    """A program that ``ask``s for what the origin holds back."""
    store.proxy.set_faults([Fault("hold", match="^LIST", times=0)])
    command = [sys.executable, "-I", "-c", _PROGRAM.format(ask=ask), path, handling]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            store.proxy.wait_held()
            yield process
        finally:
            store.proxy.set_faults([])
            store.proxy.release()
            process.kill()


@pytest.mark.parametrize("channel", ["yes", "no"])
def test_it_ends_at_once(store: MountedStore, channel: str) -> None:
    store.put("d/file", b"here")
    with store.mount(ttl=0, negative_ttl=0, channel=channel) as mount:
        for ask, (number, handling, status) in itertools.product((STAT, LIST, OPEN), ENDS):
            with waiting(store, f"{mount.path}/d", ask, handling) as process:
                process.send_signal(number)
                assert process.wait(AT_ONCE) == status, (ask, number, handling)
            assert (mount.path / "d" / "file").read_bytes() == b"here"


def test_what_a_program_handles_otherwise_is_no_error(store: MountedStore) -> None:
    """A timer, say. The first that waits is let go, and another that waits for the same gets its answer."""
    store.put("d/file", b"here")
    with store.mount(ttl=0, negative_ttl=0) as mount:
        directory = f"{mount.path}/d"
        with (
            waiting(store, directory, STAT, "default") as process,
            waiting(store, directory, STAT, "default") as other,
        ):
            process.send_signal(signal.SIGALRM)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            process.kill()
            until(lambda: is_gone(process.pid), AT_ONCE)
            store.proxy.set_faults([])
            store.proxy.release()
            assert other.stdout is not None
            assert other.stdout.readline() == "answered\n"
        assert os.listdir(directory) == ["file"]
