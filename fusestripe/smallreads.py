"""Reads too small to wait for a stripe: from the cache file, or by a request of their own.

The directory at the end of a checkpoint is one: the last bytes of a stripe, and the first that are wanted.
"""

from __future__ import annotations

from functools import partial

import trio

from fusestripe.cache.threads import DiskThreads
from fusestripe.errors import CacheError, OriginError
from fusestripe.openfiles import OpenFile
from fusestripe.stripes.plan import Piece
from fusestripe.stripes.resident import ResidentStripes, Stripe
from fusestripe.units import KIB

__all__ = ["SMALL", "SmallReads", "pages_at_hand"]

# The longest read that is small, if it follows no other.
SMALL = 128 * KIB
# A stripe that lacks no more than this of what is wanted is waited for.
WORTH_WAITING = 512 * KIB
# Requests of their own at once; each has SMALL bytes of memory beside the stripes' budget.
AT_ONCE = 32


class SmallReads:
    """``disk`` has the threads that wait for the cache's disk."""

    def __init__(self, stripes: ResidentStripes, disk: DiskThreads, stripe_size: int) -> None:
        self._stripes = stripes
        self._disk = disk
        self._stripe_size = stripe_size
        self._limiter = trio.CapacityLimiter(AT_ONCE)

    async def from_cache(self, file: OpenFile, piece: Piece) -> bytearray | None:
        """From the cache file, without its whole stripe, where that was checked."""
        cached = file.cached
        if cached is None or not cached.verified(piece.index):
            return None
        offset, length = piece.index * self._stripe_size + piece.start, piece.stop - piece.start
        found = pages_at_hand(file, piece.index, offset, length)
        if found is not None:
            return found
        data = bytearray(length)
        read = partial(cached.read, offset, memoryview(data), nowait=False)
        try:
            return data if await self._disk.run(read) else None
        except CacheError:
            return None

    def is_far(self, file: OpenFile, stripe: Stripe, piece: Piece) -> bool:
        """Whether ``stripe`` comes from the origin and will have ``piece`` much later than a request."""
        return piece.stop - stripe.filled > WORTH_WAITING and not file.present(piece.index)

    async def from_origin(self, file: OpenFile, stripe: Stripe, piece: Piece) -> bytes | bytearray:
        """From ``stripe``, or by a request of its own: whatever is first. Raises what the stripe's does."""
        data: bytes | bytearray | None = None
        error: Exception | None = None
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                nonlocal data
                asked = await self._ask(file, piece)
                if asked is not None:
                    data = asked
                    nursery.cancel_scope.cancel()

            nursery.start_soon(ask)
            try:
                await self._stripes.wait(stripe, piece.stop)
                data = bytes(stripe.view[piece.start : piece.stop])
            except Exception as failure:
                error = failure
            nursery.cancel_scope.cancel()
        if data is None:
            assert error is not None
            raise error
        return data

    async def _ask(self, file: OpenFile, piece: Piece) -> bytearray | None:
        """None where it fails: the stripe's own fetch knows how to try again."""
        data = bytearray(piece.stop - piece.start)
        arrived = 0

        def progress(filled: int) -> None:
            nonlocal arrived
            arrived = filled

        offset = piece.index * self._stripe_size + piece.start
        read = partial(file.origin.read_range, file.version, offset, memoryview(data), progress)
        try:
            await trio.to_thread.run_sync(read, limiter=self._limiter, abandon_on_cancel=True)
        except (OriginError, RuntimeError):  # the latter where the system has no thread left
            return None
        return data if arrived == len(data) else None


def pages_at_hand(file: OpenFile, index: int, offset: int, length: int) -> bytearray | None:
    """Bytes of a stripe that this process has checked, as far as the page cache has them. From any thread."""
    cached = file.cached
    if cached is None or not cached.verified(index):
        return None
    data = bytearray(length)
    return data if cached.read(offset, memoryview(data), nowait=True) else None
