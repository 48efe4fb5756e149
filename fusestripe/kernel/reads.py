"""Answers READ: on the channel's thread where the bytes are at hand, else in a task that waits for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from errno import EBADF, EINTR
from typing import NoReturn

import trio

from fusestripe.errors import FusestripeError, errno_of
from fusestripe.kernel.abi import ReadRequest
from fusestripe.kernel.channel import Replies
from fusestripe.kernel.interrupts import ends_reader
from fusestripe.reader import Handle, Reader

__all__ = ["Reads"]

log = logging.getLogger(__name__)

# How often a reader that waits is looked at for a signal that ends it (seconds).
LOOK = 0.2

Wait = Callable[[int, int, int], Awaitable["bytes | bytearray | memoryview"]]
"""(fh, offset, size) -> the bytes, however long it takes; valid until the next checkpoint."""


class Reads:
    """``handle_of`` finds the open handle of a number, ``wait`` reads like pyfuse3's own READ.

    Tasks run in ``nursery``. A reader that a signal ends is let go with EINTR; the fetch goes on without it.
    FUSE_INTERRUPT alone would not do: the kernel sends none for read-ahead and for O_DIRECT, and for others
    it tells of the first signal only. A page that another reader waits for too is asked for once more.
    """

    def __init__(
        self,
        replies: Replies,
        reader: Reader,
        handle_of: Callable[[int], Handle | None],
        wait: Wait,
        nursery: trio.Nursery,
    ) -> None:
        self._replies = replies
        self._reader = reader
        self._handle_of = handle_of
        self._wait = wait
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        self._waiting: dict[int, _Waiting] = {}
        self._someone_waits = trio.Event()
        self._closed = False

    def close(self) -> None:
        """Begin nothing more: the nursery is about to end, and the mount is too."""
        self._closed = True

    def read(self, request: ReadRequest) -> None:
        """See channel.Requests."""
        if self._closed:
            return
        handle = self._handle_of(request.fh)
        if handle is None:
            self._replies.error(request.unique, EBADF)
            return
        data = self._reader.look(handle, request.offset, request.size)
        if data is not None:
            self._replies.data(request.unique, data)
            self._reader.looked(handle, request.offset, len(data))
            return
        self._waiting[request.unique] = _Waiting(request)
        self._soon(self._begin, request.unique)

    def interrupt(self, unique: int) -> bool:
        """See channel.Requests. Whether the signal ends the reader shows when it is looked at."""
        return unique in self._waiting

    async def watch(self) -> NoReturn:
        """Let readers go that a signal ends."""
        while True:
            if not self._waiting:
                self._someone_waits = trio.Event()
                await self._someone_waits.wait()
            await trio.sleep(LOOK)
            before = time.monotonic() - LOOK
            waiting = [one for one in list(self._waiting.values()) if one.since < before]
            ended = {pid for pid in {one.request.pid for one in waiting} if ends_reader(pid)}
            for one in waiting:
                if one.request.pid in ended:
                    one.scope.cancel()

    def _soon(self, call: Callable[[int], None], unique: int) -> None:
        with suppress(trio.RunFinishedError):  # the daemon ends, and every request with it
            self._token.run_sync_soon(call, unique)

    def _begin(self, unique: int) -> None:
        if not self._closed:
            self._someone_waits.set()
            self._nursery.start_soon(self._answer, self._waiting[unique])

    async def _answer(self, waiting: _Waiting) -> None:
        unique, _pid, fh, offset, size = waiting.request
        try:
            with waiting.scope:
                # Nothing may run between the read and the reply: the bytes are valid until then.
                self._replies.data(unique, await self._wait(fh, offset, size))
        except FusestripeError as error:
            self._replies.error(unique, errno_of(error))
        except Exception as error:
            log.exception("read failed")
            self._replies.error(unique, errno_of(error))
        finally:
            del self._waiting[unique]
        if waiting.scope.cancelled_caught:
            self._replies.error(unique, EINTR)


class _Waiting:
    __slots__ = ("request", "scope", "since")

    def __init__(self, request: ReadRequest) -> None:
        self.request = request
        self.scope = trio.CancelScope()
        self.since = time.monotonic()
