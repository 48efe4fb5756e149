"""The mount of one job of a batch system on one node: made before the job starts, gone after it.

Both are done as the job's user. What lies between them is in the job's own runtime directory
($FUSESTRIPE_RUNTIME_DIR), STATE/ID/run: those of all jobs of a node lie side by side. There the daemon has
its socket and its log, and these files are for others to read: ``mount``, where the tree is, once it answers,
and ``prefetch.log``.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import psutil

from fusestripe.cache.catalogue import CacheCatalogue
from fusestripe.config import JobRequest, Route, Settings, load, path_in, request_of
from fusestripe.errors import ConfigError, FusestripeError, MountError, reason_of
from fusestripe.kernel import mounting
from fusestripe.kernel.within import within
from fusestripe.launch import DAEMON, KEEPER, child_environment, launch, stop
from fusestripe.origins.registry import FACTORIES
from fusestripe.telemetry.client import daemon_pid
from fusestripe.telemetry.rundir import RUNTIME_VARIABLE, runtime_dir, socket_path

__all__ = ["Job", "end", "plan", "prefetch_command", "start", "urls_of"]

LOOK_SECONDS = 10.0
"""How long the paths to prefetch are looked for in the mount."""
TERM_SECONDS, KILL_SECONDS = 1.0, 5.0
"""How long a process has from SIGTERM to SIGKILL, and from there to its end. What it keeps is on the disk."""
_KEEPER, _DAEMON = list(KEEPER[1:]), list(DAEMON[1:])
_RECORD, _MOUNT, _PREFETCH_LOG = "job.json", "mount", "prefetch.log"


class Job(msgspec.Struct, frozen=True):
    """What the batch system says of a job. ``mountpoint`` is for one that names none itself."""

    id: str
    comment: str
    directory: str
    mountpoint: str = ""


class Plan(msgspec.Struct, frozen=True):
    """What is to be done for a job. ``mountpoint`` is absolute; ``is_named``: by the job itself."""

    request: JobRequest
    settings: Settings
    mountpoint: str
    is_named: bool


class _Record(msgspec.Struct, frozen=True):
    """What the end of a job must know of its start. ``pinned`` are URLs.

    ``is_shared``: another may have mounted at ``mountpoint`` first.
    """

    mountpoint: str
    is_shared: bool = msgspec.field(name="is_named")  # as versions before have written it
    is_made: bool = False
    cache_dir: str = ""
    pinned: tuple[str, ...] = ()


def plan(job: Job) -> Plan | None:
    """What ``job`` asks for; None: nothing. Raises ConfigError; touches no network."""
    request = request_of(job.comment, job.directory)
    if request is None:
        return None
    settings = load(request.source, request.flags, schemes=FACTORIES)
    named = request.mountpoint_for(job.id)
    return Plan(request, settings, named or job.mountpoint, bool(named))


def start(job: Job, max_wait: float) -> tuple[str, ...] | None:
    """Mount what ``job`` asks for and begin to prefetch; None where it asks for nothing.

    It is waited for the prefetch as long as the job wants, for ``max_wait`` seconds at most.

    Returns lines for the job's log, of what went wrong without keeping the tree from being there. A second
    call while the mount is there does nothing. Raises ConfigError and MountError, and leaves nothing then.
    """
    wanted = plan(job)
    if wanted is None:
        return None
    run = _own_runtime_dir()
    if not wanted.mountpoint:
        raise ConfigError("there is no mountpoint", mend="name one with --mountpoint, or in the request")
    if (run / _MOUNT).exists() and daemon_pid(socket_path(mounting.resolve(wanted.mountpoint))) is not None:
        return ()
    is_made = _make_named(wanted.mountpoint) if wanted.is_named else False
    roots = urls_of(wanted.settings.routes, wanted.request.prefetch) if wanted.request.pin else ()
    path = mounting.resolve(wanted.mountpoint)
    record = _Record(path, wanted.is_named, is_made, wanted.settings.cache.dir, roots)
    _write(run / _RECORD, msgspec.json.encode(record))
    try:
        launch(wanted.settings, path)
    except BaseException:
        _forget(run, record)
        raise
    try:
        _write(run / _MOUNT, os.fsencode(path) + b"\n")
    except MountError:
        stop(path, lazy=True)
        _forget(run, record)
        raise
    return tuple(_prefetch(wanted.request, path, run, min(wanted.request.wait, max_wait)))


def end(job: Job) -> None:
    """Unmount what ``start`` mounted, whatever became of it, end all its processes, and unpin.

    What somebody else has mounted there meanwhile stays, unless nobody serves it any more.

    Who still has files open there gets errors. A second call does nothing. Raises FusestripeError where
    something is left.
    """
    run = _own_runtime_dir()
    record = _read(run / _RECORD) or _Record(mounting.resolve(job.mountpoint), is_shared=True)
    _failure(lambda: _unmount(record))
    tried = [
        _failure(lambda: _end_processes(run)),
        _failure(lambda: _unmount(record)),  # a mount whose daemon had to be killed, or had only begun
        _failure(lambda: _unpin(record, run)),
    ]
    if record.is_shared or mounting.find_mount(record.mountpoint) is None:
        _forget(run, record)
    if left := [error for error in tried if error is not None]:
        raise MountError("; ".join(error.message for error in left), mend=left[0].mend)


def prefetch_command(request: JobRequest, mountpoint: str) -> list[str]:
    """The arguments of `fusestripe` that prefetch what ``request`` names, in the mount at ``mountpoint``."""
    flags = {"--latest": request.latest, "--rank-local": request.rank_local, "--pin": request.pin}
    paths = [os.path.normpath(os.path.join(mountpoint, path)) for path in request.prefetch]
    return ["prefetch", *(flag for flag, is_on in flags.items() if is_on), "--", *paths]


def urls_of(routes: Sequence[Route], paths: Sequence[str]) -> tuple[str, ...]:
    """What ``paths`` of the mounted tree are in the stores, as ``cache unpin`` takes it; "." is all."""
    urls: dict[str, None] = {}
    for path in paths:
        wanted = "/" if path == "." else f"/{path}/"
        for route in routes:
            shown = route.path.rstrip("/") + "/"
            source = route.source.rstrip("/")
            if shown.startswith(wanted):
                urls[source] = None
            elif wanted.startswith(shown):
                urls[f"{source}/{wanted[len(shown) :].rstrip('/')}"] = None
    return tuple(urls)


def _own_runtime_dir() -> Path:
    if not os.environ.get(RUNTIME_VARIABLE):
        raise ConfigError(f"{RUNTIME_VARIABLE} is not set", mend="each job has a directory of its own there")
    return Path(runtime_dir())


def _make_named(mountpoint: str) -> bool:
    """See that the directory a job names is its user's own; whether it had to be made."""
    try:
        if mounting.find_mount(mounting.resolve(mountpoint)) is not None:
            return False  # ``launch`` looks at what is mounted there
        made = not os.path.lexists(mountpoint)
        if made:
            os.mkdir(mountpoint, 0o700)
        owner = os.stat(mountpoint).st_uid
    except OSError as error:
        what = reason_of(error)
        raise MountError(
            f"{mountpoint} cannot be made: {what}", mend="name a directory of your own"
        ) from None
    if owner != os.geteuid():
        raise MountError(f"{mountpoint} is not this user's own", mend="name a directory of your own")
    return made


