"""A cache that is full already: each tool mounted anew on it, so that its mount has no pages yet."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from fusestripe.units import GIB, MIB, format_size
from tests.bench.case import Case, Options, Tell, take_turns
from tests.bench.lab import Lab
from tests.bench.peers import OTHERS, Fusestripe, Mount
from tests.bench.programs import PEERS
from tests.bench.reading import dd, drop_page_cache, touch_every_page
from tests.bench.result import Result, Side, faster

__all__ = ["WARM"]

KINDS: tuple[type[Mount], ...] = (Fusestripe, *OTHERS)
HOT, AGAIN, DROPPED = "pages of the cache hot", "second read", "pages dropped"
SHORT = {HOT: "hot", AGAIN: "second", DROPPED: "dropped"}


def run(lab: Lab, options: Options, tell: Tell) -> Result:
    """With the cache files' own pages in memory, a second time in the same mount, and from the disk."""
    size = options.file_size(GIB, 128 * MIB)
    tell("storing a file")
    key = lab.stored(size).key
    kinds = KINDS if options.peers else KINDS[:1]
    may_drop = drop_page_cache()
    with ExitStack() as stack:
        directories: dict[str, Path] = {}
        for kind in kinds:
            tell(f"filling the cache of {kind.name}")
            directories[kind.name] = stack.enter_context(lab.scratch())
            with kind(lab.server.endpoint, directories[kind.name]) as mounted:
                dd(mounted.path / key, size)
        sides = _measure(lab, kinds, directories, key, size, options.rounds, may_drop, tell)
    # In a short run one stall of the disk is most of what is read from it.
    wanted = {state: options.pick(1.0, 0.05 if state == DROPPED else 0.2) for state in SHORT}
    figures = tuple(
        faster(
            sides[_name(Fusestripe, state)],
            sides[_name(kind, state)],
            wanted[state],
            f"fusestripe / {kind.name}, {SHORT[state]}",
        )
        for state in (HOT, AGAIN, DROPPED)
        for kind in kinds[1:]
        if _name(kind, state) in sides
    )
    notes = () if may_drop else (f"{DROPPED}: not measured, the page cache may not be dropped here",)
    title = f"{format_size(size)} from a full cache, mounted anew"
    return Result(case=WARM.name, title=title, sides=tuple(sides.values()), figures=figures, notes=notes)


def _measure(
    lab: Lab,
    kinds: tuple[type[Mount], ...],
    directories: dict[str, Path],
    key: str,
    size: int,
    rounds: int,
    may_drop: bool,
    tell: Tell,
) -> dict[str, Side]:
    again: dict[str, list[float]] = {_name(kind, AGAIN): [] for kind in kinds}

    def hot(kind: type[Mount]) -> float:
        with kind(lab.server.endpoint, directories[kind.name]) as mounted:
            touch_every_page(mounted.cache)
            rate = size / dd(mounted.path / key, size)
            again[_name(kind, AGAIN)].append(size / dd(mounted.path / key, size))
        return rate

    def dropped(kind: type[Mount]) -> float:
        with kind(lab.server.endpoint, directories[kind.name]) as mounted:
            drop_page_cache()
            return size / dd(mounted.path / key, size)

    sides = take_turns({_name(kind, HOT): partial(hot, kind) for kind in kinds}, rounds, tell)
    for name, rates in again.items():
        sides[name] = Side(name, tuple(rates))
    if may_drop:
        sides |= take_turns({_name(kind, DROPPED): partial(dropped, kind) for kind in kinds}, rounds, tell)
    return sides


def _name(kind: type[Mount], state: str) -> str:
    return f"{kind.name}, {state}"


WARM = Case("warm", "how fast is what is in the cache already?", run, peers=PEERS)
