"""What all cases share: their options, and measuring several sides in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from fusestripe.units import GIB
from tests.bench.lab import Lab
from tests.bench.memory import claim_memory
from tests.bench.result import Result, Side, Unit

__all__ = ["Case", "Options", "Tell", "take_turns"]

Tell: TypeAlias = Callable[[str], None]
"""Called with what is being done now, for people who wait."""

T = TypeVar("T")

# What a measure needs of memory that it has not had before: pages of the files it reads, and of caches.
CLAIMED = 3 * GIB


class Options(msgspec.Struct, frozen=True):
    """How much is measured. ``size``: bytes of the file where it is not the case's own choice.

    ``soak``: seconds of the case of that name. ``nodes``: how many of them; None: as many as the kind of run
    takes; they share what they have if ``sharing``.
    """

    rounds: int = 3
    short: bool = False
    peers: bool = True
    size: int | None = None
    soak: float = 0.0
    nodes: int | None = None
    sharing: bool = True

    def file_size(self, full: int, short: int) -> int:
        """Bytes of the file to read."""
        return self.size or self.pick(full, short)

    def pick(self, full: T, short: T) -> T:
        """What this kind of run takes: a short one proves less, and has wide margins."""
        return short if self.short else full


class Case(msgspec.Struct, frozen=True):
    """One question, and the function that measures an answer.

    ``needs`` names the programs that it cannot do without, ``peers`` those that others are mounted with.
    """

    name: str
    question: str
    run: Callable[[Lab, Options, Tell], Result]
    needs: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()


def take_turns(
    measures: Mapping[str, Callable[[], float]], options: Options, tell: Tell, unit: Unit = "B/s"
) -> dict[str, Side]:
    """Each measure once a round, and each round begins with another, so that none has the best place."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(options.rounds):
        for name in _rotated(list(measures), number):
            tell(f"round {number + 1} of {options.rounds}: {name}")
            claim_memory(options.pick(CLAIMED, 0))
            found[name].append(measures[name]())
    return {name: Side(name, tuple(values), unit) for name, values in found.items()}


def _rotated(names: Sequence[str], by: int) -> Sequence[str]:
    shift = by % len(names)
    return [*names[shift:], *names[:shift]]
