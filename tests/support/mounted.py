"""A real mount by a real daemon, for any test: mounted as the command does it, and always taken away."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fusestripe.config import load
from fusestripe.errors import MountError
from fusestripe.kernel.mounting import find_mount
from fusestripe.launch import DAEMON, launch, log_path, stop
from fusestripe.telemetry.client import daemon_pid, request
from fusestripe.telemetry.rundir import socket_path

__all__ = ["Mounted", "mounted", "mounted_by", "until"]

# What a daemon may log while all is well: everything else in its log fails the test that mounted it.
QUIET_LEVELS = (" DEBUG ", " INFO ")
SILENT = "has sent nothing for"


class Mounted:
    """A mount that is there. ``path`` is where; ``pid`` its daemon's, the first one's of many.

    ``keeper`` is who starts another when that dies, None where nobody does.
    """

    def __init__(self, path: Path, pid: int, keeper: int | None = None) -> None:
        self.path = path
        self.pid = pid
        self.keeper = keeper
        self._log = os.open(log_path(str(path)), os.O_RDONLY)  # a daemon that ends takes the name along

    def status(self) -> dict[str, Any]:
        """What the daemon says of itself."""
        (answer,) = request(socket_path(str(self.path)), "status")
        assert isinstance(answer, dict)
        return answer

    def log(self) -> str:
        """The daemon's log so far."""
        return os.pread(self._log, os.fstat(self._log).st_size, 0).decode()

    def close(self) -> None:
        """Close the log."""
        os.close(self._log)

    def complaints(self) -> list[str]:
        """Lines of the log above INFO; not that an origin is silent, as many are on purpose."""
        quiet = (*QUIET_LEVELS, SILENT)
        return [line for line in self.log().splitlines() if not any(each in line for each in quiet)]

    def kill(self) -> None:
        """kill -9 the daemon and who would start another, and wait until it is gone."""
        if self.keeper is not None:
            os.kill(self.keeper, signal.SIGKILL)
        self.kill_daemon()

    def kill_daemon(self) -> int:
        """kill -9 the daemon of now, and wait until it is gone; which it was."""
        pid = self.pid if self.keeper is None else daemon_pid(socket_path(str(self.path)))
        assert pid is not None
        handle = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            assert select.select([handle], [], [], 20)[0], "it does not end"
        finally:
            os.close(handle)
        return pid


@contextmanager
def mounted(
    source: str | Path,
    path: Path,
    *,
    cache_dir: Path,
    environment: Mapping[str, str] | None = None,
    complaints: bool = False,
    command: Sequence[str] = DAEMON,
    **settings: object,
) -> Iterator[Mounted]:
    """``source`` at ``path`` (made if missing) for the time of the block.

    ``settings`` are those of ``-o`` (stripe_size="1MiB", ttl=1, ...); ``environment`` holds credentials.
    Without a keeper unless told otherwise: its process would be one more to start, for each test.
    ``command`` starts the daemon.
    Unless ``complaints``, a warning or an error in the daemon's log fails the test.
    """
    options = {"cache_dir": str(cache_dir), "keeper": "no", **settings}
    with mounted_by(command, str(source), options, path, environment or {}, complaints=complaints) as mount:
        yield mount


@contextmanager
def mounted_by(
    command: Sequence[str],
    source: str,
    options: Mapping[str, object],
    path: Path,
    environment: Mapping[str, str],
    *,
    complaints: bool,
) -> Iterator[Mounted]:
    """The same with another ``command`` to start the daemon."""
    path.mkdir(exist_ok=True)
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        pid = launch(load(source, options), str(path), command=command)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    daemon = daemon_pid(socket_path(str(path.resolve())))
    assert daemon is not None
    mount = Mounted(path.resolve(), daemon, pid if pid != daemon else None)
    try:
        yield mount
        if not complaints:
            assert mount.complaints() == []
    except BaseException:
        print(mount.log())  # shown where the test fails
        raise
    finally:
        mount.close()
        if find_mount(str(mount.path)) is not None:
            _unmount(mount)


def _unmount(mount: Mounted) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            stop(str(mount.path))
        except MountError:
            # A reader that the test has just ended may hold it for a moment.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def until(condition: Callable[[], bool], timeout: float = 20.0) -> None:
    """Return once ``condition`` holds; fail where it does not within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)
