"""Small reads all over a whole file: what a reader of records pays for the mount."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import msgspec

from fusestripe.units import GIB, KIB, MIB, format_size
from tests.bench.case import Case, Options, Tell, take_turns
from tests.bench.lab import Lab, write_random
from tests.bench.result import Result, faster
from tests.bench.whole import whole
from tests.support.seaweed import find_program

__all__ = ["RANDOM"]

BLOCK = 4 * KIB
WANTED = {1: 0.8, 16: 0.9}
SHORT_WANTED = 0.2


class _Reads(msgspec.Struct):
    iops: float
    total_ios: int


class _Job(msgspec.Struct):
    read: _Reads
    error: int


class _Report(msgspec.Struct):
    jobs: tuple[_Job]


def run(lab: Lab, options: Options, tell: Tell) -> Result:
    """4 KiB reads by fio with one job and with sixteen, all pages of the file in memory."""
    size = options.file_size(GIB, 64 * MIB)
    seconds = options.pick(5, 1)
    with whole(lab, partial(write_random, size=size), tell) as files:
        files.heat()
        measures = {
            f"{where}, {_jobs(jobs)}": partial(fio, path, size, jobs, seconds)
            for jobs in WANTED
            for where, path in (("mount", files.shown), ("plain file", files.plain))
        }
        sides = take_turns(measures, options, tell, "1/s")
        notes = files.notes()
    return Result(
        case=RANDOM.name,
        title=f"4 KiB reads all over {format_size(size)}, whole in the cache and in memory",
        sides=tuple(sides.values()),
        figures=tuple(
            faster(
                sides[f"mount, {_jobs(jobs)}"],
                sides[f"plain file, {_jobs(jobs)}"],
                options.pick(wanted, SHORT_WANTED),
                f"mount / plain file, {_jobs(jobs)}",
            )
            for jobs, wanted in WANTED.items()
        ),
        notes=notes,
    )


def fio(path: Path, size: int, jobs: int, seconds: int) -> float:
    """Reads a second that ``jobs`` processes of fio(1) make together; the file's pages stay in memory."""
    command = [
        find_program("fio"),
        "--name=random",
        f"--filename={path}",
        f"--size={size}",
        "--readonly",
        "--rw=randread",
        f"--bs={BLOCK}",
        "--ioengine=psync",
        "--invalidate=0",
        f"--numjobs={jobs}",
        "--group_reporting",
        "--time_based",
        f"--runtime={seconds}",
        "--output-format=json",
    ]
    done = subprocess.run(command, capture_output=True, check=False, cwd=path.parent)
    if done.returncode != 0:
        raise RuntimeError(f"fio failed: {done.stderr.decode(errors='replace')[-1000:]}")
    (job,) = msgspec.json.decode(done.stdout, type=_Report).jobs
    if job.error or not job.read.total_ios:
        raise RuntimeError(f"fio read nothing, or failed with errno {job.error}")
    return job.read.iops


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


RANDOM = Case("random", "how many small reads a second does the mount give?", run, needs=("fio",))
