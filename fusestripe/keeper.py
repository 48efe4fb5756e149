"""The parent of a daemon: keeps the mount when the daemon dies, and starts another that takes it over.

Here is only what must outlive a daemon, and only Python's own library: there is little to fail.

A daemon talks to its keeper over a socket (SOCK_SEQPACKET) whose number is in FUSESTRIPE_KEEPER_FD, in the
words of sd_notify(3): READY=1, STATUS=..., WATCHDOG=1, and FDSTORE=1 with FDNAME=... and a descriptor; and
some of its own: STANDBY=1 (it could begin), UPGRADE=1 (start another to follow) and STAYS=1 (nobody waits for
that other one any more). The keeper answers TAKE=names with the descriptors kept so far, LEAVE=1 (the other
can begin) and STAY=why. What a service manager wants to know goes on to it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

from fusestripe.stderr import line_handler

__all__ = [
    "DESCRIPTORS",
    "ENVIRONMENT",
    "LEFT",
    "LONGEST_MESSAGE",
    "MANAGER",
    "Keeper",
    "how_it_ended",
    "main",
    "tell_manager",
]

ENVIRONMENT = "FUSESTRIPE_KEEPER_FD"
"""Has the number of the daemon's end of the socket."""
MANAGER = "NOTIFY_SOCKET"
"""Has the socket of the service manager, where there is one (sd_notify(3))."""
LEFT = 75
"""The exit status of a daemon that leaves the mount to the next (EX_TEMPFAIL of sysexits.h)."""

# A daemon that lives for so long (seconds) has begun well: the next is started at once.
GOOD_LIFE = 10.0
# After some in a row that do not, there is a pause (seconds), each twice as long as the one before.
UNPAUSED, PAUSE, LONGEST_PAUSE = 5, 0.1, 1.0
# So many bad lives in a row are one too many, and so many that ended by themselves before they were ready.
# Who was killed (kill -9, no memory) says nothing of whether the next can begin.
BAD_LIVES, FALSE_STARTS = 60, 8
# A daemon that says nothing for so long hangs (seconds): ten times what a slow disk or a busy machine takes.
# A service manager may have another opinion (WATCHDOG_USEC).
PATIENCE = 120.0
# A daemon that is to follow another has so long to stand by (seconds).
STANDBY_SECONDS = 30.0
# Of one message, whoever sends it: bytes, and descriptors that come with them.
LONGEST_MESSAGE, DESCRIPTORS = 4096, 8
_FOR_MANAGER = ("READY", "STATUS", "STOPPING")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

log = logging.getLogger("fusestripe.keeper")


class _Message(NamedTuple):
    fields: dict[str, str]
    descriptors: list[int]


