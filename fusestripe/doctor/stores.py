"""The origin of each route, and what there is for those that no route names."""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from types import MappingProxyType

import trio

from fusestripe.config import Route
from fusestripe.doctor.finding import Finding
from fusestripe.engine import connect
from fusestripe.errors import CredentialsRefused, FusestripeError, OriginError, PermissionDenied
from fusestripe.origins.aws import find_access
from fusestripe.origins.base import Entry, Origin, OriginOptions
from fusestripe.units import join_url, printable

__all__ = ["EXTRAS", "aws_credentials", "extras", "first_file", "origin", "try_reading"]

DEEPEST = 8
"""Directories one in another that are gone through to find a file to try."""

EXTRAS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "hdfs": ("hdfs_native", "hdfs://"),
        "arrow": ("pyarrow", "hdfs+libhdfs://"),
        "gcs": ("google.auth", "credentials for gs://"),
        "azure": ("azure.identity", "identities for az://"),
        "aws": ("awscrt", "credentials of `aws login`"),
        "peers": ("hostlist", "nodes that share what they fetch"),
    }
)
"""Extra -> a package that it alone brings, and what it is for."""


def extras() -> Finding:
    """What a mount could not do for want of an extra; only what is mounted has to be there."""
    lacking = {extra: use for extra, (package, use) in EXTRAS.items() if not _is_there(package)}
    if not lacking:
        return Finding("extras", "ok", "all are installed")
    uses = ", ".join(lacking.values())
    return Finding(
        "extras", "ok", f"not installed, for {uses}", f"pip install 'fusestripe[{','.join(lacking)}]'"
    )


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # of what it is in; ValueError: sys.modules holds something without one
        return False


def origin(route: Route, timeout: float) -> Finding:
    """Whether the route's store lets us in and gives a byte, and how long it takes to say so."""
    what = f"route {route.path}"
    begin = time.monotonic()
    with _overheard() as complaints:
        try:
            (opened,) = trio.run(partial(connect, [route], timeout=timeout)).values()
            answers = f"{route.source} answers in {time.monotonic() - begin:.2f} s"
            with closing(opened):
                found = try_reading(what, answers, opened)
        except FusestripeError as error:
            return Finding(what, "fail", error.message, error.mend)
    if found.level == "ok" and complaints:  # what was got over, and would be logged by each mount
        said = complaints[0]
        return Finding(what, "warning", f"{found.text}; {said.getMessage()}", getattr(said, "mend", ""))
    return found


class _Listener(logging.Handler):
    """Keeps warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def _overheard() -> Iterator[list[logging.LogRecord]]:
    """The warnings that are logged in the block, which go nowhere else."""
    logger, listener = logging.getLogger("fusestripe"), _Listener()
    logger.addHandler(listener)
    try:
        yield listener.records
    finally:
        logger.removeHandler(listener)


def try_reading(what: str, answers: str, opened: Origin) -> Finding:
    """What the first byte of the first file says. Raises OriginError where we may not have it."""
    try:
        found = first_file(opened)
    except PermissionDenied as error:
        unknown = "but no file was found to try, so whether they can be read is not known"
        text = f"{answers} {unknown}: {error.message}"
        mend = f"fusestripe bench {join_url(opened.url, 'NAME')} tries one"
        return Finding(what, "warning", text, mend)
    if found is None:
        return Finding(what, "ok", f"{answers}; no file was found to try")
    path, entry = found
    try:
        opened.read_range(opened.version(path, entry), 0, memoryview(bytearray(1)), lambda _: None)
    except (PermissionDenied, CredentialsRefused):
        raise
    except OriginError as error:  # of this one file, as far as is known
        return Finding(what, "warning", f"{answers}, but: {error.message}", error.mend)
    return Finding(what, "ok", f"{answers}, and {printable(path)} can be read")


def first_file(opened: Origin) -> tuple[str, Entry] | None:
    """A file with bytes in it, and its path: the first, in the first directories. Raises OriginError."""
    path = ""
    for _ in range(DEEPEST):
        page = next((page for page in opened.list_dir(path) if page), [])
        files = (entry for entry in page if entry.size and not entry.is_dir)
        directories = (entry for entry in page if entry.is_dir)
        entry = next(chain(files, directories), None)
        if entry is None:
            return None
        path = f"{path}/{entry.name}" if path else entry.name
        if not entry.is_dir:
            return path, entry
    return None


def aws_credentials() -> Finding:
    """Whether there are AWS credentials to be found, where no route says which are needed."""
    what = "credentials"
    try:
        find_access(OriginOptions())
    except FusestripeError as error:
        return Finding(what, "warning", f"{error.message}, so no s3:// but public buckets", error.mend)
    return Finding(what, "ok", "AWS credentials found")
