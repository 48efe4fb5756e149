"""Bringing one stripe from its origin: range requests in threads, asked again from where they broke off."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec
import trio

from fusestripe.errors import OriginError, VersionChanged
from fusestripe.origins.base import Origin
from fusestripe.origins.retry import SETTLED_SECONDS, Backoff
from fusestripe.stripes.request import StripeRequest
from fusestripe.stripes.resident import ResidentStripes, Stripe
from fusestripe.stripes.traffic import Traffic, TrafficTable
from fusestripe.units import ObjectVersion

__all__ = ["FetchStatistics", "Fetcher"]

log = logging.getLogger(__name__)


class FetchStatistics(msgspec.Struct, frozen=True):
    """Since the start: tries at a stripe, bytes (of whole stripes), tries after a failure, stripes given up.

    ``hedged`` is the bytes that were asked for a second time, since the first answer was far behind;
    ``in_flight`` is how many requests run now.
    """

    requests: int
    bytes: int
    retries: int
    errors: int
    hedged: int
    in_flight: int


class _GivenUp(msgspec.Struct, frozen=True):
    """What an error said. The error itself would hold the stripe's memory by the frames of its traceback.

    One read(2) that fails comes again, up to twice: the kernel asks ahead first and then for the page itself.
    For SETTLED_SECONDS it gets the answer it got, if that took a time-out: a reader waits for one. So does
    who opens a version that has changed, which a listing that lags behind goes on to show. What else is
    final is asked for anew, since it may not be so any more. The log has one line in any case
    (``was_told``), once somebody waits for the stripe.
    """

    until: float
    kind: type[OriginError]
    message: str
    mend: str
    was_told: bool

    @property
    def stands(self) -> bool:
        """Whether it is the answer until then."""
        return self.kind.transient or issubclass(self.kind, VersionChanged)


class Fetcher:
    """Makes range requests in at most ``threads`` threads, for a stripe as long as Backoff allows.

    ``timeout``: its seconds. ``traffic`` learns of each request.
    """

    def __init__(
        self, *, stripes: ResidentStripes, traffic: TrafficTable, threads: int, timeout: float
    ) -> None:
        self._stripes = stripes
        self._traffic = traffic
        self._limiter = trio.CapacityLimiter(threads)
        self._timeout = timeout
        self._requests = self._retries = self._errors = 0
        self._given_up: dict[tuple[ObjectVersion, int], _GivenUp] = {}

    async def fetch(
        self,
        origin: Origin,
        stripe: Stripe,
        offset: int,
        instead: Callable[[Stripe], Awaitable[None]] | None = None,
    ) -> int:
        """Fill ``stripe``, which begins ``offset`` bytes into its version, and tell it as bytes arrive.

        ``instead`` may bring some after a failure that is transient; returns how many bytes it brought.
        Raises OriginError: VersionChanged and the like at once, what is transient after the timeout.
        """
        before = self._given_up.get(stripe.key)
        if before is not None and trio.current_time() >= before.until:
            before = None
        if before is not None and before.stands:
            error = before.kind(before.message, mend=before.mend)
            self._remember(stripe, error, before, before.until)
            raise error
        traffic = self._traffic.of(origin)
        traffic.streams.began(stripe)
        had, brought = stripe.filled, 0
        try:
            with traffic.silence.asking():
                brought = await self._persist(origin, stripe, offset, traffic, instead)
        except OriginError as error:
            self._errors += 1
            self._remember(stripe, error, before, trio.current_time() + SETTLED_SECONDS)
            raise
        finally:
            traffic.streams.ended(stripe)
        traffic.fetched += stripe.length - had - brought
        return brought

    async def _persist(
        self,
        origin: Origin,
        stripe: Stripe,
        offset: int,
        traffic: Traffic,
        instead: Callable[[Stripe], Awaitable[None]] | None,
    ) -> int:
        """Ask again, each time for what is still missing, as long as that may help."""
        brought = 0
        backoff = Backoff(self._timeout)

        def progressed(count: int) -> None:
            backoff.progressed(count)
            traffic.silence.broken()

        while True:
            self._requests += 1
            request = StripeRequest(
                origin,
                stripe,
                offset,
                progressed,
                lambda: backoff.ends,
                stripes=self._stripes,
                traffic=traffic,
                limiter=self._limiter,
            )
            try:
                await request.run()
            except OriginError as error:
                if error.transient:  # anything else is an answer
                    traffic.silence.failed(error)
                if instead is not None and error.transient:
                    had = stripe.filled
                    await instead(stripe)
                    brought += stripe.filled - had
                    if stripe.filled == stripe.length:
                        return brought
                await backoff.after(error)
                self._retries += 1
            else:
                return brought

    def _remember(self, stripe: Stripe, error: OriginError, before: _GivenUp | None, until: float) -> None:
        """Tell the log, which has ``before`` already, and who asks again before ``until``."""
        was_told = before is not None and before.was_told and before.kind is type(error)
        if not was_told:
            _tell(stripe, error)
        now = trio.current_time()
        self._given_up = {key: kept for key, kept in self._given_up.items() if kept.until > now}
        self._given_up[stripe.key] = _GivenUp(
            until, type(error), error.message, error.mend, was_told=was_told or stripe.awaited
        )

    def statistics(self) -> FetchStatistics:
        """What was asked so far."""
        return FetchStatistics(
            requests=self._requests,
            bytes=self._traffic.fetched,
            retries=self._retries,
            errors=self._errors,
            hedged=self._traffic.hedged,
            in_flight=int(self._limiter.borrowed_tokens),
        )


def _tell(stripe: Stripe, error: OriginError) -> None:
    """In the log; an error that no reader gets is none yet: what is fetched ahead may be asked for again."""
    version, index = stripe.key
    level = logging.ERROR if stripe.awaited else logging.INFO
    log.log(level, "%s: stripe %d: %s", version, index, error)