class _Daemon:
    """One life of a daemon."""

    def __init__(self, order: dict[str, Any], ready_fd: int) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                order["command"],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno(), *([ready_fd] if ready_fd >= 0 else []), *order.get("held", [])],
                env={**os.environ, ENVIRONMENT: str(theirs.fileno())},
            )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stdin:
            stdin.write(json.dumps({**order, "ready_fd": ready_fd}).encode())
        self.end = os.pidfd_open(self.process.pid)
        self.began = self.heard = time.monotonic()
        self.stands_by = self.is_ready = False

    def tell(self, text: str, descriptors: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):  # it has ended, which is seen by its pidfd
            socket.send_fds(self.socket, [text.encode()], descriptors)

    def hear(self) -> _Message | None:
        """Its next message; None once there will be no more."""
        try:
            data, descriptors, _flags, _address = socket.recv_fds(
                self.socket, LONGEST_MESSAGE, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            data, descriptors = b"", []
        if not data:
            return None
        lines = (line.partition("=") for line in data.decode(errors="replace").split("\n"))
        return _Message({name: value for name, _, value in lines}, descriptors)

    def close(self) -> int:
        """What it ended with, once it has: its exit status, or the number of a signal below 0."""
        code = self.process.wait()
        os.close(self.end)
        self.socket.close()
        return code


class Keeper:
    """``order`` is what each daemon gets on its stdin, with ``command`` to start it by.

    Descriptors that the order names as "held" are every daemon's too. Those that it names as "given" are kept
    from the start, and who gave them is told of what comes in their place.

    Invariant: of two daemons only one has the kept descriptors, and the other gets them when that has ended.
    ``patience``: seconds after which a daemon that says nothing is killed, for another to take over.
    ``manager`` is the socket of the service manager (sd_notify(3)), "" where there is none.
    """

    def __init__(self, order: dict[str, Any], *, patience: float, manager: str = "") -> None:
        self._order = order
        self._patience = patience
        self._manager = manager
        self._kept: dict[str, int] = dict(order.get("given", {}))
        self._is_given = bool(self._kept)
        self._next: _Daemon | None = None
        self._bad_lives = self._false_starts = 0
        self._has_been_ready = False
        self._is_ending = False
        self._daemon = self._start(order["ready_fd"])
        for number in _SIGNALS:
            signal.signal(number, self._hand_on)

    def run(self) -> int:
        """Until the mount ends or cannot be kept: the exit status, or the number of a signal below 0."""
        while True:
            self._await_something()
            following = self._next
            if following is not None and _has_ended(following):
                self._drain(following)
                self._next = None
                code = following.close()
                self._daemon.tell(f"STAY=the new daemon {how_it_ended(code)}")
            if not _has_ended(self._daemon):
                continue
            self._drain(self._daemon)
            code = self._daemon.close()
            if not self._is_to_be_kept(code):
                self._drop_next()
                return code
            if code != LEFT:
                log.warning("the daemon %s; another takes the mount over", how_it_ended(code))
            following = self._follow()
            if following is None:
                return code
            self._daemon = following

    def _start(self, ready_fd: int = -1) -> _Daemon:
        daemon = _Daemon(self._order, ready_fd)
        if ready_fd >= 0:
            os.close(ready_fd)  # the daemon's alone: its end is told by it
        return daemon

    def _follow(self) -> _Daemon | None:
        """The next daemon; None where none can be started."""
        following, self._next = self._next, None
        if following is not None:
            if following.stands_by:
                self._give(following)
            return following
        if self._bad_lives > UNPAUSED:
            time.sleep(min(LONGEST_PAUSE, PAUSE * 2 ** (self._bad_lives - UNPAUSED - 1)))
        for _ in range(FALSE_STARTS):
            try:
                return self._start()
            except OSError as error:  # no memory for a process, or no interpreter where one was
                log.error("no other daemon can be started: %s", error)  # noqa: TRY400
                time.sleep(LONGEST_PAUSE)
        return None

    def _is_to_be_kept(self, code: int) -> bool:
        """Whether another daemon shall follow one that ended with ``code``."""
        daemon = self._daemon
        if code == 0 or not self._has_been_ready or "device" not in self._kept:
            return False
        if code == LEFT:
            return True
        is_bad = _age(daemon) < GOOD_LIFE
        self._bad_lives = self._bad_lives + 1 if is_bad else 0
        if code != -signal.SIGKILL:
            self._false_starts = 0 if daemon.is_ready else self._false_starts + 1
        if self._bad_lives < BAD_LIVES and self._false_starts < FALSE_STARTS:
            return True
        log.error("the daemon %s, like those before: the mount is given up", how_it_ended(code))
        return False

    def _await_something(self) -> None:
        """Hear what daemons say, and return once there was something, or one has ended."""
        daemons = [one for one in (self._daemon, self._next) if one is not None]
        sources: list[Any] = [*(one.socket for one in daemons), *(one.end for one in daemons)]
        look = self._patience / 4 if self._next is None else min(self._patience, STANDBY_SECONDS) / 4
        began = time.monotonic()
        readable, _, _ = select.select(sources, [], [], look)
        if time.monotonic() - began > 2 * look:  # this process was stopped, and so was the daemon
            self._daemon.heard = time.monotonic()
        for daemon in daemons:
            is_there = daemon in (self._daemon, self._next)  # not dropped for what the other one has said
            if is_there and daemon.socket in readable and not self._hear(daemon):
                select.select([daemon.end], [], [])  # it has closed its end, and so it ends
        if time.monotonic() - self._daemon.heard > self._patience:
            log.error("the daemon has said nothing for %g s: killed", self._patience)
            self._daemon.heard = time.monotonic()
            self._daemon.process.kill()
        following = self._next
        if following is not None and not following.stands_by and _age(following) > STANDBY_SECONDS:
            following.process.kill()
        self._tell_manager("WATCHDOG=1")

    def _drain(self, daemon: _Daemon) -> None:
        """What it had sent before it ended counts."""
        while self._hear(daemon):
            pass

    def _hear(self, daemon: _Daemon) -> bool:
        message = daemon.hear()
        if message is None:
            return False
        fields = message.fields
        daemon.heard = time.monotonic()
        if message.descriptors:
            self._keep(fields.get("FDNAME", "stored"), message.descriptors)
        if "STANDBY" in fields:
            self._can_begin(daemon)
        if "READY" in fields:
            self._has_begun(daemon)
        if "UPGRADE" in fields:
            self._have_next(daemon)
        if "STAYS" in fields:
            self._drop_next()
        said = [f"{name}={fields[name]}" for name in _FOR_MANAGER if name in fields]
        if said:
            self._tell_manager("\n".join(said))
        return True

    def _can_begin(self, daemon: _Daemon) -> None:
        daemon.stands_by = True
        if daemon is self._daemon:
            self._give(daemon)
        else:
            self._daemon.tell("LEAVE=1")

    def _has_begun(self, daemon: _Daemon) -> None:
        daemon.is_ready = self._has_been_ready = True
        if self._is_ending:  # the signal came while there was no daemon
            daemon.process.send_signal(signal.SIGTERM)
        if os.getpgid(0) != os.getpid():  # it has mounted from within an automounter's group (launch.py)
            os.setsid()

    def _have_next(self, daemon: _Daemon) -> None:
        self._drop_next()
        try:
            self._next = self._start()
        except OSError as error:
            daemon.tell(f"STAY=no other daemon can be started: {error.strerror}")

    def _drop_next(self) -> None:
        """Whoever asked for another daemon did not wait for it."""
        if self._next is not None:
            self._next.process.kill()
            self._next.close()
            self._next = None

    def _keep(self, name: str, descriptors: list[int]) -> None:
        for surplus in descriptors[1:]:
            os.close(surplus)
        if name in self._kept:
            os.close(self._kept[name])
        self._kept[name] = descriptors[0]
        if self._is_given:
            self._tell_manager(f"FDSTORE=1\nFDNAME={name}", descriptors[:1])

    def _give(self, daemon: _Daemon) -> None:
        daemon.heard = time.monotonic()
        daemon.tell(f"TAKE={':'.join(self._kept)}", list(self._kept.values()))

    def _hand_on(self, number: int, _frame: FrameType | None) -> None:
        self._is_ending = True
        # One that takes over would die of it with the mount still there: it hears of it when it has begun.
        if self._daemon.is_ready or not self._has_been_ready:
            self._daemon.process.send_signal(number)

    def _tell_manager(self, text: str, descriptors: Sequence[int] = ()) -> None:
        if self._manager:
            tell_manager(self._manager, text, descriptors)


def tell_manager(manager: str, text: str, descriptors: Sequence[int] = ()) -> None:
    """Send ``text`` to the service manager whose socket is ``manager``: NOTIFY_SOCKET (sd_notify(3))."""
    address = "\0" + manager[1:] if manager.startswith("@") else manager
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(address)  # send_fds of Python 3.11 takes an address and sends to none
        socket.send_fds(sender, [text.encode()], descriptors)


def how_it_ended(code: int) -> str:
    """``code``: an exit status, or the number of a signal below 0."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


def _age(daemon: _Daemon) -> float:
    return time.monotonic() - daemon.began


def _has_ended(daemon: _Daemon) -> bool:
    return bool(select.select([daemon.end], [], [], 0)[0])


def main() -> int:
    """Keep the mount of the order on stdin; the exit status, or the number of a signal below 0."""
    logging.basicConfig(handlers=[line_handler()])
    order = json.loads(sys.stdin.buffer.read())
    manager = os.environ.pop(MANAGER, "")
    watchdog = int(os.environ.pop("WATCHDOG_USEC", "0")) / 1e6 if manager else 0.0
    return Keeper(order, patience=watchdog or PATIENCE, manager=manager).run()


if __name__ == "__main__":
    ended_with = main()
    if ended_with < 0:  # as the daemon ended
        with contextlib.suppress(OSError):  # SIGKILL has no other
            signal.signal(-ended_with, signal.SIG_DFL)
        os.kill(os.getpid(), -ended_with)
    sys.exit(ended_with)