def _prefetch(request: JobRequest, mountpoint: str, run: Path, wait: float) -> Iterator[str]:
    """Begin to prefetch, and wait for it so many seconds; lines of what went wrong."""
    if not request.prefetch:
        return
    yield from _missing(request, mountpoint)
    name = run / _PREFETCH_LOG
    try:
        client = _start_prefetch(request, mountpoint, name)
    except OSError as error:
        yield f"the prefetch cannot be started: {reason_of(error)}"
        return
    try:
        failed = client.wait(wait) != 0
    except subprocess.TimeoutExpired:
        client.returncode = 0  # goes on beside the job: Popen shall not warn of it
        failed = False
    if failed:
        said = name.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        yield f"the prefetch failed: {said[-1].removeprefix('fusestripe: ')}"


def _start_prefetch(request: JobRequest, mountpoint: str, log: Path) -> subprocess.Popen[bytes]:
    with open(log, "wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "fusestripe", *prefetch_command(request, mountpoint)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # slurmd kills the process group of a Prolog that has ended
            cwd="/",  # python -m searches the working directory for modules
            env=child_environment(),
        )


def _missing(request: JobRequest, mountpoint: str) -> Iterator[str]:
    missing: list[str] = []

    def look() -> None:
        for path in request.prefetch:
            try:
                os.stat(os.path.join(mountpoint, path))
            except FileNotFoundError:
                missing.append(path)
            except OSError:
                continue  # the prefetch itself says more

    within(LOOK_SECONDS, look)
    for path in list(missing):
        yield f"prefetch: there is no {path!r} in what is mounted"


