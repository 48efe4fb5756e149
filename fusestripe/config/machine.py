"""What the machine leaves to the memory budget: all of its memory, or what a control group limits it to."""

from __future__ import annotations

import msgspec
import psutil

from fusestripe.cgroups import MemoryLimit, memory_limit
from fusestripe.units import GIB, MIB

__all__ = ["OWN_MEMORY", "Machine", "default_budget", "this_machine"]

OWN_MEMORY = 256 * MIB
"""What all processes of one mount take beside the budget, at most: code, connections, listings."""
BUDGET = GIB
"""Enough for the fastest networks and disks of today; more gains nothing."""


class Machine(msgspec.Struct, frozen=True):
    """``memory`` bytes there are, and the ``limit`` of the control groups where that is less."""

    memory: int
    limit: MemoryLimit | None = None


def this_machine() -> Machine:
    """As it is now, for this process."""
    memory, limit = psutil.virtual_memory().total, memory_limit()
    return Machine(memory, limit if limit is not None and limit.size < memory else None)


def default_budget(machine: Machine) -> int:
    """The budget in bytes where nobody says one; 0 where there is no room for any.

    Half of what a limit leaves beside ``OWN_MEMORY``: the page cache of what is read counts too, and a job
    may live in the same group.
    """
    if machine.limit is None:
        return BUDGET
    half = max(0, machine.limit.size - OWN_MEMORY) // 2
    return min(BUDGET, half - half % MIB)
