"""stdout that says in one line what is wrong with it: a full disk, a terminal that is gone."""

from __future__ import annotations

import io
from typing import TextIO

from typing_extensions import Buffer

from fusestripe.errors import FusestripeError, reason_of

__all__ = ["OutputFails", "guarded"]


class OutputFails(FusestripeError):
    """Where the output goes to takes nothing more."""


class _Guarded(io.FileIO):
    """Raises OutputFails once, and swallows what comes after: the interpreter flushes at its end once more.

    A pipe that nobody reads any more stays BrokenPipeError.
    """

    _fails = False

    def write(self, data: Buffer, /) -> int:
        """See io.RawIOBase."""
        if self._fails:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            self._fails = True
            what = reason_of(error)
            raise OutputFails(
                f"the output cannot be written: {what}", mend="look at where it goes to"
            ) from None


def guarded(stream: TextIO) -> TextIO:
    """``stream``, a program's stdout, guarded."""
    stream.flush()
    raw = _Guarded(stream.fileno(), "wb", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty(),
    )
