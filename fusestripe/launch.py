"""Starting the daemon and ending it, from outside of it.

The daemon gets an ``Order`` as JSON on its stdin, so that no more of it shows in ``ps`` than where it mounts
what, and answers with one line on the pipe named there: ``{"ok": true}`` once the tree answers, or
``{"error": message, "mend": mend}``.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from io import FileIO
from typing import BinaryIO

import msgspec
import psutil

from fusestripe.config import SETTINGS, Settings
from fusestripe.errors import FusestripeError, MountError, reason_of
from fusestripe.handover import Taken, check_taken
from fusestripe.keeper import how_it_ended
from fusestripe.kernel import mounting
from fusestripe.kernel.attach import MountOptions
from fusestripe.leftovers import alone, is_file, sweep
from fusestripe.places import check_places
from fusestripe.telemetry.client import BETWEEN_SECONDS, LOOK_SECONDS, daemon_pid
from fusestripe.telemetry.rundir import RUNTIME_VARIABLE, log_of, runtime_dir, socket_of, socket_path

__all__ = [
    "CHILD_ENVIRONMENT",
    "DAEMON",
    "KEEPER",
    "Order",
    "child_environment",
    "discard_log",
    "launch",
    "log_path",
    "options_of",
    "read_order",
    "report",
    "stop",
]

CHILD_ENVIRONMENT: Mapping[str, str] = {
    # One malloc arena a thread keeps freed stripes for itself; two bound what is resident (mallopt(3)).
    "MALLOC_ARENA_MAX": "2",
    "PYTHONUNBUFFERED": "1",
}
DAEMON = (sys.executable, "-m", "fusestripe.daemon")
"""What the daemon is started with, unless told otherwise."""
KEEPER = (sys.executable, "-m", "fusestripe.keeper")
"""What starts the daemon where it has a keeper."""
READY_SECONDS = 30.0
END_SECONDS = 30.0
_ANSWER_MAXIMUM = 1 << 16
_FIRST_FD = 3  # after stdin, stdout and stderr


class Order(msgspec.Struct, frozen=True):
    """What a daemon is started with. ``ready_fd`` is the pipe on which it says once how that went.

    It is below 0 for one that takes over from another. ``command`` is what a keeper starts it with.
    ``given`` are descriptors that it inherits, by their names, of a mount that another process has made;
    ``held`` are others, which it and its keeper have open as long as they live.
    """

    settings: Settings
    mountpoint: str
    ready_fd: int
    foreground: bool
    command: Sequence[str]
    given: Mapping[str, int] = {}
    held: Sequence[int] = ()


class _Ready(msgspec.Struct, frozen=True, omit_defaults=True):
    ok: bool = False
    error: str = ""
    mend: str = ""
    warning: str = ""


def read_order(stream: BinaryIO) -> Order:
    """The daemon's side: the order on its stdin. Raises msgspec.DecodeError.

    A keeper may have it from a version before this one: settings that are new since have their defaults.
    """
    order = msgspec.json.decode(stream.read())
    for setting in SETTINGS:
        section = order["settings"].get(setting.section)
        if isinstance(section, dict):
            section.setdefault(setting.key, setting.default)
    return msgspec.convert(order, type=Order)


def report(ready_fd: int, error: FusestripeError | None = None, *, warning: str = "") -> None:
    """The daemon's side: say that the tree answers, or why it never will; closes ``ready_fd``.

    ``warning``: what is not as it should be all the same.
    """
    if ready_fd < 0:
        return
    ready = (
        _Ready(ok=True, warning=warning) if error is None else _Ready(error=error.message, mend=error.mend)
    )
    with open(ready_fd, "wb", buffering=0) as pipe, contextlib.suppress(BrokenPipeError):
        pipe.write(msgspec.json.encode(ready) + b"\n")


def options_of(settings: Settings) -> MountOptions:
    """How ``settings`` are mounted; the source is what mount(8) and df show."""
    mount, routes = settings.mount, settings.routes
    source = mount.fsname or (routes[0].source if len(routes) == 1 else "fusestripe")
    return MountOptions(source, allow_other=mount.allow_other, noexec=mount.noexec)


def log_path(mountpoint: str) -> str:
    """Where the daemon of ``mountpoint`` (absolute, no links) logs when it is in the background."""
    return log_of(socket_path(mountpoint))


def discard_log(order: Order) -> None:
    """The daemon's side, when it ends as it should: remove its log, if it has one that is still its own."""
    name = log_path(order.mountpoint)
    with contextlib.suppress(OSError):
        if not order.foreground and is_file(sys.stderr.fileno(), name):
            os.unlink(name)


