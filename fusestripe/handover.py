"""A mount for a process that may not mount: one process with the right mounts, the other serves.

The giver (`fusestripe hand-over`) waits at a Unix socket (SOCK_SEQPACKET). The taker (`fusestripe mount
--device`) sends its ``MountOptions`` as JSON and gets an answer with descriptors: "device", the mount's, and
what one who served the mount before had kept ("state" and more). It keeps the connection for as long as it
serves, and what the next one shall have goes to a second socket, as to a service manager with a store of
descriptors: FDSTORE=1, FDNAME=name and a descriptor (sd_notify(3)), and READY=1 once the tree answers.
"""

from __future__ import annotations

import array
import errno
import logging
import os
import select
import socket
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

import msgspec

from fusestripe.errors import FusestripeError, MountError, reason_of
from fusestripe.keeper import DESCRIPTORS, LONGEST_MESSAGE
from fusestripe.kernel import mounting
from fusestripe.kernel.attach import MountOptions, attach
from fusestripe.kernel.read_ahead import raise_read_ahead

__all__ = ["Giver", "Owner", "Taken", "check_taken", "manager_of", "serve", "take"]

log = logging.getLogger(__name__)

PATIENCE = 10.0
"""A side that says nothing for so long (seconds) has nothing to say."""
_KEPT = frozenset(("state", "unanswered"))
"""What the next taker can have of the last (kernel/session.py). A taker has the giver keep nothing else."""
_CREDENTIALS = struct.Struct("iII")
"""struct ucred (unix(7)): pid, uid, gid."""


class Owner(msgspec.Struct, frozen=True):
    """Who is trusted with the mount, and owns it."""

    user: int
    group: int


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """``names`` of the descriptors that come along, in order; or why there are none."""

    names: tuple[str, ...] = ()
    error: str = ""
    mend: str = ""


def manager_of(path: str) -> str:
    """The socket of what is to be kept, beside the giver's at ``path``."""
    return f"{path}.notify"


class Giver:
    """The mount at ``mountpoint`` (resolved, ready to be mounted on), and what its next taker is to have.

    Invariant: what is kept is given only with the device that it is of, and only if its taker's tree has
    answered since it was given: what brought the last taker down is given to no other.
    """

    def __init__(
        self,
        mountpoint: str,
        owner: Owner,
        *,
        make: Callable[[str, MountOptions, tuple[int, int]], int] = attach,
    ) -> None:
        self._mountpoint = mountpoint
        self._owner = owner
        self._make = make
        self._options: MountOptions | None = None
        self._mount: mounting.Mount | None = None
        self._kept: dict[str, int] = {}
        self._is_good = False

    def give(self, options: MountOptions) -> Mapping[str, int]:
        """The descriptors for who wants the mount with ``options``, which stay the giver's.

        Raises MountError.
        """
        if not ("state" in self._kept and self._is_good and self._stands() and options == self._options):
            self.close()
            self._kept["device"] = self._make(
                self._mountpoint, options, (self._owner.user, self._owner.group)
            )
            self._options = options
            self._mount = mounting.find_mount(self._mountpoint)
        self._is_good = False
        return self._kept

    def hear(self, text: str, descriptors: list[int]) -> None:
        """One message of the taker; ``descriptors`` are the giver's from now on."""
        fields = dict(line.partition("=")[::2] for line in text.split("\n"))
        if "READY" in fields:
            self._is_good = True
            raise_read_ahead(self._mountpoint)  # the taker may not; nor would it last any sooner
        name = fields.get("FDNAME", "device")
        # The device is here already, and another one would be none of this mount's.
        if name in _KEPT and descriptors and "device" in self._kept:
            self._drop(name)
            self._kept[name] = descriptors.pop()
        for surplus in descriptors:
            os.close(surplus)

    def close(self) -> None:
        """Take the mount away, whoever still has a file open there, and forget all of it."""
        if self._stands():
            mounting.detach(self._mountpoint, lazy=True)
        for name in tuple(self._kept):
            self._drop(name)
        self._mount = None

    def _stands(self) -> bool:
        found = mounting.find_mount(self._mountpoint)
        return found is not None and self._mount is not None and found.device == self._mount.device

    def _drop(self, name: str) -> None:
        if name in self._kept:
            os.close(self._kept.pop(name))


def serve(giver: Giver, path: str, owner: Owner, end: int) -> None:
    """Give at the socket ``path``, to ``owner`` alone and to one at a time, until ``end`` is readable.

    Raises MountError where there can be no socket.
    """
    with ExitStack() as stack:
        # First what is kept: at the other socket it is seen that both are there.
        kept = stack.enter_context(_bound(manager_of(path), socket.SOCK_DGRAM, owner))
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listener = stack.enter_context(_bound(path, socket.SOCK_SEQPACKET, owner))
        listener.listen()
        taker: socket.socket | None = None
        while True:
            sources: list[int | socket.socket] = [end, kept, listener, *([] if taker is None else [taker])]
            readable, _, _ = select.select(sources, [], [])
            while _hear(giver, kept, owner):  # first, for the next taker gets it
                pass
            if taker is not None and taker in readable:
                taker.close()  # it says nothing more; this is its end
                taker = None
            if listener in readable:
                connection, _ = listener.accept()
                taken = _answer(giver, connection, owner, is_free=taker is None)
                taker = connection if taken else taker
            if end in readable:
                break
        if taker is not None:
            taker.close()


