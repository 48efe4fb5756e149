"""The daemon's control socket: commands in, answers out, one JSON value a line.

A request is ``{"command": name, "args": {...}}``. Answers are lines ``{"value": ...}``, any number, then one
``{"done": true}`` or ``{"error": message, "mend": mend}``. An empty line says "still at it". A
daemon whose mount is taken away in the middle of an answer says so in its last line, as an error. The socket
is open to its user alone (mode 0600 in a directory of mode 0700).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import pwd
import socket
import stat
import struct
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec
import trio
import xxhash

from fusestripe.config import default_cache_dir
from fusestripe.errors import FusestripeError, MountError
from fusestripe.kernel.mounting import Mount

__all__ = [
    "BETWEEN_SECONDS",
    "LOOK_SECONDS",
    "RUNTIME_VARIABLE",
    "DaemonGone",
    "Handler",
    "Send",
    "daemon_pid",
    "has_listener",
    "log_of",
    "request",
    "runtime_dir",
    "runtime_dirs_of",
    "serve",
    "socket_of",
    "socket_path",
]

Send = Callable[[object], Awaitable[None]]
"""Sends one value (anything msgspec writes as JSON) to the client."""
Handler = Callable[[Mapping[str, Any], Send], Awaitable[None]]
"""Answers a command, given its arguments. It is cancelled when the client hangs up."""

ALIVE_SECONDS = 5.0
SILENCE_SECONDS = 4 * ALIVE_SECONDS
BETWEEN_SECONDS = 3.0
"""For so long a client waits for the daemon that follows one that died; a keeper needs half a second."""
LOOK_SECONDS = 0.05
LEAVE_SECONDS = 1.0
"""For so long a daemon that ends waits for a client to take its last line."""
TAKEN_AWAY = {"error": "the mount was taken away meanwhile", "mend": "mount it again"}
RUNTIME_VARIABLE = "FUSESTRIPE_RUNTIME_DIR"
_OF_ROOT = "/run/fusestripe"
_LINE_MAXIMUM = 1 << 20
_SUN_PATH_MAXIMUM = 107  # sockaddr_un, 108 with the final NUL (unix(7))

log = logging.getLogger(__name__)


class DaemonGone(MountError):
    """The daemon that was asked is no more; where it has a keeper another follows."""


class _Request(msgspec.Struct, frozen=True):
    command: str
    args: dict[str, Any] = {}


class _Answer(msgspec.Struct, frozen=True):
    value: Any = None
    done: bool = False
    error: str | None = None
    mend: str = ""


def runtime_dir(environ: Mapping[str, str] = os.environ) -> str:
    """Where sockets and logs of this user's mounts are; made with mode 0700 where missing.

    $FUSESTRIPE_RUNTIME_DIR where it is set, as for a job of a batch system; else /run/fusestripe for root,
    for others below $XDG_RUNTIME_DIR if that is theirs, else below the user's cache directory.
    Raises MountError where it cannot be made, or where others may write in it.
    """
    above = ""
    if environ.get(RUNTIME_VARIABLE):
        path = environ[RUNTIME_VARIABLE]
    elif os.geteuid() == 0:
        path = _OF_ROOT
    elif _session_dir(environ):
        path = os.path.join(_session_dir(environ), "fusestripe")
    else:
        above = default_cache_dir(environ)
        path = os.path.join(above, "run")
    try:
        for directory in filter(None, (above, path)):  # the mode is only the last one's
            os.makedirs(directory, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        what = (error.strerror or str(error)).lower()
        mend = "make /run writable" if path == _OF_ROOT else "set XDG_RUNTIME_DIR"
        raise MountError(f"{path} cannot be made: {what}", mend=mend) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise MountError(f"others may write in {path}", mend=f"chown it to this user and chmod 700 {path}")
    return path


def _session_dir(environ: Mapping[str, str]) -> str:
    """$XDG_RUNTIME_DIR; "" where it is not set, or another user's, as it stays so behind `su`.

    The XDG Base Directory Specification has it that the user must own it.
    """
    path = environ.get("XDG_RUNTIME_DIR", "")
    with contextlib.suppress(OSError):  # one that is missing is made
        if path and os.lstat(path).st_uid != os.geteuid():
            return ""
    return path


def socket_path(mountpoint: str, environ: Mapping[str, str] = os.environ) -> str:
    """The control socket of this user's mount at ``mountpoint`` (absolute, no links). Raises MountError."""
    path = os.path.join(runtime_dir(environ), _socket_name(mountpoint))
    if len(os.fsencode(path)) > _SUN_PATH_MAXIMUM:
        raise MountError(f"{path} is too long for a socket", mend="set XDG_RUNTIME_DIR to a shorter one")
    return path


def log_of(path: str) -> str:
    """Where the daemon at the socket ``path`` logs, unless it is in the foreground."""
    return path.removesuffix(".sock") + ".log"


def socket_of(mount: Mount) -> str:
    """The control socket of ``mount``; root finds those of others where they usually are.

    Those of this user are looked for there too: what mounted may have had another environment than this
    process, or none, as mount(8), cron and systemd have it.
    Raises MountError, which says whose mount it is, where that cannot be asked.
    """
    owner = mount.owner
    is_mine = owner is None or owner == os.geteuid()
    mine = socket_path(mount.mountpoint) if is_mine else ""
    if is_mine and os.path.exists(mine):
        return mine
    for directory in runtime_dirs_of(os.geteuid() if owner is None else owner):
        path = os.path.join(directory, _socket_name(mount.mountpoint))
        if os.path.exists(path):
            return path
    if is_mine:
        return mine
    raise MountError(
        f"{mount.mountpoint} shows {mount.source} and belongs to {mount.owner_name}; "
        "its daemon cannot be asked from here",
        mend="ask as that user",
    )


