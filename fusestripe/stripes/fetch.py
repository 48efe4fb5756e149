"""Bringing one stripe from its origin: a range request in a thread, asked again from where it broke off."""

from __future__ import annotations

import logging
from functools import partial

import msgspec
import trio

from fusestripe.errors import OriginError, OriginUnavailable
from fusestripe.origins.base import Origin
from fusestripe.origins.retry import Backoff
from fusestripe.stripes.resident import Stripe
from fusestripe.units import ObjectVersion

__all__ = ["FetchStatistics", "Fetcher"]

log = logging.getLogger(__name__)

# One read(2) that fails comes again, up to twice: the kernel asks ahead first and then for the page itself.
# For these seconds it gets the answer it got, so that a reader waits for one time-out and not for three.
SETTLED_SECONDS = 1.0


class FetchStatistics(msgspec.Struct, frozen=True):
    """Since the start: requests made, bytes (of whole stripes), tries after a failure, and stripes given up.

    ``in_flight`` is how many requests run now.
    """

    requests: int
    bytes: int
    retries: int
    errors: int
    in_flight: int


class _GivenUp(msgspec.Struct, frozen=True):
    """What an error said. The error itself would hold the stripe's memory by the frames of its traceback."""

    until: float
    message: str
    mend: str


class Fetcher:
    """Runs range requests in at most ``threads`` threads; gives up ``timeout`` seconds after the first."""

    def __init__(self, *, threads: int, timeout: float) -> None:
        self._limiter = trio.CapacityLimiter(threads)
        self._timeout = timeout
        self._requests = self._bytes = self._retries = self._errors = 0
        self._given_up: dict[tuple[ObjectVersion, int], _GivenUp] = {}

    async def fetch(self, origin: Origin, stripe: Stripe, offset: int) -> None:
        """Fill ``stripe``, which begins ``offset`` bytes into its version, and tell it as bytes arrive.

        Raises OriginError: VersionChanged and the like at once, what is transient after the timeout.
        """
        version, index = stripe.key
        given_up = self._given_up.get(stripe.key)
        if given_up is not None and trio.current_time() < given_up.until:
            raise OriginUnavailable(given_up.message, mend=given_up.mend)
        backoff = Backoff(self._timeout)
        while True:
            try:
                await self._request(origin, stripe, offset, backoff)
            except OriginError as error:
                try:
                    await backoff.after(error)
                except OriginError:
                    self._errors += 1
                    log.error("%s: stripe %d: %s", version, index, error)  # noqa: TRY400
                    self._remember(stripe, error)
                    raise
                self._retries += 1
            else:
                self._bytes += stripe.length
                return

    async def _request(self, origin: Origin, stripe: Stripe, offset: int, backoff: Backoff) -> None:
        self._requests += 1
        done = stripe.filled

        def progress(arrived: int) -> None:
            backoff.progressed()
            stripe.advance(done + arrived)

        await trio.to_thread.run_sync(
            partial(
                origin.read_range,
                stripe.key[0],
                offset + done,
                stripe.view[done:],
                progress,
            ),
            limiter=self._limiter,
            abandon_on_cancel=True,
        )
        if stripe.filled != stripe.length:
            raise OriginUnavailable(f"{stripe.length - stripe.filled} bytes of the answer are missing")

    def _remember(self, stripe: Stripe, error: OriginError) -> None:
        now = trio.current_time()
        self._given_up = {key: kept for key, kept in self._given_up.items() if kept.until > now}
        if error.transient:
            self._given_up[stripe.key] = _GivenUp(now + SETTLED_SECONDS, error.message, error.mend)

    def statistics(self) -> FetchStatistics:
        """What was asked so far."""
        return FetchStatistics(
            requests=self._requests,
            bytes=self._bytes,
            retries=self._retries,
            errors=self._errors,
            in_flight=int(self._limiter.borrowed_tokens),
        )