def _failure(call: Callable[[], None]) -> FusestripeError | None:
    """What ``call`` raises on purpose."""
    try:
        call()
    except FusestripeError as error:
        return error
    return None


def _unmount(record: _Record) -> None:
    mount = mounting.find_mount(record.mountpoint)
    if mount is None or mount.fstype != mounting.FSTYPE:
        return
    point = record.mountpoint
    if not record.is_shared or daemon_pid(socket_path(point)) is not None or mounting.is_dead(point):
        stop(point, lazy=True)


def _end_processes(run: Path) -> None:
    """End daemons and prefetches of the job, those too that it is not known to have."""
    left: list[int] = []
    for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        with ExitStack() as stack:
            handles: dict[int, int] = {}
            # Keepers first: one that lives on starts another daemon.
            for process in sorted(_processes(run), key=_is_no_keeper):
                with suppress(OSError):
                    handles[process.pid] = os.pidfd_open(process.pid)
                    stack.callback(os.close, handles[process.pid])
            for handle in handles.values():
                with suppress(OSError):
                    signal.pidfd_send_signal(handle, number)
            deadline = time.monotonic() + seconds
            left = [pid for pid, handle in handles.items() if not _has_ended(handle, deadline)]
    if left:
        raise MountError(f"process {left[0]} does not end", mend="look at the disk of the cache")


def _is_no_keeper(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.cmdline()[1:3] != _KEEPER)
    return True


def _has_ended(handle: int, deadline: float) -> bool:
    """Whether the process of the pidfd ``handle`` ends by then; nobody need reap it (pidfd_open(2))."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))


def _processes(run: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.uids().real != os.getuid() or process.pid == os.getpid():
                continue
            command = process.cmdline()
            is_ours = command[1:3] in (_KEEPER, _DAEMON) or command[1:4] == ["-m", "fusestripe", "prefetch"]
            if is_ours and process.environ().get(RUNTIME_VARIABLE) == str(run):
                yield process


def _unpin(record: _Record, run: Path) -> None:
    """Unpin what the job has pinned, but for what another job of this user here has pinned too."""
    others: set[str] = set()
    for path in run.parent.parent.glob(f"*/run/{_RECORD}"):
        if path.parent != run:
            other = _read(path)
            others.update(other.pinned if other is not None else ())
    urls = [url for url in record.pinned if url not in others]
    if not urls:
        return
    with CacheCatalogue(Path(record.cache_dir)) as catalogue:
        origins = {entry.version.origin for entry in catalogue.entries()}
        for url in urls:
            for origin in origins:
                path_of = path_in(url, origin)
                if path_of is not None:
                    catalogue.unpin(origin=origin, path=path_of)


def _read(path: Path) -> _Record | None:
    """The record in the file ``path``, if it is one of this user's."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            return msgspec.json.decode(file.read(), type=_Record)
    except (OSError, msgspec.DecodeError):
        return None


def _write(path: Path, data: bytes) -> None:
    """Raises MountError."""
    fresh = path.with_suffix(".new")
    try:
        fresh.write_bytes(data)
        fresh.replace(path)
    except OSError as error:
        what = reason_of(error)
        raise MountError(f"{path} cannot be written: {what}", mend=f"make room in {path.parent}") from None


def _forget(run: Path, record: _Record) -> None:
    for name in (_MOUNT, _RECORD):
        (run / name).unlink(missing_ok=True)
    if record.is_made:
        with suppress(OSError):
            os.rmdir(record.mountpoint)