def launch(
    settings: Settings,
    mountpoint: str,
    foreground: bool = False,
    *,
    taken: Taken | None = None,
    command: Sequence[str] = DAEMON,
    timeout: float = READY_SECONDS,
) -> int:
    """Mount ``settings`` at ``mountpoint``; the pid of the daemon or its keeper, once the tree answers.

    In the foreground the daemon logs to this process's stderr; the caller waits for it (os.waitpid) and hands
    signals on, for it is in a session of its own. With ``taken`` the mount stands already, and stays when the
    daemon ends. ``command`` is what is started.

    Raises ConfigError where mountpoint, cache and source lie in one another; MountError with the daemon's own
    words where it fails, and where it does not answer in ``timeout`` seconds. No mount and no process is left
    then.
    """
    with alone(mounting.resolve(mountpoint)) as path:
        _check_name(path)
        check_places(settings, path)
        if taken is None:
            mounting.prepare(path)
            mounting.check_fuse(allow_other=settings.mount.allow_other)
            _check_namespaces(path)
        else:
            check_taken(path)
            if not settings.mount.keeper:
                raise MountError("a mount that is handed over takes a keeper", mend="leave keeper=no out")
        sweep(runtime_dir())
        read_end, write_end = _ready_pipe()
        with open(read_end, "rb", buffering=0) as ready:
            try:
                given = {} if taken is None else taken.descriptors
                held = () if taken is None else (taken.connection.fileno(),)
                order = Order(settings, path, write_end, foreground, command, given, held)
                daemon = _spawn(order, taken)
            finally:
                os.close(write_end)
            try:
                _await_ready(daemon, ready, timeout, "" if foreground else f"see {log_path(path)}")
            except BaseException:
                _clear(daemon, "" if taken is not None else path)
                raise
    # The daemon outlives this process by design: Popen shall neither warn of it nor wait for it.
    daemon.returncode = 0
    return daemon.pid


def stop(mountpoint: str, *, lazy: bool = False) -> None:
    """Unmount ``mountpoint`` and wait until its daemon has ended. Raises MountError.

    ``lazy``: where it is in use it is only taken out of the tree, and nobody is waited for: see
    ``mounting.unmount``. Where the daemon would go on, for its tree is mounted elsewhere too, nothing is done
    unless ``lazy``.
    """
    path = mounting.resolve(mountpoint)
    mount = mounting.find_mount(path)
    is_mine = mount is not None and mount.fstype == mounting.FSTYPE and mount.owner == os.geteuid()
    pid = _daemon_of(socket_of(mount), path) if mount is not None and is_mine else None
    others = [] if mount is None or pid is None else mounting.elsewhere(mount, mounting.mounts())
    if others and not lazy:
        raise MountError(
            f"what is mounted at {path} is in use at {', '.join(others)}", mend=f"umount {others[0]} first"
        )
    with contextlib.ExitStack() as stack:
        handles: dict[int, int] = {}
        for process in _with_keeper(pid):
            with contextlib.suppress(ProcessLookupError):  # ended since it listened
                handles[process] = os.pidfd_open(process)
                stack.callback(os.close, handles[process])
        is_gone = mounting.unmount(path, lazy=lazy)
        if is_gone and not others:
            for process, handle in handles.items():
                _await_end(process, handle, path)


def _daemon_of(socket: str, path: str) -> int | None:
    """The daemon at ``socket``; of two, one of which has just died, the next."""
    deadline = time.monotonic() + BETWEEN_SECONDS
    while True:
        pid = daemon_pid(socket)
        if pid is not None or time.monotonic() > deadline or mounting.is_dead(path):
            return pid
        time.sleep(LOOK_SECONDS)


def _with_keeper(pid: int | None) -> list[int]:
    """The daemon ``pid``, if there is one, and its keeper, if it has one."""
    if pid is None:
        return []
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid).parent()
        if parent is not None and KEEPER[-1] in parent.cmdline():
            return [pid, parent.pid]
    return [pid]


def _check_namespaces(path: str) -> None:
    """Raise MountError where ``path`` is a mount in another namespace: by their sockets they would be one."""
    pid = daemon_pid(socket_path(path))
    if pid is not None and mounting.is_hidden(path, pid):
        raise MountError(
            f"process {pid} serves {path} in another mount namespace",
            mend=f"give one of the two another directory in {RUNTIME_VARIABLE}",
        )


def _ready_pipe() -> tuple[int, int]:
    """A pipe (read end, write end) whose ends are no standard streams, though those may be closed here."""
    low = os.pipe()
    try:
        read_end = fcntl.fcntl(low[0], fcntl.F_DUPFD_CLOEXEC, _FIRST_FD)
        try:
            return read_end, fcntl.fcntl(low[1], fcntl.F_DUPFD_CLOEXEC, _FIRST_FD)
        except BaseException:
            os.close(read_end)
            raise
    finally:
        for end in low:
            os.close(end)