class Taken(msgspec.Struct, frozen=True):
    """What a taker has: the descriptors by their names, and the connection, which ends with the giver.

    To the giver the taker's end is that no process has the connection any more: whoever serves holds it.

    ``manager`` is the socket for what the next taker shall have.
    """

    descriptors: Mapping[str, int]
    connection: socket.socket
    manager: str

    def close(self) -> None:
        """Close the descriptors, once another process has them. The connection stays."""
        for descriptor in self.descriptors.values():
            os.close(descriptor)

    def await_end(self) -> None:
        """Return when the giver is gone."""
        with suppress(OSError):
            self.connection.recv(1)


def take(path: str, options: MountOptions) -> Taken:
    """Ask the giver at the socket ``path`` for a mount with ``options``. Raises MountError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(PATIENCE)
        connection.connect(path)
        connection.send(msgspec.json.encode(options))
        data, descriptors, _flags, _address = socket.recv_fds(
            connection, LONGEST_MESSAGE, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        answer = msgspec.json.decode(data, type=Answer)
    except (OSError, msgspec.DecodeError) as error:
        connection.close()
        what = reason_of(error) if isinstance(error, OSError) else "its end"
        mend = "start `fusestripe hand-over` with this socket, and this user as its --user"
        raise MountError(f"nobody hands a mount over at {path}: {what}", mend=mend) from None
    if answer.error:
        connection.close()
        raise MountError(answer.error, mend=answer.mend)
    if len(answer.names) != len(descriptors):  # of those beyond the limit of open files the kernel gives none
        connection.close()
        for descriptor in descriptors:
            os.close(descriptor)
        what = f"{len(descriptors)} of {len(answer.names)} descriptors came along"
        raise MountError(f"{what} from {path}", mend="raise the limit of open files: ulimit -n 65536")
    connection.settimeout(None)
    named = dict(zip(answer.names, descriptors, strict=True))
    return Taken(named, connection, manager_of(os.path.abspath(path)))


def check_taken(mountpoint: str) -> None:
    """Raise MountError unless a mount that was handed over is seen at ``mountpoint`` (absolute, no links)."""
    found = mounting.find_mount(mountpoint)
    if found is None or found.fstype != mounting.FSTYPE:
        mend = "have both processes see it there; in Kubernetes by mountPropagation: HostToContainer"
        raise MountError(f"what was handed over is not mounted at {mountpoint}", mend=mend)


@contextmanager
def _bound(path: str, kind: socket.SocketKind, owner: Owner) -> Iterator[socket.socket]:
    """A socket at ``path`` that its ``owner`` alone can reach."""
    bound = socket.socket(socket.AF_UNIX, kind)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        before = os.umask(0o177)
        try:
            bound.bind(path)
        finally:
            os.umask(before)
        _give_away(path, owner)
    except OSError as error:
        bound.close()
        what = reason_of(error)
        raise MountError(
            f"{path} cannot be made: {what}", mend="name a socket in a directory of yours"
        ) from None
    try:
        yield bound
    finally:
        bound.close()
        with suppress(OSError):
            os.unlink(path)


def _give_away(path: str, owner: Owner) -> None:
    """Make the new socket ``path`` the ``owner``'s, and nothing else that was put in its place since.

    Raises OSError.
    """
    found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        what = os.fstat(found)
        if not stat.S_ISSOCK(what.st_mode) or what.st_uid != os.geteuid() or what.st_nlink != 1:
            raise FileExistsError(errno.EEXIST, "something else was put in its place", path)
        os.chown(f"/proc/self/fd/{found}", owner.user, owner.group)
    finally:
        os.close(found)


def _answer(giver: Giver, connection: socket.socket, owner: Owner, *, is_free: bool) -> bool:
    """Give who has connected what it asks for, or say why not; whether it has it. Closes a refused one."""
    given: Mapping[str, int] = {}
    try:
        connection.settimeout(PATIENCE)
        asked = connection.recv(LONGEST_MESSAGE)
        _pid, user, _group = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if user != owner.user:
            raise MountError(f"the mount is for user {owner.user}, not for {user}", mend="see --user")
        options = msgspec.json.decode(asked, type=MountOptions)
        if not is_free:
            raise MountError("another process serves this mount", mend="end it first")
        given = giver.give(options)
        answer = Answer(names=tuple(given))
    except FusestripeError as error:
        log.warning("%s", error)
        answer = Answer(error=error.message, mend=error.mend)
    except (OSError, msgspec.DecodeError) as error:
        log.warning("nothing was asked for: %s", error)
        answer = Answer(error="that was no question", mend="ask by `fusestripe mount --device`")
    with suppress(OSError):
        connection.settimeout(None)
        socket.send_fds(connection, [msgspec.json.encode(answer)], list(given.values()))
        if given:
            return True
    connection.close()
    return False


def _hear(giver: Giver, kept: socket.socket, owner: Owner) -> bool:
    """One message, if it is from ``owner`` (SCM_CREDENTIALS, unix(7)); False where there is none."""
    room = socket.CMSG_SPACE(DESCRIPTORS * array.array("i").itemsize) + socket.CMSG_SPACE(_CREDENTIALS.size)
    try:
        how = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        data, ancillary, _flags, _address = kept.recvmsg(LONGEST_MESSAGE, room, how)
    except BlockingIOError:
        return False
    user, descriptors = -1, array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            _pid, user, _group = _CREDENTIALS.unpack(content)
    if user == owner.user:
        giver.hear(data.decode(errors="replace"), list(descriptors))
        return True
    log.warning("user %d has nothing to say here", user)
    for descriptor in descriptors:
        os.close(descriptor)
    return True
