"""Mounts to compare: ours and others', each with its own cache, and taken away whatever happens."""

from __future__ import annotations

import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import psutil
from obstore.store import S3Store
from typing_extensions import Self

from tests.bench.lab import BUCKET
from tests.support.mounted import Mounted, mounted
from tests.support.seaweed import ACCESS_KEY, REGION, SECRET_KEY, aws_environment, find_program

__all__ = ["OTHERS", "Fusestripe", "Mount", "Rclone", "S3fs", "ServedFusestripe"]

MOUNT_SECONDS = 60.0
UNMOUNT_SECONDS = 60.0
END_SECONDS = 10.0


class Mount(ABC):
    """The bucket at ``endpoint`` shown at ``path`` inside a with block; all it needs is in ``directory``."""

    name: ClassVar[str]

    def __init__(self, endpoint: str, directory: Path) -> None:
        self.endpoint = endpoint
        self.path = directory / "mnt"
        self.cache = directory / "cache"
        self.log = directory / "log"

    def __enter__(self) -> Self:
        self.path.mkdir(exist_ok=True)
        self.cache.mkdir(exist_ok=True)
        try:
            self.mount()
        except BaseException:
            self.unmount()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unmount()

    def provide(self, store: S3Store, key: str) -> Path:
        """Where the object ``key`` of ``store`` is in the tree; a tree that is not the bucket gets a copy."""
        return self.path / key

    @abstractmethod
    def mount(self) -> None:
        """Return when the tree answers."""

    @abstractmethod
    def unmount(self) -> None:
        """Return when mount and process are gone; does nothing where they are."""


class Fusestripe(Mount):
    """Ours, with ``options`` of `fusestripe mount` besides the ``settings`` of its kind."""

    name = "fusestripe"
    settings: ClassVar[Mapping[str, object]] = {}

    def __init__(self, endpoint: str, directory: Path, **options: Any) -> None:
        super().__init__(endpoint, directory)
        self._options = {**self.settings, **options}
        self._stack = ExitStack()
        self._mounted: Mounted | None = None

    def mount(self) -> None:
        """Return when the tree answers."""
        self._mounted = self._stack.enter_context(
            mounted(
                f"s3://{BUCKET}",
                self.path,
                cache_dir=self.cache,
                environment=aws_environment(self.endpoint),
                **self._options,
            )
        )

    def unmount(self) -> None:
        """Return when mount and daemon are gone."""
        self._stack.close()

    @property
    def daemon(self) -> Mounted:
        """The mount as tests know it."""
        if self._mounted is None:
            raise RuntimeError("it is not mounted")
        return self._mounted

    def cpu_seconds(self) -> float:
        """Processor time that the daemon has taken so far (utime and stime, proc_pid_stat(5))."""
        times = psutil.Process(self.daemon.pid).cpu_times()
        return times.user + times.system

    def why_no_passthrough(self) -> str:
        """What keeps the kernel from reading whole files itself; "" where nothing does."""
        (feature,) = (each for each in self.daemon.status()["features"] if each["name"] == "passthrough")
        return "" if feature["on"] else str(feature["why"])

    def peak_memory(self) -> int:
        """Bytes of memory that the daemon had resident at most (VmHWM, proc_pid_status(5))."""
        for line in Path(f"/proc/{self.daemon.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError(f"no VmHWM in the status of process {self.daemon.pid}")


class ServedFusestripe(Fusestripe):
    """Ours where the kernel may not read the cache files itself: the daemon serves every read."""

    settings: ClassVar[Mapping[str, object]] = {"passthrough": False}


class Foreground(Mount):
    """A mount that is a process of ours for as long as it lasts."""

    def __init__(self, endpoint: str, directory: Path) -> None:
        super().__init__(endpoint, directory)
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """What is run."""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """What it finds in its environment besides ours."""

    def mount(self) -> None:
        """Return when the tree answers."""
        with open(self.log, "wb") as output:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.environment()},
                start_new_session=True,  # Ctrl-C is ours: the mount is taken away in order
            )
        deadline = time.monotonic() + MOUNT_SECONDS
        while not os.path.ismount(self.path):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = self.log.read_text(errors="replace")[-1000:]
                raise RuntimeError(f"{self.name} does not mount:\n{said}")
            time.sleep(0.02)

    def unmount(self) -> None:
        """Return when mount and process are gone."""
        process, self._process = self._process, None
        if process is None:
            return
        if not os.path.ismount(self.path):
            process.terminate()
        deadline = time.monotonic() + UNMOUNT_SECONDS
        # A mount is busy for a moment after its last reader.
        while os.path.ismount(self.path) and time.monotonic() < deadline:
            subprocess.run(["fusermount3", "-u", self.path], stderr=subprocess.DEVNULL, check=False)
            time.sleep(0.05)
        if os.path.ismount(self.path):
            process.kill()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # what it still wants to do without its mount is nobody's concern
        process.wait()
        if os.path.ismount(self.path):
            subprocess.run(["fusermount3", "-u", "-z", self.path], check=False)
            said = self.log.read_text(errors="replace")[-1000:]
            raise RuntimeError(f"{self.name} is busy {UNMOUNT_SECONDS:.0f} s after its last reader:\n{said}")


class Rclone(Foreground):
    """rclone's VFS with its full cache and eight streams a file."""

    name = "rclone"

    def command(self) -> list[str]:
        """`rclone mount`."""
        return [
            find_program("rclone"),
            "mount",
            f"bench:{BUCKET}",
            str(self.path),
            "--read-only",
            "--vfs-cache-mode=full",
            "--vfs-read-chunk-streams=8",
            f"--cache-dir={self.cache}",
        ]

    def environment(self) -> dict[str, str]:
        """A remote named bench."""
        return {
            "RCLONE_CONFIG": "/dev/null",
            "RCLONE_CONFIG_BENCH_TYPE": "s3",
            "RCLONE_CONFIG_BENCH_PROVIDER": "SeaweedFS",
            "RCLONE_CONFIG_BENCH_ENDPOINT": self.endpoint,
            "RCLONE_CONFIG_BENCH_REGION": REGION,
            "RCLONE_CONFIG_BENCH_ACCESS_KEY_ID": ACCESS_KEY,
            "RCLONE_CONFIG_BENCH_SECRET_ACCESS_KEY": SECRET_KEY,
        }


class S3fs(Foreground):
    """s3fs with a cache."""

    name = "s3fs"

    def command(self) -> list[str]:
        """`s3fs -f`."""
        options = f"ro,use_cache={self.cache},use_path_request_style,url={self.endpoint}"
        return ["s3fs", BUCKET, str(self.path), "-f", "-o", options]

    def environment(self) -> dict[str, str]:
        """The credentials."""
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


OTHERS: tuple[type[Foreground], ...] = (Rclone, S3fs)
