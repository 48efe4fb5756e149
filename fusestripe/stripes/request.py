"""The range request for a stripe, or two: where it is far behind its fellows, a second one is sent after it.

The second has memory of its own, so that what the first may still write never meets bytes that were checked.
It takes the stripe over only once it is whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import trio

from fusestripe.errors import OriginError, OriginUnavailable, let_go
from fusestripe.origins.base import Origin, Superseded
from fusestripe.stripes.memory import Buffer
from fusestripe.stripes.resident import ResidentStripes, Stripe
from fusestripe.stripes.traffic import Traffic

__all__ = ["StripeRequest"]

# Seconds until a request is looked at again of which it could not be said whether it is late, or not helped.
LOOK_AGAIN = 0.25
# Seconds after the time for an answer: an origin ends its requests itself and says why, unless it hangs.
HANGS_AFTER = 5.0


class _Answer:
    """What came for one request, from byte ``start`` of the stripe on, into ``view`` of all of it.

    ``is_first``: into the stripe's own memory, and told of as it comes. ``began_at`` and ``first_byte_at``
    are None until then. ``is_left``: nobody waits for its thread any more. The thread writes all but that,
    ``ended`` and ``error``.
    """

    def __init__(self, view: memoryview, start: int, *, is_first: bool) -> None:
        self.view = view
        self.is_first = is_first
        self.start = start
        self.filled = start
        self.began_at: float | None = None
        self.first_byte_at: float | None = None
        self.is_running = False
        self.is_left = False
        self.ended = False
        self.error: Exception | None = None

    @property
    def is_whole(self) -> bool:
        return self.ended and self.error is None

    @property
    def is_final(self) -> bool:
        """Whether it says something that another answer will not change."""
        return self.ended and not (isinstance(self.error, OriginError) and self.error.transient)


class StripeRequest:
    """Asks ``origin`` for what ``stripe`` does not have yet; it begins ``offset`` bytes into its version.

    ``progressed`` is told from the requests' threads how many bytes have come; ``ends`` says until when
    (trio.current_time()) they are waited for if none do.
    """

    def __init__(
        self,
        origin: Origin,
        stripe: Stripe,
        offset: int,
        progressed: Callable[[int], None],
        ends: Callable[[], float],
        *,
        stripes: ResidentStripes,
        traffic: Traffic,
        limiter: trio.CapacityLimiter,
    ) -> None:
        self._origin = origin
        self._stripe = stripe
        self._offset = offset
        self._progressed = progressed
        self._ends = ends
        self._stripes = stripes
        self._traffic = traffic
        self._limiter = limiter
        self._clock = trio.lowlevel.current_clock()
        self._token = trio.lowlevel.current_trio_token()
        # Over what answers tell of, nothing any more once this is over; and over what runs.
        self._lock = threading.Lock()
        self._is_over = False

    async def run(self) -> None:
        """Return when the stripe is filled. Raises what the origin raises."""
        if self._stripe.filled == self._stripe.length:
            return  # what failed, failed after its last byte
        answers = [_Answer(self._stripe.view, self._stripe.filled, is_first=True)]
        spare: Buffer | None = None
        try:
            async with trio.open_nursery() as nursery:

                async def bring(answer: _Answer) -> None:
                    await self._bring(answer)
                    if answer.is_final or all(each.ended for each in answers):
                        nursery.cancel_scope.cancel()

                nursery.start_soon(self._leave_when_over, nursery.cancel_scope)
                nursery.start_soon(bring, answers[0])
                spare = await self._memory_once_late(answers[0])
                answers.append(self._second(answers[0], spare))
                nursery.start_soon(bring, answers[1])
        finally:
            with self._lock:
                self._is_over = True
            if spare is not None:
                self._stripes.give(self._conclude(answers, spare))
        self._judge(answers)

    async def _leave_when_over(self, requests: trio.CancelScope) -> None:
        """Threads that hang are left behind."""
        while (left := self._ends() + HANGS_AFTER - self._clock.current_time()) > 0:
            await trio.sleep(left)
        requests.cancel()

    async def _memory_once_late(self, first: _Answer) -> Buffer:
        """Memory for a second answer, once ``first`` is late, there is some, and one more may be asked."""
        while True:
            due = self._due(first)
            if due <= self._clock.current_time():
                whole = self._stripe.length
                if self._traffic.may_hedge(whole - first.filled, whole):
                    spare = self._stripes.spare(whole)
                    if spare is not None:
                        return spare
                due = self._clock.current_time() + LOOK_AGAIN
            await trio.sleep_until(due)

    def _due(self, first: _Answer) -> float:
        """When to look whether ``first`` is late; not after now: it is."""
        again = self._clock.current_time() + LOOK_AGAIN
        if first.began_at is None or first.filled == self._stripe.length:
            return again
        idle = self._traffic.streams.idle
        late = self._traffic.pace.late_after(first.filled - first.start, idle=idle)
        return again if late is None else min(again, first.began_at + late)

    def _second(self, first: _Answer, spare: Buffer) -> _Answer:
        second = _Answer(spare.view, first.filled, is_first=False)
        second.view[: second.start] = first.view[: second.start]
        self._traffic.doubles += 1
        self._traffic.hedged += self._stripe.length - second.start
        return second

    def _conclude(self, answers: list[_Answer], spare: Buffer) -> Buffer:
        """The memory that is not needed any more: of the answer that is not whole, or came second.

        Where its thread still runs, it is used by nobody else (see BufferPool), and counts as a double until
        that ends.
        """
        with self._lock:
            left = [answer for answer in answers if answer.is_running]
            for answer in left:
                answer.is_left = True
        self._traffic.doubles += len(left) - 1
        if answers[0].is_whole or not answers[-1].is_whole:
            return spare
        old = self._stripes.exchange(self._stripe, spare)
        self._stripe.advance(self._stripe.length)
        return old

    async def _bring(self, answer: _Answer) -> None:
        try:
            await trio.to_thread.run_sync(self._ask, answer, limiter=self._limiter, abandon_on_cancel=True)
        except Exception as error:
            let_go(error)
            answer.error = error
            if answer.began_at is None:
                answer.error = OriginUnavailable(f"no thread for a request: {error}")
            elif isinstance(error, OriginUnavailable) and error.throttled:
                self._traffic.streams.throttled()
        else:
            if missing := self._stripe.length - answer.filled:
                answer.error = OriginUnavailable(f"{missing} bytes of the answer are missing")
        answer.ended = True
        if answer.is_whole:
            self._note(answer)

    def _ask(self, answer: _Answer) -> None:
        """In a thread."""

        def progress(arrived: int) -> None:
            if answer.first_byte_at is None:
                answer.first_byte_at = self._clock.current_time()
            more = answer.start + arrived - answer.filled
            answer.filled += more
            self._tell(answer)
            self._progressed(more)

        answer.is_running = True
        answer.began_at = self._clock.current_time()
        into = answer.view[answer.start :]
        try:
            self._origin.read_range(self._stripe.key[0], self._offset + answer.start, into, progress)
        finally:
            with self._lock:
                answer.is_running = False
                was_left = answer.is_left
            if was_left:
                with suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(self._traffic.double_ended)

    def _tell(self, answer: _Answer) -> None:
        with self._lock:
            if self._is_over:
                raise Superseded
            if answer.is_first:
                self._stripe.advance(answer.filled)

    def _note(self, answer: _Answer) -> None:
        assert answer.began_at is not None
        if answer.first_byte_at is None:
            return  # a second one after the last byte of the first
        seconds = self._clock.current_time() - answer.began_at
        first_byte = answer.first_byte_at - answer.began_at
        self._traffic.pace.note(first_byte, seconds, self._stripe.length - answer.start)

    def _judge(self, answers: list[_Answer]) -> None:
        if any(answer.is_whole for answer in answers):
            return
        # The cause that will stay, if there is one; else what the first one said.
        final = (answer.error for answer in answers if answer.is_final)
        error = next(final, None) or answers[0].error
        raise error or OriginUnavailable(f"{self._origin.url}: no answer in time")
