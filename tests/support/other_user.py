"""What another user of the machine can do: here uid 1 (daemon), in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["OTHER_UID", "as_other", "read_as_other"]

OTHER_UID = 1


def as_other(directory: Path, call: Callable[[], bytes]) -> bytes | int:
    """What ``call`` gives with ``directory`` as the current one, or the errno that it ends in.

    From there on, since pytest keeps the way to it closed. For root alone.
    """
    descriptor = os.open(directory, os.O_PATH)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 255
        try:
            os.fchdir(descriptor)
            os.setgroups([])
            os.setgid(OTHER_UID)
            os.setuid(OTHER_UID)
            os.write(writer, call())
            status = 0
        except OSError as error:
            status = error.errno or 255
        finally:
            os._exit(status)
    os.close(writer)
    os.close(descriptor)
    with open(reader, "rb") as pipe:
        data = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return data if status == 0 else status


def read_as_other(path: Path) -> bytes | int:
    """The first bytes of ``path``, or the errno."""

    def read() -> bytes:
        return os.read(os.open(path.name, os.O_RDONLY), 100)

    return as_other(path.parent, read)
