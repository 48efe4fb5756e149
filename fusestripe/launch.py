"""Starting the daemon and ending it, from outside of it.

The daemon gets an ``Order`` as JSON on its stdin, so that no more of it shows in ``ps`` than where it mounts
what, and answers with one
line on the pipe named there: ``{"ok": true}`` once the tree answers, or ``{"error": message, "mend": mend}``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from typing import BinaryIO

import msgspec

from fusestripe.config import Settings
from fusestripe.errors import FusestripeError, MountError
from fusestripe.kernel import mounting
from fusestripe.places import check_places
from fusestripe.telemetry.control import daemon_pid, has_listener, runtime_dir, socket_path

__all__ = [
    "CHILD_ENVIRONMENT",
    "Order",
    "discard_log",
    "launch",
    "log_path",
    "read_order",
    "report",
    "stop",
    "sweep",
]

CHILD_ENVIRONMENT: Mapping[str, str] = {
    # One malloc arena a thread keeps freed stripes for itself; two bound what is resident (mallopt(3)).
    "MALLOC_ARENA_MAX": "2",
    "PYTHONUNBUFFERED": "1",
}
DAEMON = (sys.executable, "-m", "fusestripe.daemon")
READY_SECONDS = 30.0
END_SECONDS = 30.0
LEFT_SECONDS = 7 * 86400.0
"""So long the last log of a daemon that was killed is there for whoever wants to know why."""
_ANSWER_MAXIMUM = 1 << 16
_OURS = re.compile(r"[0-9a-f]{16}\.(log|lock|sock|sock\.new)")


class Order(msgspec.Struct, frozen=True):
    """What a daemon is started with. ``ready_fd`` is the pipe on which it says once how that went."""

    settings: Settings
    mountpoint: str
    ready_fd: int
    foreground: bool


class _Ready(msgspec.Struct, frozen=True, omit_defaults=True):
    ok: bool = False
    error: str = ""
    mend: str = ""


def read_order(stream: BinaryIO) -> Order:
    """The daemon's side: the order on its stdin. Raises msgspec.DecodeError."""
    return msgspec.json.decode(stream.read(), type=Order)


def report(ready_fd: int, error: FusestripeError | None = None) -> None:
    """The daemon's side: say that the tree answers, or why it never will; closes ``ready_fd``."""
    ready = _Ready(ok=True) if error is None else _Ready(error=error.message, mend=error.mend)
    with open(ready_fd, "wb", buffering=0) as pipe, contextlib.suppress(BrokenPipeError):
        pipe.write(msgspec.json.encode(ready) + b"\n")


def log_path(mountpoint: str) -> str:
    """Where the daemon of ``mountpoint`` (absolute, no links) logs when it is in the background."""
    return _beside_socket(mountpoint, ".log")


def discard_log(order: Order) -> None:
    """The daemon's side, when it ends as it should: remove its log, if it has one that is still its own."""
    name = log_path(order.mountpoint)
    with contextlib.suppress(OSError):
        if not order.foreground and _is_file(sys.stderr.fileno(), name):
            os.unlink(name)


def launch(
    settings: Settings,
    mountpoint: str,
    foreground: bool = False,
    *,
    command: Sequence[str] = DAEMON,
    timeout: float = READY_SECONDS,
) -> int:
    """Mount ``settings`` at ``mountpoint``; the pid of the daemon, once the tree answers.

    In the foreground the daemon logs to this process's stderr; the caller waits for it (os.waitpid) and hands
    signals on, for it is in a session of its own. ``command`` is what is started.

    Raises ConfigError where mountpoint, cache and source lie in one another; MountError with the daemon's own
    words where it fails, and where it does not answer in ``timeout`` seconds. No mount and no process is left
    then.
    """
    with _alone(mounting.resolve(mountpoint)) as path:
        check_places(settings, path)
        mounting.prepare(path)
        mounting.check_fuse(allow_other=settings.mount.allow_other)
        sweep(runtime_dir())
        read_end, write_end = os.pipe()
        with open(read_end, "rb", buffering=0) as ready:
            try:
                daemon = _spawn(command, Order(settings, path, write_end, foreground))
            finally:
                os.close(write_end)
            try:
                _await_ready(daemon, ready, timeout, "" if foreground else f"see {log_path(path)}")
            except BaseException:
                _clear(daemon, path)
                raise
    # The daemon outlives this process by design: Popen shall neither warn of it nor wait for it.
    daemon.returncode = 0
    return daemon.pid


