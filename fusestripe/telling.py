"""What is told of a prefetch speaks of paths in a tree; here they become those that a person named."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from fusestripe.planning import Plan
from fusestripe.prefetcher import Report
from fusestripe.selection import Choice

__all__ = ["with_paths"]

Told = TypeVar("Told", Report, Choice, Plan, "Report | Choice")


def with_paths(told: Told, shown: Callable[[str], str]) -> Told:
    """``told`` with every path as ``shown`` has it."""
    if isinstance(told, Report):
        return replace(told, path=shown(told.path))
    if isinstance(told, Choice):
        skipped = tuple(replace(one, path=shown(one.path)) for one in told.skipped)
        return replace(told, path=shown(told.path), taken=shown(told.taken), skipped=skipped)
    return replace(
        told,
        each=tuple(replace(one, path=shown(one.path)) for one in told.each),
        choices=tuple(with_paths(one, shown) for one in told.choices),
        failures=tuple(with_paths(one, shown) for one in told.failures),
    )