def runtime_dirs_of(user: int) -> list[str]:
    """Where the sockets of another user may be, by runtime_dir and what a login sets (pam_systemd(8))."""
    if user == 0:
        return [_OF_ROOT]
    try:
        home = pwd.getpwuid(user).pw_dir
    except KeyError:
        home = ""
    directories = [f"/run/user/{user}/fusestripe"]
    return [*directories, os.path.join(home, ".cache/fusestripe/run")] if home else directories


def _socket_name(mountpoint: str) -> str:
    return f"{xxhash.xxh3_64_hexdigest(os.fsencode(mountpoint))}.sock"


# The daemon's side


async def serve(
    path: str,
    handlers: Mapping[str, Handler],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer at ``path`` until cancelled; started once clients can connect.

    A socket file that is there already is replaced: whoever made it is dead, or no longer wanted.
    """
    with _bound(path) as listening:

        async def answer(stream: trio.SocketStream) -> None:
            async with stream:
                await _Conversation(stream, handlers).run()

        task_status.started()
        await trio.serve_listeners(answer, [trio.SocketListener(listening)])


@contextlib.contextmanager
def _bound(path: str) -> Iterator[trio.socket.SocketType]:
    """A listening socket that appears at ``path`` complete: connectable, and with its mode."""
    fresh = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mine = None
    try:
        listening.bind(fresh)
        os.chmod(fresh, 0o600)
        listening.listen()
        os.rename(fresh, path)
        mine = os.stat(path).st_ino
        yield trio.socket.from_stdlib_socket(listening)
    finally:
        listening.close()
        with contextlib.suppress(OSError):  # gone, or another daemon's by now
            if os.stat(path).st_ino == mine:
                os.unlink(path)


class _Conversation:
    """One client: a request, its answers, and the end of both when it hangs up.

    Invariant: whole lines are sent, one at a time, and nothing after one that was broken off. A client that
    is gone cancels everything here, wherever it is noticed, so handlers never see the stream's errors.
    """

    def __init__(self, stream: trio.SocketStream, handlers: Mapping[str, Handler]) -> None:
        self._stream = stream
        self._handlers = handlers
        self._sending = trio.Lock()
        self._scope = trio.CancelScope()
        self._is_whole = True

    async def run(self) -> None:
        with self._scope:
            line = await self._read_line()
            if line is None:
                return
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._say_alive)
                    nursery.start_soon(self._await_hangup)
                    await self._send_line(msgspec.json.encode(await self._answer(line)))
                    self._scope.cancel()
            finally:
                if not self._scope.cancel_called:  # neither answered nor hung up: the daemon ends
                    await self._take_leave()

    async def _answer(self, line: bytes) -> dict[str, object]:
        """Let the handler send its values; the last line of the conversation."""
        try:
            request = msgspec.json.decode(line, type=_Request)
            handler = self._handlers.get(request.command)
            if handler is None:
                return {"error": f'this daemon does not know "{request.command}"', "mend": "mount it again"}
            await handler(request.args, self._send_value)
        except msgspec.DecodeError as error:
            return {"error": f"not a request: {error}"}
        except FusestripeError as error:
            return {"error": error.message, "mend": error.mend}
        except Exception as error:
            # A bug in one answer is no reason to take the mount from its readers.
            log.exception("control command failed")
            return {
                "error": f"{type(error).__name__}: {error}",
                "mend": "fusestripe status names its log",
            }
        return {"done": True}

    async def _send_value(self, value: object) -> None:
        await self._send_line(msgspec.json.encode({"value": value}))

    async def _send_line(self, line: bytes) -> None:
        async with self._sending:
            try:
                self._is_whole = False
                await self._stream.send_all(line + b"\n")
                self._is_whole = True
            except trio.BrokenResourceError:
                self._scope.cancel()
                await trio.lowlevel.checkpoint()

    async def _take_leave(self) -> None:
        """Tell the client that it is no fault of the daemon's, as far as it still listens."""
        with trio.move_on_after(LEAVE_SECONDS) as scope:
            scope.shield = True
            if self._is_whole:
                await self._send_line(msgspec.json.encode(TAKEN_AWAY))

    async def _say_alive(self) -> None:
        while True:
            await trio.sleep(ALIVE_SECONDS)
            await self._send_line(b"")

    async def _await_hangup(self) -> None:
        while await self._receive():
            pass
        self._scope.cancel()

    async def _read_line(self) -> bytes | None:
        line = bytearray()
        while not line.endswith(b"\n"):
            part = await self._receive()
            if not part or len(line) > _LINE_MAXIMUM:
                return None
            line += part
        return bytes(line)

    async def _receive(self) -> bytes:
        """What came; b"" once the client is gone."""
        try:
            return await self._stream.receive_some()
        except trio.BrokenResourceError:
            return b""


# The client's side


def request(path: str, command: str, *, timeout: float = SILENCE_SECONDS, **args: object) -> Iterator[Any]:
    """The values that the daemon at the socket ``path`` answers, as they come.

    ``timeout`` is how many seconds of silence are taken for its death; a daemon at work is never silent for
    longer than ``ALIVE_SECONDS``. Raises MountError where there is no daemon, where it goes, and with its
    own message where it refuses.
    """
    with (
        _connected(path, timeout, patience=BETWEEN_SECONDS) as connection,
        connection.makefile("rb") as lines,
    ):
        try:
            connection.sendall(msgspec.json.encode(_Request(command, args)) + b"\n")
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
