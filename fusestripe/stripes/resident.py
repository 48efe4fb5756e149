"""Stripes in memory: one task fills each (single flight), any number of readers wait for its bytes.

A fill belongs to this service, not to the reader that asked first: readers come, wait and are cancelled
without any effect on it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import chain

import trio

from fusestripe.stripes.memory import Buffer, BufferPool
from fusestripe.units import ObjectVersion

__all__ = ["Key", "ResidentStripes", "Stripe", "Work"]

Key = tuple[ObjectVersion, int]
"""A stripe: its version, and its index there."""

# Stripes kept after a reader is done with them, for others close behind it. More would only be memory that
# the kernel has to clear: what is used again is warm.
DONE_KEPT = 2


class Stripe:
    """One stripe of a version. ``filled`` bytes from its start are there and right.

    ``settled`` is set when nothing more will happen to it: it is saved or could not be, or has failed.
    ``filled`` is written by the thread that fetches and read by the event loop; the waiters' least wish is
    written by the loop and read by the thread. Each side writes its own value before it reads the other's,
    so no wake-up is lost.
    """

    __slots__ = (
        "_error",
        "_is_done",
        "_is_old",
        "_readers",
        "_take",
        "_token",
        "_waiters",
        "_wish",
        "buffer",
        "filled",
        "key",
        "length",
        "settled",
        "unsaved",
    )

    def __init__(self, key: Key, length: int, take: Callable[[], Awaitable[Buffer]]) -> None:
        self._take = take
        # For its work to say: why it was not saved.
        self.unsaved: Exception | None = None
        self.key = key
        self.length = length
        self.filled = 0
        self.buffer: Buffer | None = None
        self._error: Exception | None = None
        self._readers = 0
        self._is_done = False
        self._is_old = False
        self._wish = length
        self._waiters: dict[trio.Event, int] = {}
        self.settled = trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    @property
    def view(self) -> memoryview:
        """All of its memory, filled or not."""
        assert self.buffer is not None
        return self.buffer.view

    async def provide(self) -> None:
        """Have memory for the stripe: the first step of its work. Raises OSError where there is none."""
        if self.buffer is None:
            self.buffer = await self._take()

    def advance(self, filled: int) -> None:
        """From the fetching thread: ``filled`` bytes are in place."""
        self.filled = filled
        if filled >= self._wish:
            self._token.run_sync_soon(self._wake, idempotent=True)

    @property
    def error(self) -> Exception | None:
        """Why it failed, if it did."""
        return self._error

    @property
    def awaited(self) -> bool:
        """Whether a reader is about to look at its bytes."""
        return self._readers > 0

    async def _wait(self, stop: int) -> None:
        while self.filled < stop:
            if self._error is not None:
                raise self._error
            event = trio.Event()
            self._waiters[event] = stop
            self._wish = min(self._wish, stop)
            try:
                if self.filled >= stop:
                    return
                await event.wait()
            finally:
                self._waiters.pop(event, None)

    def _wake(self) -> None:
        served = [
            event for event, stop in self._waiters.items() if stop <= self.filled or self._error is not None
        ]
        for event in served:
            del self._waiters[event]
            event.set()
        self._wish = min(self._waiters.values(), default=self.length)

    def complete(self) -> None:
        """All bytes are in place."""
        self.filled = self.length
        self._wake()

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._wake()


Work = Callable[[Stripe], Awaitable[None]]
"""Awaits ``provide``, brings the bytes of a stripe into its view (``advance`` on the way), calls ``complete``
once all are there, and may go on to save them; raises where it cannot bring them."""


class ResidentStripes:
    """The table of stripes in memory, within the pool's limit.

    Invariant: a key stands in the table at most once, so there is at most one fetch of a stripe at a time.
    Stripes with which nothing goes on any more stay until their memory is wanted or nobody has asked for them
    for long; those that readers are done with go first, then the least recently used.
    """

    def __init__(self, pool: BufferPool, nursery: trio.Nursery) -> None:
        self._pool = pool
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        self._stripes: dict[Key, Stripe] = {}
        # Whole and saved: those that readers are done with, and the others; the next to go in front.
        self._done: OrderedDict[Key, Stripe] = OrderedDict()
        self._idle: OrderedDict[Key, Stripe] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        """Whether that stripe is here or on its way."""
        return key in self._stripes

    def find(self, key: Key) -> Stripe | None:
        """The stripe of that key, if it is here or on its way, for a reader: it counts as used."""
        stripe = self._stripes.get(key)
        if stripe is not None:
            stripe._is_old = False
        if key in self._done:
            self._idle[key] = self._done.pop(key)
            self._idle[key]._is_done = False
        elif key in self._idle:
            self._idle.move_to_end(key)
        return stripe

    def arrived(self, key: Key) -> int:
        """How many bytes of that stripe are here. It does not count as used."""
        stripe = self._stripes.get(key)
        return 0 if stripe is None else stripe.filled

    def look(self, key: Key, start: int, stop: int) -> memoryview | None:
        """Bytes ``start`` to ``stop`` of a stripe that has them, else None. From any thread, without a lock.

        The stripe counts as used. Whether its memory is given back at this very moment does not matter: the
        view of it is either refused here or keeps the pool from handing it out again.
        """
        stripe = self._stripes.get(key)
        if stripe is None or stripe.filled < stop:
            return None
        stripe._is_old = False
        buffer = stripe.buffer
        try:
            return None if buffer is None else buffer.view[start:stop]
        except ValueError:  # released
            return None

    def begin(self, key: Key, length: int, work: Work, *, urgent: bool) -> Stripe:
        """Have ``work`` bring a stripe that is not here, as soon as there is memory for it."""
        stripe = Stripe(key, length, partial(self.take, length, urgent=urgent))
        return self._start(stripe, work)

    def begin_ahead(self, key: Key, length: int, work: Work) -> Stripe | None:
        """The same for a stripe nobody waits for yet: None where that would take memory from others."""
        self._drop_idle(length)
        try:
            buffer = self._pool.try_take(length, urgent=False)
        except OSError:  # the system has no memory: nothing is brought ahead
            return None
        if buffer is None:
            return None
        stripe = Stripe(key, length, partial(self.take, length, urgent=False))
        stripe.buffer = buffer
        return self._start(stripe, work)

    async def take(self, length: int, *, urgent: bool) -> Buffer:
        """Memory from the pool, that of idle stripes if there is no other."""
        self._drop_idle(length)
        return await self._pool.take(length, urgent=urgent)

    async def renew(self, stripe: Stripe) -> None:
        """Have other memory for ``stripe``, of which no byte has come: something may yet write into this."""
        assert stripe.buffer is not None
        assert not stripe.filled
        buffer, stripe.buffer = stripe.buffer, None
        self._pool.give(buffer)
        await stripe.provide()

    def spare(self, length: int) -> Buffer | None:
        """Memory for a second answer, of idle stripes if need be; to ``exchange`` or ``give``."""
        self._drop_idle(length)
        try:
            return self._pool.try_take(length, urgent=False)
        except OSError:
            return None

    def exchange(self, stripe: Stripe, buffer: Buffer) -> Buffer:
        """Have ``stripe`` in ``buffer``, which holds all its bytes. Returns its old memory, to ``give``."""
        old, stripe.buffer = stripe.buffer, buffer
        assert old is not None
        return old

    async def wait(self, stripe: Stripe, stop: int) -> None:
        """Until the bytes before ``stop`` are there. Raises what made the fill fail.

        They stay at least until the caller's next checkpoint.
        """
        stripe._readers += 1
        try:
            await stripe._wait(stop)
            if stripe.buffer is None:
                # It failed for good between the arrival of these bytes and this reader's turn.
                assert stripe.error is not None
                raise stripe.error
        finally:
            stripe._readers -= 1
            if self._pool.wanted:
                # Not here: the caller is about to look at the bytes.
                self._token.run_sync_soon(self._serve_takers, idempotent=True)

    def keep(self, stripe: Stripe) -> None:
        """Somebody is to look at all of ``stripe``, in their own time: its memory is not taken meanwhile."""
        stripe._readers += 1

    def let_go(self, stripe: Stripe) -> None:
        """Undo one ``keep``."""
        stripe._readers -= 1
        self._serve_takers()

    def release(self, key: Key) -> None:
        """A reader is done with this stripe: its memory is taken before that of others."""
        stripe = self._stripes.get(key)
        if stripe is not None:
            stripe._is_done = True
            if self._idle.pop(key, None) is not None:
                self._rest(stripe)

    async def settle(self) -> None:
        """Until nothing more happens to those that have all their bytes: they are saved, or could not be."""
        for stripe in list(self._stripes.values()):
            if stripe.filled == stripe.length:
                await stripe.settled.wait()

    def discard(self, key: Key) -> None:
        """Forget a stripe with which nothing goes on any more, for it to be begun anew."""
        stripe = self._stripes.get(key)
        if stripe is not None and stripe.settled.is_set() and not stripe.awaited:
            self._forget(stripe)

    def give(self, buffer: Buffer) -> None:
        """Give back what ``take`` gave."""
        self._pool.give(buffer)

    def trim(self) -> None:
        """Give back the memory of stripes that nobody has asked for since the last trim."""
        for stripe in list(chain(self._done.values(), self._idle.values())):
            if stripe._is_old and not stripe.awaited:
                self._forget(stripe)
            stripe._is_old = True
        self._pool.trim()

    def _start(self, stripe: Stripe, work: Work) -> Stripe:
        self._stripes[stripe.key] = stripe
        self._nursery.start_soon(self._run, stripe, work)
        return stripe

    async def _run(self, stripe: Stripe, work: Work) -> None:
        try:
            await work(stripe)
        except Exception as error:
            stripe._fail(error)
            self._forget(stripe)
        except BaseException:  # Cancelled, alone or several in a group
            self._forget(stripe)
            raise
        else:
            self._rest(stripe)
            self._serve_takers()
        finally:
            stripe.settled.set()

    def _rest(self, stripe: Stripe) -> None:
        """Nothing goes on with ``stripe`` any more; the next one to need memory may take it."""
        (self._done if stripe._is_done else self._idle)[stripe.key] = stripe
        while len(self._done) > DONE_KEPT and self._drop_one():
            pass

    def _serve_takers(self) -> None:
        while self._pool.wanted and self._drop_one():
            pass

    def _drop_idle(self, length: int) -> None:
        """Make room for ``length`` bytes out of idle stripes, as far as there are any."""
        while not self._pool.has_room(length) and self._drop_one():
            pass

    def _drop_one(self) -> bool:
        candidates = chain(self._done.values(), self._idle.values())
        victim = next((stripe for stripe in candidates if not stripe.awaited), None)
        if victim is not None:
            self._forget(victim)
        return victim is not None

    def _forget(self, stripe: Stripe) -> None:
        self._stripes.pop(stripe.key, None)
        self._idle.pop(stripe.key, None)
        self._done.pop(stripe.key, None)
        if stripe.buffer is not None:
            buffer, stripe.buffer = stripe.buffer, None
            self._pool.give(buffer)
