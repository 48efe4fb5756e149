"""A daemon's side of its keeper: see ``fusestripe.keeper``."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping, MutableMapping
from contextlib import asynccontextmanager, suppress

import trio

from fusestripe.errors import MountError
from fusestripe.keeper import (
    DESCRIPTORS,
    ENVIRONMENT,
    LONGEST_MESSAGE,
    MANAGER,
    STANDBY_SECONDS,
    tell_manager,
)

__all__ = ["Keeping"]

log = logging.getLogger(__name__)


class Keeping:
    """What is said to the keeper, if this process has one: without one nothing is kept, and nobody asked.

    What a keeper would hand on to the service manager then goes to ``manager``, the socket of that, if any.
    """

    def __init__(self, connection: socket.socket | None, manager: str = "") -> None:
        self._connection = connection
        self._manager = manager
        self._asked: trio.Event | None = None
        self._refusal = ""

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> Keeping:
        """The keeper that started this process; what this one starts is to know nothing of it."""
        number, manager = environ.pop(ENVIRONMENT, ""), environ.pop(MANAGER, "")
        if not number:
            return cls(None, manager)
        os.set_inheritable(int(number), False)
        return cls(socket.socket(fileno=int(number)))

    def __bool__(self) -> bool:
        """Whether there is a keeper."""
        return self._connection is not None

    def take(self) -> Mapping[str, int]:
        """Wait until it is this process's turn; the descriptors that are kept, by their names.

        Raises MountError where the keeper is gone.
        """
        if self._connection is None:
            return {}
        self.tell("STANDBY=1")
        try:
            data, descriptors, _flags, _address = socket.recv_fds(
                self._connection, LONGEST_MESSAGE, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            data, descriptors = b"", []
        name, _, names = data.decode().partition("=")
        if name != "TAKE":
            raise MountError("the keeper of the mount is gone", mend="mount it again")
        return dict(zip(names.split(":"), descriptors, strict=False))

    def store(self, name: str, descriptor: int) -> None:
        """Have ``descriptor`` kept, in the place of what was kept by that name.

        Raises OSError where there is a keeper, and it has not got it.
        """
        if self._connection is not None:
            with suppress(ConnectionError):  # it is gone, which ``listen`` says
                socket.send_fds(self._connection, [f"FDSTORE=1\nFDNAME={name}".encode()], [descriptor])

    def tell(self, text: str) -> None:
        """One message in the words of sd_notify(3). A keeper that is gone hears nothing."""
        if self._connection is not None:
            try:
                self._connection.send(text.encode())
            except OSError as error:
                log.debug("the keeper cannot be told: %s", error.strerror)
        elif self._manager:
            tell_manager(self._manager, text)

    @asynccontextmanager
    async def successor(self) -> AsyncIterator[None]:
        """Another daemon stands by in the block, to take over from this one; it goes if the block is left.

        Raises MountError.
        """
        if self._connection is None:
            raise MountError("this mount has no keeper", mend="mount it again without keeper=no")
        if self._asked is not None:
            raise MountError("another upgrade is under way", mend="wait for it")
        self._asked = trio.Event()
        try:
            self.tell("UPGRADE=1")
            with trio.move_on_after(2 * STANDBY_SECONDS) as waiting:
                await self._asked.wait()
            if waiting.cancelled_caught:
                raise MountError("no other daemon stands by", mend="fusestripe status names the log")
            if self._refusal:
                raise MountError(
                    self._refusal, mend="fusestripe status names the log; the mount goes on as it was"
                )
            yield
        finally:
            self._asked = None
            self.tell("STAYS=1")

    async def listen(self) -> None:
        """Hear the keeper, until it is gone."""
        if self._connection is None:
            return
        connection = trio.socket.from_stdlib_socket(self._connection)
        with suppress(OSError):  # it ended before it had heard all
            while message := await connection.recv(LONGEST_MESSAGE):
                name, _, value = message.decode(errors="replace").partition("=")
                if name in ("LEAVE", "STAY"):
                    self._answer(value if name == "STAY" else "")
        self._connection = None
        self._answer("the keeper of the mount is gone")
        log.warning("the keeper of the mount is gone: the mount ends with this daemon")

    def _answer(self, refusal: str) -> None:
        if self._asked is not None:
            self._refusal = refusal
            self._asked.set()
