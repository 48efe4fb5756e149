"""Single flight: callers that want the same thing at the same time share one run of the work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

from fusestripe.errors import OriginError, let_go
from fusestripe.origins.retry import SETTLED_SECONDS

__all__ = ["Flights"]

T = TypeVar("T")


class _Flight(Generic[T]):
    def __init__(self) -> None:
        self.landed = trio.Event()
        self.outcome: T | Exception | None = None


class Flights(Generic[T]):
    """Runs work in ``nursery``, so that a caller who is cancelled takes nothing from the others.

    What failed as a transient OriginError, after all its tries, is not tried anew for SETTLED_SECONDS: the
    kernel lets those who look up one name ask one after the other, and each would wait as long as the first.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._flights: dict[Hashable, _Flight[T]] = {}
        self._failed: dict[Hashable, tuple[float, _Flight[T]]] = {}

    def begin(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> None:
        """Run ``work()``, if nobody has begun it, for those who join meanwhile: its errors are theirs too."""
        self._flight(key, work)

    async def join(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """The result of ``work()``, or of the run for ``key`` that is under way. Raises what it raised."""
        flight = self._flight(key, work)
        await flight.landed.wait()
        if isinstance(flight.outcome, Exception):
            raise flight.outcome
        assert flight.outcome is not None
        return flight.outcome

    def _flight(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> _Flight[T]:
        flight = self._flights.get(key) or self._failure(key)
        if flight is None:
            flight = self._flights[key] = _Flight()
            self._nursery.start_soon(self._fly, key, flight, work)
        return flight

    def _failure(self, key: Hashable) -> _Flight[T] | None:
        until, flight = self._failed.get(key, (0.0, None))
        return flight if trio.current_time() < until else None

    def _remember(self, key: Hashable, flight: _Flight[T]) -> None:
        now = trio.current_time()
        self._failed = {key: kept for key, kept in self._failed.items() if kept[0] > now}
        self._failed[key] = now + SETTLED_SECONDS, flight

    def __contains__(self, key: Hashable) -> bool:
        """Whether it is under way."""
        return key in self._flights

    async def _fly(self, key: Hashable, flight: _Flight[T], work: Callable[[], Awaitable[T]]) -> None:
        try:
            flight.outcome = await work()
        except Exception as error:
            flight.outcome = error
            if isinstance(error, OriginError) and error.transient:
                let_go(error)
                self._remember(key, flight)
        finally:
            del self._flights[key]
            flight.landed.set()
