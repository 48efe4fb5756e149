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
REST = 12
LONGEST_REST = 96
# Measurements that are averaged before a step is judged.
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
    that asks for less (``throttled``) gets less at once.
    """

    def __init__(self, start: int, most: int) -> None:
        self.count = min(start, most)
        self._most = most
        self._phase = _Phase.DOUBLING
        self._rates: list[float] = []
        self._before: tuple[int, float] | None = None
        self._rest = REST
        self._upward = False

    def gave(self, rate: float) -> None:
        """``count`` in flight, all the time, brought ``rate`` bytes a second. May change ``count``."""
        self._rates.append(rate)
        if self._phase is _Phase.DOUBLING:
            self._double(rate)
        elif self._phase is _Phase.TRYING:
            if len(self._rates) >= JUDGED:
                self._judge()
        elif len(self._rates) >= self._rest:
            self._try()

    def throttled(self) -> None:
        """The origin has asked for less."""
        self._go(max(1, int(self.count * BACK_OFF)))
        self._begin(_Phase.RESTING)
        self._rest = LONGEST_REST

    def _double(self, rate: float) -> None:
        if self._before is not None and rate < self._before[1] * WORTH_DOUBLING:
            if rate < self._before[1] * WORTH_A_STEP:
                self._go(self._before[0])
            self._begin(_Phase.RESTING)
            return
        self._before = self.count, rate
        self._go(self.count * 2)
        if self.count == self._before[0]:
            self._begin(_Phase.RESTING)

    def _try(self) -> None:
        recent = self._rates[-JUDGED:]
        self._before = self.count, sum(recent) / len(recent)
        self._go(round(self.count * STEP) if self._upward else round(self.count / STEP))
        if self.count == self._before[0]:
            self._fail()
        else:
            self._begin(_Phase.TRYING)

    def _judge(self) -> None:
        assert self._before is not None
        count, rate = self._before
        gain = sum(self._rates) / len(self._rates) / rate if rate else 0.0
        if gain >= (WORTH_A_STEP if self._upward else NO_LOSS):
            self._rest = REST
            self._begin(_Phase.RESTING)
        else:
            self._go(count)
            self._fail()

    def _fail(self) -> None:
        self._upward = not self._upward
        self._rest = min(LONGEST_REST, self._rest * 2)
        self._begin(_Phase.RESTING)

    def _begin(self, phase: _Phase) -> None:
        self._phase = phase
        self._rates.clear()

    def _go(self, count: int) -> None:
        self.count = max(1, min(self._most, count))
