"""Answers READ: on the channel's thread where the bytes are at hand, else in a task that waits for them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from errno import EBADF, EINTR

import trio

from fusestripe.errors import FusestripeError, errno_of
from fusestripe.kernel.abi import ReadRequest
from fusestripe.kernel.channel import Replies
from fusestripe.kernel.interrupts import ends_reader
from fusestripe.reader import Handle, Reader

__all__ = ["Reads"]

log = logging.getLogger(__name__)

# The kernel tells of the first signal only: how often a reader is looked at for a later one (seconds).
LOOK_AGAIN = 0.1

Wait = Callable[[int, int, int], Awaitable["bytes | bytearray | memoryview"]]
"""(fh, offset, size) -> the bytes, however long it takes; valid until the next checkpoint."""


class Reads:
    """``handle_of`` finds the open handle of a number, ``wait`` reads like pyfuse3's own READ.

    Tasks run in ``nursery``. A reader that a signal ends is let go with EINTR; the fetch goes on without it.
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
        self._closed = False

    def close(self) -> None:
        """Begin nothing more: the nursery is about to end, and the mount is too."""
        self._closed = True

    def read(self, request: ReadRequest) -> None:
        """See channel.Requests."""
        handle = self._handle_of(request.fh)
        if handle is None:
            self._replies.error(request.unique, EBADF)
            return
        data = self._reader.read_now(handle, request.offset, request.size)
        if data is not None:
            self._replies.data(request.unique, data)
            return
        self._waiting[request.unique] = _Waiting(request)
        self._soon(self._begin, request.unique)

    def interrupt(self, unique: int) -> bool:
        """See channel.Requests."""
        if unique not in self._waiting:
            return False
        self._soon(self._watch, unique)
        return True

    def _soon(self, call: Callable[[int], None], unique: int) -> None:
        with suppress(trio.RunFinishedError):  # the daemon ends, and every request with it
            self._token.run_sync_soon(call, unique)

    def _begin(self, unique: int) -> None:
        if not self._closed:
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

    def _watch(self, unique: int) -> None:
        waiting = self._waiting.get(unique)
        if waiting is not None and not waiting.watched and not self._closed:
            waiting.watched = True
            self._nursery.start_soon(self._let_go, waiting)

    async def _let_go(self, waiting: _Waiting) -> None:
        """Ends the wait of a reader once a signal is there that ends it."""
        unique = waiting.request.unique
        while self._waiting.get(unique) is waiting:
            if ends_reader(waiting.request.pid):
                waiting.scope.cancel()
                return
            await trio.sleep(LOOK_AGAIN)


class _Waiting:
    __slots__ = ("request", "scope", "watched")

    def __init__(self, request: ReadRequest) -> None:
        self.request = request
        self.scope = trio.CancelScope()
        self.watched = False