def _check_name(path: str) -> None:
    """Raise MountError unless an Order can hold ``path``: JSON is UTF-8 (RFC 8259)."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise MountError(f"the name {path!r} is not in UTF-8", mend="mount at one that is") from None


def _spawn(order: Order, taken: Taken | None) -> subprocess.Popen[bytes]:
    """With ``taken`` the giver is told what the next one is to have (NOTIFY_SOCKET, sd_notify(3)).

    The connection to the giver is held by keeper and daemons: as long as one of them lives, the mount is
    given to no other, whatever becomes of this process.
    """
    daemon_command = [*order.command, *_shown(order)]
    order = msgspec.structs.replace(order, command=daemon_command)
    manager = {} if taken is None else {"NOTIFY_SOCKET": taken.manager}
    with contextlib.ExitStack() as stack:
        output = None if order.foreground else stack.enter_context(_open_log(order.mountpoint))
        daemon = subprocess.Popen(
            [*KEEPER, *_shown(order)] if order.settings.mount.keeper else daemon_command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=[order.ready_fd, *order.given.values(), *order.held],
            # Past an automounter that waits for this mount come only processes of this one's group.
            start_new_session=not mounting.is_automount(order.mountpoint),
            cwd="/",  # keeps no filesystem busy, and python -m searches the working directory for modules
            env=child_environment() | manager,
        )
    assert daemon.stdin is not None
    with contextlib.suppress(BrokenPipeError), daemon.stdin:  # dead already: the ready pipe tells
        daemon.stdin.write(msgspec.json.encode(order))
    return daemon


def _shown(order: Order) -> list[str]:
    """Arguments that the daemon does not read: they tell people in ``ps`` which mount it serves."""
    return [order.mountpoint, *(route.source for route in order.settings.routes)]


def child_environment() -> dict[str, str]:
    """This process's, and what those that it starts need: the way to this package too, if not installed."""
    environment = {**os.environ, **CHILD_ENVIRONMENT}
    parent = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if os.path.basename(parent) not in ("site-packages", "dist-packages"):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [parent, environment.get("PYTHONPATH")]))
    return environment


def _open_log(mountpoint: str) -> BinaryIO:
    path = log_path(mountpoint)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of a daemon before, which may yet write its last words there
        return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        what = reason_of(error)
        raise MountError(f"the log {path} cannot be written: {what}", mend="make room there") from None


def _await_ready(daemon: subprocess.Popen[bytes], pipe: FileIO, timeout: float, log: str) -> None:
    """Return when the daemon says that the tree answers; raise what it says otherwise."""
    deadline = time.monotonic() + timeout
    answer = b""
    while not answer.endswith(b"\n") and len(answer) < _ANSWER_MAXIMUM:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            raise MountError(f"the daemon did not answer in {timeout:g} s", mend=log)
        part = pipe.read(_ANSWER_MAXIMUM)
        if not part:
            raise MountError(f"the daemon {_how_it_ended(daemon)} before the tree answered", mend=log)
        answer += part
    ready = msgspec.json.decode(answer, type=_Ready)
    if not ready.ok:
        raise MountError(ready.error, mend=ready.mend)
    if ready.warning:
        logging.getLogger(__name__).warning("%s", ready.warning)


def _how_it_ended(daemon: subprocess.Popen[bytes]) -> str:
    try:
        status = daemon.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return "closed its pipe"
    return how_it_ended(status)


def _clear(daemon: subprocess.Popen[bytes], mountpoint: str) -> None:
    """After a failed start: no process, no mount (at ``mountpoint``; "": it is another's)."""
    try:
        daemon.wait(timeout=2)  # one that said why it fails is on its way out, and unmounts
    except subprocess.TimeoutExpired:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(daemon.pid)
            process.suspend()  # a keeper starts no other daemon meanwhile
            # Not by its group, which may be this process's: see _spawn.
            for each in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a dead disk may hold it in the kernel
            daemon.wait(timeout=5)
    mount = mounting.find_mount(mountpoint)
    if mount is not None and mount.fstype == mounting.FSTYPE:
        mounting.unmount(mountpoint)


def _await_end(pid: int, handle: int, mountpoint: str) -> None:
    """Wait for process ``pid`` by its pidfd ``handle`` (pidfd_open(2): readable once it has ended)."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    if not poll.poll(END_SECONDS * 1000):
        raise MountError(
            f"{mountpoint} is unmounted, but its daemon still runs after {END_SECONDS:g} s",
            mend=f"see {log_path(mountpoint)}, then kill {pid}",
        )
    with contextlib.suppress(ChildProcessError):  # not started by this process: nothing to reap
        os.waitpid(pid, os.WNOHANG)
