"""Bringing one stripe from its origin: range requests in threads, asked again from where they broke off."""

from __future__ import annotations

import logging

import msgspec
import trio

from fusestripe.errors import OriginError, OriginUnavailable
from fusestripe.origins.base import Origin
from fusestripe.origins.retry import Backoff
from fusestripe.stripes.request import StripeRequest
from fusestripe.stripes.resident import ResidentStripes, Stripe
from fusestripe.stripes.traffic import Traffic, TrafficTable
from fusestripe.units import ObjectVersion

__all__ = ["FetchStatistics", "Fetcher"]

log = logging.getLogger(__name__)

# One read(2) that fails comes again, up to twice: the kernel asks ahead first and then for the page itself.
# For these seconds it gets the answer it got, so that a reader waits for one time-out and not for three.
SETTLED_SECONDS = 1.0


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
    """What an error said. The error itself would hold the stripe's memory by the frames of its traceback."""

    until: float
    message: str
    mend: str


class Fetcher:
    """Makes range requests in at most ``threads`` threads; gives up ``timeout`` seconds after the last byte.

    ``traffic`` learns of each.
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

    async def fetch(self, origin: Origin, stripe: Stripe, offset: int) -> None:
        """Fill ``stripe``, which begins ``offset`` bytes into its version, and tell it as bytes arrive.

        Raises OriginError: VersionChanged and the like at once, what is transient after the timeout.
        """
        version, index = stripe.key
        given_up = self._given_up.get(stripe.key)
        if given_up is not None and trio.current_time() < given_up.until:
            raise OriginUnavailable(given_up.message, mend=given_up.mend)
        traffic = self._traffic.of(origin)
        traffic.streams.began(stripe)
        try:
            await self._persist(origin, stripe, offset, traffic)
        except OriginError as error:
            self._errors += 1
            log.error("%s: stripe %d: %s", version, index, error)  # noqa: TRY400
            self._remember(stripe, error)
            raise
        finally:
            traffic.streams.ended(stripe)
        traffic.fetched += stripe.length

    async def _persist(self, origin: Origin, stripe: Stripe, offset: int, traffic: Traffic) -> None:
        """Ask again, each time for what is still missing, as long as that may help."""
        backoff = Backoff(self._timeout)
        while True:
            self._requests += 1
            request = StripeRequest(
                origin,
                stripe,
                offset,
                backoff.progressed,
                stripes=self._stripes,
                traffic=traffic,
                limiter=self._limiter,
            )
            try:
                await request.run()
            except OriginError as error:
                await backoff.after(error)
                self._retries += 1
            else:
                return

    def _remember(self, stripe: Stripe, error: OriginError) -> None:
        now = trio.current_time()
        self._given_up = {key: kept for key, kept in self._given_up.items() if kept.until > now}
        if error.transient:
            self._given_up[stripe.key] = _GivenUp(now + SETTLED_SECONDS, error.message, error.mend)

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
