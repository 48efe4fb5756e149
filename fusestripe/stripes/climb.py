"""Finding the number of requests in flight that an origin rewards, by trying. Pure: no clock, no I/O."""

from __future__ import annotations

from enum import Enum, auto

__all__ = ["Climb"]

# Twice as many in flight are worth it where they bring at least so much more.
WORTH_DOUBLING = 1.15
# A step of STEP up is kept where it brings so much more, one down where it loses no more than noise.
STEP = 1.5
WORTH_A_STEP = 1.06
NO_LOSS = 0.99
# Measurements between two tries: at first, and at most after many in vain.
REST = 6
LONGEST_REST = 96
# Measurements of which the best counts: what disturbs one makes it worse, never better.
JUDGED = 2
# What is left of the number when the origin says that it is too much.
BACK_OFF = 0.7


class _Phase(Enum):
    DOUBLING = auto()
    RESTING = auto()
    TRYING = auto()


class Climb:
    """Hill climbing over ``count``, from ``start``, between 1 and ``most``.

    It is told what each number gave (``gave``), and doubles as long as that pays. Then it rests, and now and
    then tries a little more or a little less, more and more rarely while that changes nothing. An origin
    that asks for less (``throttled``) gets less at once, and is tried with more again later.
    """

    def __init__(self, start: int, most: int) -> None:
        self.count = min(start, most)
        self._most = most
        self._phase = _Phase.DOUBLING
        self._rates: list[float] = []
        self._before: tuple[int, float] | None = None
        self._rest = REST
        self._upward = True
        self._is_low = False

    def gave(self, rate: float) -> None:
        """``count`` in flight bring ``rate`` bytes a second. May change ``count``."""
        self._rates.append(rate)
        if self._phase is _Phase.DOUBLING:
            self._double()
        elif self._phase is _Phase.TRYING:
            if len(self._rates) >= JUDGED:
                self._judge()
        elif len(self._rates) >= self._rest:
            self._try()

    def throttled(self) -> None:
        """The origin has asked for less."""
        self._go(int(self.count * BACK_OFF))
        self._phase = _Phase.RESTING
        self._rest = REST
        self._is_low = True

    def _double(self) -> None:
        if self._before is not None:
            count, rate = self._before
            gain = self._best() / rate if rate else 0.0
            if gain < WORTH_DOUBLING:
                if len(self._rates) >= JUDGED:
                    self._phase = _Phase.RESTING
                    self._go(count if gain < WORTH_A_STEP else self.count)
                return
        self._before = self.count, self._best()
        if not self._go(self.count * 2):
            self._phase = _Phase.RESTING

    def _try(self) -> None:
        self._before = self.count, self._best()
        if self._is_low:
            # As at the start, or it would take very long.
            self._is_low = False
            self._go(self.count * 2)
            self._phase = _Phase.DOUBLING
            return
        if not self._step():
            self._upward = not self._upward
            self._step()
        self._phase = _Phase.TRYING

    def _judge(self) -> None:
        assert self._before is not None
        count, rate = self._before
        gain = self._best() / rate if rate else 0.0
        self._phase = _Phase.RESTING
        if gain >= (WORTH_A_STEP if self._upward else NO_LOSS):
            self._rest = REST
            self._rates.clear()
        else:
            self._go(count)
            self._upward = not self._upward
            self._rest = min(LONGEST_REST, self._rest * 2)

    def _best(self) -> float:
        return max(self._rates[-JUDGED:])

    def _step(self) -> bool:
        # Up at least by one, so that a single one does not stay alone.
        more = max(self.count + 1, round(self.count * STEP))
        return self._go(more if self._upward else round(self.count / STEP))

    def _go(self, count: int) -> bool:
        """Have that many from now on, or as many as may be; whether they are others than before."""
        before, self.count = self.count, max(1, min(self._most, count))
        self._rates.clear()
        return self.count != before
