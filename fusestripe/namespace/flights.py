"""Single flight: callers that want the same thing at the same time share one run of the work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

__all__ = ["Flights"]

T = TypeVar("T")


class _Flight(Generic[T]):
    def __init__(self) -> None:
        self.landed = trio.Event()
        self.outcome: T | Exception | None = None


class Flights(Generic[T]):
    """Runs work in ``nursery``, so that a caller who is cancelled takes nothing from the others."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._flights: dict[Hashable, _Flight[T]] = {}

    async def join(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """The result of ``work()``, or of the run for ``key`` that is under way. Raises what it raised."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight()
            self._nursery.start_soon(self._fly, key, flight, work)
        await flight.landed.wait()
        if isinstance(flight.outcome, Exception):
            raise flight.outcome
        assert flight.outcome is not None
        return flight.outcome

    async def _fly(self, key: Hashable, flight: _Flight[T], work: Callable[[], Awaitable[T]]) -> None:
        try:
            flight.outcome = await work()
        except Exception as error:
            flight.outcome = error
        finally:
            del self._flights[key]
            flight.landed.set()
