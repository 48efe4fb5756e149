"""`mount.fusestripe`: what mount(8) calls for the type fusestripe (mount(8), EXTERNAL HELPERS)."""

from __future__ import annotations

import ctypes
import getopt
import os
import pwd
import signal
import sys
from collections.abc import MutableMapping, Sequence
from types import FrameType
from typing import NoReturn

import msgspec

from fusestripe.config import Settings, load
from fusestripe.config.environment import read_environment
from fusestripe.config.mountoptions import MountRequest, read_mount_options
from fusestripe.errors import ConfigError, FusestripeError, MountError, reason_of
from fusestripe.kernel.rights import user_name
from fusestripe.launch import launch
from fusestripe.origins.registry import FACTORIES

__all__ = ["main"]

# mount(8), EXIT STATUS.
MOUNTED, USAGE, SYSTEM_ERROR, BUG, INTERRUPTED, FAILED = 0, 1, 2, 4, 8, 32

_HELP = """\
usage: mount.fusestripe SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]

Called by mount(8): mount -t fusestripe SPEC DIR -o OPTIONS, or by an entry of /etc/fstab.
SPEC is a URL like s3://bucket/prefix, or a TOML file with routes. OPTIONS are those of mount(8), any setting
of fusestripe by its name, config=FILE (TOML, beside a URL) and env_file=FILE (environment variables).
"""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CLONE_NEWNS = 0x20000  # include/uapi/linux/sched.h


class Call(msgspec.Struct, frozen=True):
    """The command line. ``namespace`` is a path of /proc, "" for this process's own."""

    spec: str
    directory: str
    options: str = ""
    namespace: str = ""
    is_fake: bool = False
    is_sloppy: bool = False
    is_verbose: bool = False


def main() -> NoReturn:
    """The console script: mount, and leave with a status of mount(8)."""
    try:
        if {"-h", "--help"} & set(sys.argv[1:]):
            sys.stdout.write(_HELP)
            sys.exit(MOUNTED)
        signal.signal(signal.SIGTERM, _interrupt)  # a start that is ended half-way is cleaned up
        mount(read_call(sys.argv[1:]))
    except FusestripeError as error:
        _fail(str(error), USAGE if isinstance(error, ConfigError) else FAILED)
    except OSError as error:
        _fail(str(error), SYSTEM_ERROR)
    except KeyboardInterrupt:
        _fail("interrupted", INTERRUPTED)
    except Exception as error:
        if os.environ.get("FUSESTRIPE_DEBUG", "") not in ("", "0"):
            raise
        _fail(f"{type(error).__name__}: {error}: FUSESTRIPE_DEBUG=1 shows where", BUG)
    sys.exit(MOUNTED)


def read_call(arguments: Sequence[str]) -> Call:
    """What ``arguments`` say. Raises ConfigError with the usage where they cannot be understood."""
    usage = _HELP.partition("\n")[0]
    try:
        options, places = getopt.gnu_getopt(list(arguments), "sfnvN:o:t:")
    except getopt.GetoptError as error:
        raise ConfigError(error.msg, mend=usage) from None
    if len(places) != 2:
        raise ConfigError("there have to be a SPEC and a DIR", mend=usage)
    said = [name for name, _ in options]
    spec, directory = places
    return Call(
        spec,
        directory,
        options=",".join(value for name, value in options if name == "-o"),
        namespace=next((_namespace(value) for name, value in options if name == "-N"), ""),
        is_fake="-f" in said,
        is_sloppy="-s" in said,
        is_verbose="-v" in said,
    )


def mount(call: Call) -> None:
    """Do what is asked for. Raises FusestripeError, and OSError where the system refuses."""
    request = read_mount_options(call.options, is_sloppy=call.is_sloppy)
    if request.ignored and call.is_verbose:
        _say(f"ignored: {', '.join(request.ignored)}")
    if call.namespace:
        _enter(call.namespace)
    _furnish(os.environ)
    settings = _settings(call, request)
    if not call.is_fake:
        launch(settings, call.directory)
    if call.is_verbose:
        _say(f"{call.spec} {'would be ' if call.is_fake else ''}mounted on {call.directory}, read-only")
    owner = settings.mount.uid
    if owner not in (None, os.geteuid()) and not settings.mount.allow_other:
        _say(f"{user_name(owner)} cannot look into {call.directory}: that takes allow_other")


def _settings(call: Call, request: MountRequest) -> Settings:
    """Its name among the mounts is the SPEC as it was given: by that `mount -a` knows it is there."""
    if request.env_file:
        os.environ.update(read_environment(request.env_file))
    settings = load(call.spec, request.flags, config=request.config or None, schemes=FACTORIES)
    if settings.mount.fsname:
        return settings
    named = msgspec.structs.replace(settings.mount, fsname=call.spec)
    return msgspec.structs.replace(settings, mount=named)


def _furnish(environ: MutableMapping[str, str]) -> None:
    """What a login would set, and mount(8) takes away (sanitize_env of util-linux) or never had."""
    environ["PATH"] = os.pathsep.join(filter(None, [environ.get("PATH"), _PATH]))
    if not environ.get("HOME"):
        try:
            environ["HOME"] = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            environ["HOME"] = "/"


def _namespace(said: str) -> str:
    """As mount(8) hands it on; a process by its number, as people write it."""
    return f"/proc/{said}/ns/mnt" if said.isdigit() else said


def _enter(namespace: str) -> None:
    """Go on in the mount namespace of that path (setns(2)). Raises MountError."""
    try:
        descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        what = reason_of(error)
        raise MountError(
            f"the namespace {namespace} cannot be opened: {what}", mend="name a process"
        ) from None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _CLONE_NEWNS) != 0:
            what = os.strerror(ctypes.get_errno()).lower()
            raise MountError(f"the namespace {namespace} cannot be entered: {what}", mend="do it as root")
    finally:
        os.close(descriptor)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    """One line on stderr, where there is one."""
    if sys.stderr is not None:
        sys.stderr.write(f"mount.fusestripe: {' '.join(text.split())}\n")


def _fail(text: str, status: int) -> NoReturn:
    _say(text)
    sys.exit(status)


if __name__ == "__main__":
    main()
