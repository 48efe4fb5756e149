"""Other processes that read files of a mount without end, and look at every byte."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

from tests.support.mounted import until

__all__ = ["SteadyReaders"]

# Like tests.support.mounted_store.content; stands alone, so that a reader is there at once.
_PROGRAM = """
import mmap, os, random, sys
directory, size, seed, maps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "maps"
names = sys.argv[5:]
contents = {name: random.Random(int(name[4:])).randbytes(size) for name in names}
chosen = random.Random(seed)
reads = 0
try:
    while True:
        name = chosen.choice(names)
        with open(os.path.join(directory, name), "rb", buffering=0) as file:
            for _ in range(chosen.randrange(1, 8)):
                offset = chosen.randrange(size)
                length = chosen.choice((1, 4096, 70_000, 1 << 20))
                if maps:
                    with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
                        got = view[offset : offset + length]
                else:
                    got = os.pread(file.fileno(), length, offset)
                wanted = contents[name][offset : offset + length]
                # The end of a daemon may cut a read short; what came of it is right.
                if got != wanted[: len(got)] or not got:
                    print(f"wrong: {len(got)} bytes of {name} at {offset}", flush=True)
                    sys.exit(1)
                reads += 1
                if reads == 1:
                    print("reads", flush=True)
except OSError as error:
    print(error.errno, flush=True)
"""

_ENDS = {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENOENT, errno.EINTR}
"""What a reader may meet when a mount goes; ENOENT is of the empty directory under it."""


class SteadyReaders:
    """``count`` processes that read the files ``names`` below ``directory``; a context manager.

    A file is called like "file7" and holds ``content(size, 7)`` (tests.support.mounted_store). They end with
    the mount: at the first error, or at the first wrong byte.
    """

    def __init__(
        self, directory: Path, names: list[str], size: int, *, count: int, seed: int = 0, maps: bool = False
    ) -> None:
        how = "maps" if maps else "reads"
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
        self._processes = [
            subprocess.Popen(
                [*command, str(directory), str(size), str(seed + number), how, *names],
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(count)
        ]

    def __enter__(self) -> SteadyReaders:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate(timeout=20)

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [process.pid for process in self._processes]

    def wait_reading(self) -> None:
        """Return once each has read something."""
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "reads\n"

    def check(self) -> None:
        """All have ended by now or do soon, because the mount went, and none has seen a wrong byte."""
        until(lambda: all(process.poll() is not None for process in self._processes))
        for process in self._processes:
            said, _ = process.communicate(timeout=20)
            last = said.split("\n")[-2] if said else ""
            assert process.returncode in (0, -7), said  # -7: a map whose pages are gone, SIGBUS
            assert process.returncode == -7 or int(last) in _ENDS, said

    def check_alive(self) -> None:
        """All go on reading."""
        assert all(process.poll() is None for process in self._processes)
