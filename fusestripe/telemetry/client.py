"""Asking a daemon by its control socket: see ``fusestripe.telemetry.control``."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from fusestripe.errors import MountError
from fusestripe.telemetry.control import ALIVE_SECONDS, LONGEST_REQUEST, Request
from fusestripe.telemetry.rundir import log_of

__all__ = ["BETWEEN_SECONDS", "LOOK_SECONDS", "DaemonGone", "daemon_pid", "has_listener", "request"]

SILENCE_SECONDS = 4 * ALIVE_SECONDS
BETWEEN_SECONDS = 3.0
"""For so long a client waits for the daemon that follows one that died; a keeper needs half a second."""
LOOK_SECONDS = 0.05


class DaemonGone(MountError):
    """The daemon that was asked is no more; where it has a keeper another follows."""


class _Answer(msgspec.Struct, frozen=True):
    value: Any = None
    done: bool = False
    error: str | None = None
    mend: str = ""


def request(path: str, command: str, *, timeout: float = SILENCE_SECONDS, **args: object) -> Iterator[Any]:
    """The values that the daemon at the socket ``path`` answers, as they come.

    ``timeout`` is how many seconds of silence are taken for its death; a daemon at work is never silent for
    longer than ``ALIVE_SECONDS``. Raises MountError where there is no daemon, where it goes, and with its
    own message where it refuses.
    """
    try:
        line = msgspec.json.encode(Request(command, args)) + b"\n"
    except UnicodeEncodeError:
        raise MountError("a name that is not UTF-8 cannot be asked for", mend="name its directory") from None
    if len(line) > LONGEST_REQUEST:
        raise MountError("so many paths are more than one request holds", mend="name directories instead")
    with (
        _connected(path, timeout, patience=BETWEEN_SECONDS) as connection,
        connection.makefile("rb") as lines,
    ):
        try:
            connection.sendall(line)
            for line in lines:
                if line == b"\n":
                    continue
                answer = msgspec.json.decode(line, type=_Answer)
                if answer.error is not None:
                    raise MountError(answer.error, mend=answer.mend)
                if answer.done:
                    return
                yield answer.value
        except TimeoutError:
            raise MountError(f"the daemon is silent for {timeout:g} s", mend=_see_log(path)) from None
        except (ConnectionError, msgspec.DecodeError):
            pass  # the same as an end without the last line
        raise DaemonGone(
            "the daemon ended in the middle of an answer", mend=f"mount it again; {_see_log(path)}"
        )


def daemon_pid(path: str) -> int | None:
    """The process that listens at the socket ``path`` (SO_PEERCRED, unix(7)); None where none does."""
    try:
        with _connected(path, SILENCE_SECONDS) as connection:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    except MountError:
        return None
    pid, _uid, _gid = struct.unpack("iii", credentials)
    return int(pid) or None


def has_listener(path: str) -> bool:
    """Whether a process listens at the socket ``path``, be it one that does not answer. Waits for nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        return connection.connect_ex(path) not in (errno.ENOENT, errno.ECONNREFUSED)


@contextlib.contextmanager
def _connected(path: str, timeout: float, *, patience: float = 0.0) -> Iterator[socket.socket]:
    """``patience``: seconds that a daemon may take to follow another."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            _connect(connection, path, time.monotonic() + patience)
        except TimeoutError:
            raise MountError(f"the daemon at {path} does not answer", mend=_see_log(path)) from None
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                raise MountError(f"{path} belongs to another user", mend="ask as that user") from None
            raise DaemonGone("the daemon is gone", mend=f"mount it again; {_see_log(path)}") from None
        yield connection


def _connect(connection: socket.socket, path: str, deadline: float) -> None:
    """Raises OSError; where nobody listens, not before ``deadline``."""
    while True:
        try:
            connection.connect(path)
        except ConnectionRefusedError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(LOOK_SECONDS)
        else:
            return


def _see_log(path: str) -> str:
    """Where to look for why the daemon at the socket ``path`` is not as it should be."""
    log_file = log_of(path)
    return (
        f"see {log_file}"
        if os.path.exists(log_file)
        else "what it logs went to its terminal, or to the journal"
    )
