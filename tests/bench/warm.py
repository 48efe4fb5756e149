"""A cache that is full already: each tool mounted anew on it, so that its mount has no pages yet."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from fusestripe.units import GIB, MIB, format_size
from tests.bench.case import Case, Options, Tell, take_turns
from tests.bench.juicefs import JuiceFs
from tests.bench.lab import BUCKET, Lab, StoredObject
from tests.bench.peers import OTHERS, Fusestripe, Mount, ServedFusestripe
from tests.bench.programs import PEERS
from tests.bench.reading import dd, drop_page_cache, touch_every_page
from tests.bench.result import Figure, Result, Side, best_of, faster

__all__ = ["SERVED", "WARM"]

HOT, AGAIN, DROPPED = "pages of the cache hot", "second read", "pages dropped"
SHORT = {HOT: "hot", AGAIN: "second", DROPPED: "dropped"}
# In a short run one stall of the disk is most of what is read from it.
SHORT_WANTED = {HOT: 0.2, AGAIN: 0.2, DROPPED: 0.05}


def run_warm(lab: Lab, options: Options, tell: Tell) -> Result:
    """Ours as it is, against each of the others."""
    others: tuple[type[Mount], ...] = (*OTHERS, JuiceFs) if options.peers else ()
    sides, title, notes = _measure(lab, (Fusestripe, *others), options, tell)
    figures = [
        _figure(sides, state, kind.name, sides[_name(kind, state)], options, 1.0)
        for state in (HOT, AGAIN, DROPPED)
        for kind in others
        if _name(kind, state) in sides
    ]
    return Result(WARM.name, title, tuple(sides.values()), tuple(figures), notes)


def run_served(lab: Lab, options: Options, tell: Tell) -> Result:
    """Ours with passthrough switched off, against the better of rclone and s3fs."""
    others: tuple[type[Mount], ...] = OTHERS if options.peers else ()
    sides, title, notes = _measure(lab, (ServedFusestripe, *others), options, tell)
    theirs = {
        state: [sides[_name(kind, state)] for kind in others if _name(kind, state) in sides]
        for state in SHORT
    }
    figures = [
        _figure(sides, state, "the better", best_of("the better", found), options, 1.5)
        for state, found in theirs.items()
        if found
    ]
    return Result(SERVED.name, f"{title}, passthrough off", tuple(sides.values()), tuple(figures), notes)


def _figure(
    sides: dict[str, Side], state: str, name: str, theirs: Side, options: Options, wanted: float
) -> Figure:
    return faster(
        sides[_name(Fusestripe, state)],
        theirs,
        options.pick(wanted, SHORT_WANTED[state]),
        f"fusestripe / {name}, {SHORT[state]}",
    )


class _Filled(msgspec.Struct, frozen=True):
    """A tool whose cache, in ``directory``, holds the file that its mount shows at ``name``."""

    kind: type[Mount]
    directory: Path
    name: str


def _measure(
    lab: Lab, kinds: Sequence[type[Mount]], options: Options, tell: Tell
) -> tuple[dict[str, Side], str, tuple[str, ...]]:
    """The sides, a title, and notes: hot, a second time in the same mount, and from the disk."""
    size = options.file_size(GIB, 128 * MIB)
    tell("storing a file")
    stored = lab.stored(size)
    with ExitStack() as stack:
        filled = []
        for kind in kinds:
            tell(f"filling the cache of {kind.name}")
            filled.append(_fill(lab, kind, stack.enter_context(lab.scratch()), stored))
        sides = _measure_hot(lab, filled, size, options, tell)
        may_drop = drop_page_cache()
        if may_drop:
            sides |= _measure_dropped(lab, filled, size, options, tell)
    notes = () if may_drop else (f"{DROPPED}: not measured, the page cache may not be dropped here",)
    return sides, f"{format_size(size)} from a full cache, mounted anew", notes


def _fill(lab: Lab, kind: type[Mount], directory: Path, stored: StoredObject) -> _Filled:
    with kind(lab.server.endpoint, directory) as mounted:
        path = mounted.provide(lab.server.store(BUCKET), stored.key)
        dd(path, stored.size)
        return _Filled(kind, directory, path.name)


def _measure_hot(
    lab: Lab, filled: Sequence[_Filled], size: int, options: Options, tell: Tell
) -> dict[str, Side]:
    again: dict[str, list[float]] = {_name(each.kind, AGAIN): [] for each in filled}

    def hot(each: _Filled) -> float:
        with each.kind(lab.server.endpoint, each.directory) as mounted:
            touch_every_page(mounted.cache)
            rate = size / dd(mounted.path / each.name, size)
            again[_name(each.kind, AGAIN)].append(size / dd(mounted.path / each.name, size))
        return rate

    sides = take_turns({_name(each.kind, HOT): partial(hot, each) for each in filled}, options, tell)
    return sides | {name: Side(name, tuple(rates)) for name, rates in again.items()}


def _measure_dropped(
    lab: Lab, filled: Sequence[_Filled], size: int, options: Options, tell: Tell
) -> dict[str, Side]:
    def dropped(each: _Filled) -> float:
        with each.kind(lab.server.endpoint, each.directory) as mounted:
            drop_page_cache()
            return size / dd(mounted.path / each.name, size)

    return take_turns({_name(each.kind, DROPPED): partial(dropped, each) for each in filled}, options, tell)


def _name(kind: type[Mount], state: str) -> str:
    return f"{kind.name}, {state}"


WARM = Case("warm", "how fast is what is in the cache already?", run_warm, peers=(*PEERS, "juicefs"))
SERVED = Case("no-passthrough", "and how fast where the daemon serves every read?", run_served, peers=PEERS)
