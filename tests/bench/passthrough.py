"""A file that is whole in the cache against itself on the disk: what is left of the way through the mount."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from fusestripe.units import GIB, MIB, format_size
from tests.bench import torch_file
from tests.bench.case import Case, Options, Tell, take_turns
from tests.bench.lab import Lab, write_random
from tests.bench.peers import Fusestripe
from tests.bench.reading import dd, drop_page_cache, map_through
from tests.bench.result import Figure, Result, Side, faster
from tests.bench.whole import Whole, whole

__all__ = ["PASSTHROUGH"]

HOT, DROPPED = "hot", "dropped"
MOUNT, PLAIN = "mount", "plain file"


class CpuMeter:
    """The daemon's processor time while files are read through its mount, and how long that took."""

    def __init__(self, mount: Fusestripe) -> None:
        self._mount = mount
        self._cpu = self._seconds = 0.0

    def watch(self, read: Callable[[], float]) -> float:
        """Run ``read``, which gives its seconds."""
        before = self._mount.cpu_seconds()
        seconds = read()
        self._cpu += self._mount.cpu_seconds() - before
        self._seconds += seconds
        return seconds

    @property
    def percent(self) -> float:
        """Of a core."""
        return 100 * self._cpu / self._seconds


def run(lab: Lab, options: Options, tell: Tell) -> Result:
    """Read by dd, through a map, and by torch.load, with the files' pages in memory and without."""
    size = options.file_size(4 * GIB, 64 * MIB)
    ways: dict[str, Callable[[Path, int], float]] = {"dd": dd, "mmap": map_through}
    write: Callable[[Path], object] = partial(write_random, size=size)
    notes: list[str] = []
    if torch_file.is_installed():
        ways["torch.load"] = torch_file.load
        write = partial(torch_file.save, size=size)
    else:
        notes.append("torch.load: not measured, torch is not installed (pip install 'fusestripe[torch]')")
    with whole(lab, write, tell) as files:
        meter = CpuMeter(files.mount)
        files.heat()
        sides = _measure(files, ways, HOT, meter, options, tell)
        if drop_page_cache():
            sides |= _measure(files, ways, DROPPED, meter, options, tell)
        else:
            notes.append(f"{DROPPED}: not measured, the page cache may not be dropped here")
        notes.extend(files.notes())
    # In a short run opening is most of a hot round, and one stall of the disk all of another.
    wanted = {HOT: options.pick(0.95, 0.05), DROPPED: options.pick(0.95, 0.05)}
    ratios = [
        faster(
            sides[_name(MOUNT, way, state)],
            sides[_name(PLAIN, way, state)],
            wanted[state],
            f"mount / plain file, {way}, {state}",
        )
        for state in (HOT, DROPPED)
        for way in ways
        if _name(MOUNT, way, state) in sides
    ]
    used = Figure("the daemon, of a core", meter.percent, options.pick(1.0, 100.0), "%", at_least=False)
    return Result(
        case=PASSTHROUGH.name,
        title=f"{format_size(size)}, whole in the cache, against the same bytes as a plain file",
        sides=tuple(sides.values()),
        figures=(*ratios, used),
        notes=tuple(notes),
    )


def _measure(
    files: Whole,
    ways: dict[str, Callable[[Path, int], float]],
    state: str,
    meter: CpuMeter,
    options: Options,
    tell: Tell,
) -> dict[str, Side]:
    def through_mount(read: Callable[[Path, int], float]) -> float:
        prepare()
        return files.size / meter.watch(lambda: read(files.shown, files.size))

    def plain(read: Callable[[Path, int], float]) -> float:
        prepare()
        return files.size / read(files.plain, files.size)

    def prepare() -> None:
        if state == DROPPED:
            drop_page_cache()

    sides: dict[str, Side] = {}
    for way, read in ways.items():
        measures = {
            _name(MOUNT, way, state): partial(through_mount, read),
            _name(PLAIN, way, state): partial(plain, read),
        }
        sides |= take_turns(measures, options, tell)
    return sides


def _name(where: str, way: str, state: str) -> str:
    return f"{where}, {way}, {state}"


PASSTHROUGH = Case("passthrough", "does a whole file read as fast as the disk itself?", run)
