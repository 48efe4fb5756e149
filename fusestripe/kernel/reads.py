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
from fusestripe.kernel.waiting import Waiting
from fusestripe.reader import Handle, Reader

__all__ = ["Reads"]

log = logging.getLogger(__name__)

Wait = Callable[[int, int, int], Awaitable["bytes | bytearray | memoryview"]]
"""(fh, offset, size) -> the bytes, however long it takes; valid until the next checkpoint."""


class Reads:
    """``handle_of`` finds the open handle of a number, ``wait`` reads like pyfuse3's own READ.

    Tasks run in ``nursery``. A reader that a signal ends is let go with EINTR (see Waiting). A page that
    another reader waits for too is asked for once more.
    """

    def __init__(
        self,
        replies: Replies,
        reader: Reader,
        handle_of: Callable[[int], Handle | None],
        wait: Wait,
        waiting: Waiting,
        nursery: trio.Nursery,
    ) -> None:
        self._replies = replies
        self._reader = reader
        self._handle_of = handle_of
        self._wait = wait
        self._waiting = waiting
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        self._asked: dict[int, ReadRequest] = {}
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
        self._asked[request.unique] = request
        self._soon(self._begin, request.unique)

    def interrupt(self, unique: int) -> bool:
        """See channel.Requests. Whether the signal ends the reader shows when it is looked at."""
        return unique in self._asked

    def _soon(self, call: Callable[[int], None], unique: int) -> None:
        with suppress(trio.RunFinishedError):  # the daemon ends, and every request with it
            self._token.run_sync_soon(call, unique)

    def _begin(self, unique: int) -> None:
        if not self._closed:
            self._nursery.start_soon(self._answer, self._asked[unique])

    async def _answer(self, request: ReadRequest) -> None:
        unique, pid, fh, offset, size = request
        is_let_go = False
        try:
            with self._waiting.of(pid, ends_reader) as scope:
                # Nothing may run between the read and the reply: the bytes are valid until then.
                self._replies.data(unique, await self._wait(fh, offset, size))
            is_let_go = scope.cancelled_caught
        except FusestripeError as error:
            self._replies.error(unique, errno_of(error))
        except Exception as error:
            log.exception("read failed")
            self._replies.error(unique, errno_of(error))
        finally:
            del self._asked[unique]
        if is_let_go:
            self._replies.error(unique, EINTR)
