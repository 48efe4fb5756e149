"""Mounts of one bucket that live for many examples of a property test, and what may happen to them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

import msgspec
from click.testing import CliRunner

from fusestripe.cli import cli
from tests.support.mounted import Mounted, until
from tests.support.mounted_store import MIB, MountedStore
from tests.support.reader import OtherReader

__all__ = ["TTL", "Lab", "Shape"]

TTL = 0.3
DEADLINE = 25.0
"""Seconds that a call of a reader may take: more than a few faults cost, less than ``timeout`` mostly is."""

# What a daemon may say above INFO while all this happens to it: the reasons are in the rules of the test.
_EXPECTED = re.compile(
    r"(ERROR .*/(e\d+)\b.*: stripe \d+: .*(has changed since it was opened|was deleted while it was open)"
    r"|WARNING .*cache: (stripe \d+ of .* is damaged|.* is begun anew|the files of .* were taken away)"
    r")"
)
_OF_OUTAGES = re.compile(r"ERROR .*s3://")


class Shape(msgspec.Struct, frozen=True):
    """The settings in which mounts differ. ``impatient``: the origin is failing for longer at times."""

    stripe_size: int
    channel: bool = True
    passthrough: bool = True
    impatient: bool = False

    @property
    def timeout(self) -> int:
        """Seconds after which a read fails."""
        return 3 if self.impatient else 120


class Lab:
    """``reader`` is the process that reads; ``seen`` counts what came about; ``story`` tells
    what is done in this example. Use as a context manager."""

    def __init__(self, store: MountedStore) -> None:
        self.store = store
        self.cache = store.directory / "cache"
        self.reader = OtherReader(DEADLINE)
        self.example = 0
        self.seen: Counter[str] = Counter()
        self.story: list[str] = []
        self._failure: AssertionError | None = None
        self._led_to_it = ""
        self._lives: dict[Shape, list[ExitStack]] = {}
        self._mounts: dict[Shape, Mounted] = {}

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reader.close()
        with ExitStack() as stack:
            for lives in self._lives.values():
                for life in lives:
                    stack.push(life)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The first failure inside is kept, with what led to it."""
        try:
            yield
        except AssertionError as error:
            if self._failure is None:
                self._failure = error
                self._led_to_it = "\n".join(self.story)
            self.new_reader()
            raise

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Whatever Hypothesis makes of it, the first failure is what is raised."""
        try:
            yield
        finally:
            if self._failure is not None:
                raise AssertionError(f"{what}, {self._led_to_it}") from self._failure

    def new_reader(self) -> None:
        """End the reader, and with it all that it has open; another takes its place."""
        self.reader.close()
        self.reader = OtherReader(DEADLINE)

    def mount(self, shape: Shape) -> Mounted:
        """The one that stands, or else a new one."""
        mount = self._mounts.get(shape)
        if mount is None:
            life = ExitStack()
            number = list(self._lives).index(shape) if shape in self._lives else len(self._lives)
            mount = self._mounts[shape] = life.enter_context(
                self.store.mount(
                    at=f"mnt-{number}",
                    complaints=True,
                    stripe_size=shape.stripe_size,
                    timeout=shape.timeout,
                    channel=shape.channel,
                    passthrough=shape.passthrough,
                    memory=MIB,
                    ttl=TTL,
                    negative_ttl=TTL / 2,
                )
            )
            self._lives.setdefault(shape, []).append(life)
        return mount

    def end(self, shape: Shape) -> None:
        """Unmount, as `fusestripe unmount` does."""
        self.check_log(shape)
        del self._mounts[shape]
        self._lives[shape].pop().close()

    def kill(self, shape: Shape) -> None:
        """kill -9: what the mount's life has left is taken away at the end of the lab."""
        self.check_log(shape)
        self._mounts.pop(shape).kill()

    def check_log(self, shape: Shape) -> None:
        """Fail where the daemon has said what nobody expected."""
        for line in self._mounts[shape].complaints():
            expected = _EXPECTED.search(line) or (shape.impatient and _OF_OUTAGES.search(line))
            assert expected, line

    def wait_closed(self, shape: Shape) -> None:
        """Until the daemon has heard of the end of every handle, and nothing is under way."""
        mount = self.mount(shape)
        until(lambda: mount.status()["open_files"] == 0)

    def tidy(self, *command: str) -> None:
        """`fusestripe cache` with ``command``; that there is nothing to do is no failure."""
        done = CliRunner().invoke(cli, ["cache", *command, "--cache-dir", str(self.cache)])
        assert done.exit_code == 0 or "is in the cache" in done.output, done.output

    def cache_files(self) -> list[Path]:
        """The files of the objects in the cache."""
        return sorted(path for path in (self.cache / "objects").rglob("*") if path.is_file())
