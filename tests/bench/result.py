"""What a case measured, as frozen values."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

__all__ = ["Figure", "Result", "Side", "Unit", "best_of", "faster", "slowness", "times"]

Unit = Literal["B/s", "1/s", "s", "B", "%", "ratio"]


class Side(msgspec.Struct, frozen=True):
    """One side of a comparison: what each round gave."""

    name: str
    rounds: tuple[float, ...]
    unit: Unit = "B/s"

    @property
    def median(self) -> float:
        """The middle one of the rounds."""
        return statistics.median(self.rounds)


class Figure(msgspec.Struct, frozen=True):
    """A number that says how good we are. ``wanted`` is what it should reach; None: for information.

    ``at_least``: the larger the better; else the smaller the better.
    """

    name: str
    value: float
    wanted: float | None
    unit: Unit = "ratio"
    at_least: bool = True

    @property
    def reached(self) -> bool:
        """Whether it is as good as it should be."""
        if self.wanted is None:
            return True
        return self.value >= self.wanted if self.at_least else self.value <= self.wanted


class Result(msgspec.Struct, frozen=True):
    """What one case found. ``notes`` say what must be known to read it."""

    case: str
    title: str
    sides: tuple[Side, ...]
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()

    @property
    def reached(self) -> bool:
        """Whether every figure is as good as it should be."""
        return all(figure.reached for figure in self.figures)


def faster(ours: Side, theirs: Side, wanted: float | None, name: str = "") -> Figure:
    """How many times as fast as ``theirs`` we are: the median over rounds, each against its own neighbour.

    The figure's ``name`` is that of both sides where none is given.
    """
    ratios = [one / other for one, other in zip(ours.rounds, theirs.rounds, strict=True)]
    return Figure(name or f"{ours.name} / {theirs.name}", statistics.median(ratios), wanted)


def slowness(name: str, ours: Side, theirs: Side, wanted: float | None) -> Figure:
    """How many seconds longer than ``theirs`` we take: the median over rounds."""
    differences = [one - other for one, other in zip(ours.rounds, theirs.rounds, strict=True)]
    return Figure(name, statistics.median(differences), wanted, unit="s", at_least=False)


def best_of(name: str, sides: Sequence[Side]) -> Side:
    """Of each round the best of the sides, under ``name``: the larger the better."""
    rounds = zip(*(side.rounds for side in sides), strict=True)
    return Side(name, tuple(max(values) for values in rounds), sides[0].unit)


def times(ours: Side, theirs: Side, wanted: float | None, name: str) -> Figure:
    """How many times as much as theirs ours is, where less is better: the median over rounds."""
    return msgspec.structs.replace(faster(ours, theirs, wanted, name), at_least=False)
