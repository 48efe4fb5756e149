"""A real mount by a real daemon, for any test: mounted as the command does it, and always taken away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from fusestripe.config import load
from fusestripe.errors import MountError
from fusestripe.kernel.mounting import find_mount
from fusestripe.launch import launch, log_path, stop
from fusestripe.telemetry.control import request, socket_path

__all__ = ["Mounted", "mounted", "until"]

# What a daemon may log while all is well: everything else in its log fails the test that mounted it.
QUIET_LEVELS = (" DEBUG ", " INFO ")


class Mounted:
    """A mount that is there. ``path`` is where; ``pid`` its daemon's."""

    def __init__(self, path: Path, pid: int) -> None:
        self.path = path
        self.pid = pid
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
        """Lines of the log above INFO."""
        return [line for line in self.log().splitlines() if not any(level in line for level in QUIET_LEVELS)]

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        process = psutil.Process(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        with suppress(psutil.NoSuchProcess):
            process.wait(20)


@contextmanager
def mounted(
    source: str | Path,
    path: Path,
    *,
    cache_dir: Path,
    environment: Mapping[str, str] | None = None,
    complaints: bool = False,
    **settings: object,
) -> Iterator[Mounted]:
    """``source`` at ``path`` (made if missing) for the time of the block.

    ``settings`` are those of ``-o`` (stripe_size="1MiB", ttl=1, ...); ``environment`` holds credentials.
    Unless ``complaints``, a warning or an error in the daemon's log fails the test.
    """
    path.mkdir(exist_ok=True)
    options = {"cache_dir": str(cache_dir), **settings}
    before = {name: os.environ.get(name) for name in environment or {}}
    os.environ.update(environment or {})
    try:
        pid = launch(load(str(source), options), str(path))
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    mount = Mounted(path.resolve(), pid)
    try:
        yield mount
        if not complaints:
            assert mount.complaints() == []
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