def stop(mountpoint: str) -> None:
    """Unmount ``mountpoint`` and wait until its daemon has ended. Raises MountError."""
    path = mounting.resolve(mountpoint)
    mount = mounting.find_mount(path)
    is_mine = mount is not None and mount.fstype == mounting.FSTYPE and mount.owner == os.geteuid()
    pid = daemon_pid(socket_path(path)) if is_mine else None
    with contextlib.ExitStack() as stack:
        handle = None
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):  # ended since it listened
                handle = os.pidfd_open(pid)
                stack.callback(os.close, handle)
        mounting.unmount(path)
        if pid is not None and handle is not None:
            _await_end(pid, handle, path)


def sweep(directory: str) -> None:
    """Remove what daemons that are gone left in ``directory``, the runtime one, over ``LEFT_SECONDS`` ago."""
    horizon = time.time() - LEFT_SECONDS
    with os.scandir(directory) as entries:
        ours = [entry for entry in entries if _OURS.fullmatch(entry.name)]
    for entry in ours:
        with contextlib.suppress(OSError):  # no reason not to mount; another may sweep too
            if entry.stat(follow_symlinks=False).st_mtime < horizon:
                _discard(entry.path)


def _discard(path: str) -> None:
    """Remove the file ``path`` of a mount, unless its daemon lives or it is just being mounted."""
    mount = path.removesuffix(".new").rpartition(".")[0]
    if has_listener(f"{mount}.sock"):
        return
    lock = _lock(f"{mount}.lock")
    if lock is not None:
        try:
            os.unlink(path)
            with contextlib.suppress(FileNotFoundError):  # it was that
                os.unlink(f"{mount}.lock")
        finally:
            os.close(lock)


@contextlib.contextmanager
def _alone(path: str) -> Iterator[str]:
    """``path``, while no other process of this user mounts there (it would mount over it unseen)."""
    name = _beside_socket(path, ".lock")
    lock = _lock(name)
    try:
        if lock is None:
            raise MountError(f"{path} is being mounted by another process", mend="wait for it")
        yield path
        # Still locked: whoever opened it meanwhile sees that it is gone, and makes another.
    finally:
        if lock is not None:
            with contextlib.suppress(OSError):
                os.unlink(name)
            os.close(lock)


def _lock(name: str) -> int | None:
    """A descriptor of the file ``name``, made if missing, locked; None where another process has the lock."""
    while True:
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file(lock, name):
                return lock
        except BlockingIOError:
            os.close(lock)
            return None
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _is_file(descriptor: int, name: str) -> bool:
    """Whether ``descriptor`` is of the file that has this name now."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(name))
    except FileNotFoundError:
        return False


def _beside_socket(mountpoint: str, suffix: str) -> str:
    return socket_path(mountpoint).removesuffix(".sock") + suffix


def _spawn(command: Sequence[str], order: Order) -> subprocess.Popen[bytes]:
    with contextlib.ExitStack() as stack:
        output = None if order.foreground else stack.enter_context(_open_log(order.mountpoint))
        daemon = subprocess.Popen(
            [*command, *_shown(order)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=[order.ready_fd],
            start_new_session=True,
            cwd="/",  # keeps no filesystem busy, and python -m searches the working directory for modules
            env=_environment(),
        )
    assert daemon.stdin is not None
    with contextlib.suppress(BrokenPipeError), daemon.stdin:  # dead already: the ready pipe tells
        daemon.stdin.write(msgspec.json.encode(order))
    return daemon


def _shown(order: Order) -> list[str]:
    """Arguments that the daemon does not read: they tell people in ``ps`` which mount it serves."""
    return [order.mountpoint, *(route.source for route in order.settings.routes)]


def _environment() -> dict[str, str]:
    """This process's, and what the daemon needs; the way to this package too where it is not installed."""
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
        what = (error.strerror or str(error)).lower()
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


def _how_it_ended(daemon: subprocess.Popen[bytes]) -> str:
    try:
        status = daemon.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return "closed its pipe"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _clear(daemon: subprocess.Popen[bytes], mountpoint: str) -> None:
    """After a failed start: no process, no mount."""
    try:
        daemon.wait(timeout=2)  # one that said why it fails is on its way out, and unmounts
    except subprocess.TimeoutExpired:
        daemon.kill()
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
