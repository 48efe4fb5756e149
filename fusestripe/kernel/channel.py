"""The way between the FUSE device and those who answer its requests: the data plane.

READ is answered by the channel's own threads, which hold no GIL while the kernel copies. Everything else goes
to pyfuse3 through a socket pair that stands in for the device, and its answers come back the same way.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from fusestripe.kernel import abi
from fusestripe.kernel.abi import Opcode
from fusestripe.kernel.unanswered import Unanswered

__all__ = ["Channel", "OpenRequest", "Opens", "Replies", "Requests"]

log = logging.getLogger(__name__)

# Threads that read requests. More than answer at once: one that waits for the GIL holds nobody else up.
THREADS = 4
# The longest message either way: libfuse's 256 pages and a header.
MESSAGE = 1024 * 1024 + 4096
# Of the kernel's own requests (read-ahead) under way at once; its default of 12 is too few for one file.
BACKGROUND = 64
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # include/uapi/asm-generic/socket.h
# Read errors that say nothing of the device: the request was taken back, or a signal came (fs/fuse/dev.c).
_AGAIN = (errno.ENOENT, errno.EINTR, errno.EAGAIN)
# What writing a reply says when nobody waits for it any more.
_UNWANTED = (errno.ENOENT, errno.ENODEV, errno.ENOTCONN, errno.EPERM)
_CLOSED = -1


class Replies(Protocol):
    """Answers requests, from any thread, each at most once. Never raises."""

    def data(self, unique: int, data: bytes | bytearray | memoryview) -> None:
        """The whole of what was asked for."""
        ...

    def error(self, unique: int, number: int) -> None:
        """It failed with errno ``number``."""
        ...


class Requests(Protocol):
    """Who answers READ. Called on the channel's threads."""

    def read(self, request: abi.ReadRequest) -> None:
        """Answer now, or soon and from elsewhere."""
        ...

    def interrupt(self, unique: int) -> bool:
        """A signal came for the reader who waits for ``unique``; False where that is no READ under way."""
        ...


class Opens(Protocol):
    """Who decides how the kernel reads an open file. From any thread; each release after its open."""

    def greeted(self, init: bytes) -> None:
        """The kernel's INIT has come."""
        ...

    def negotiated(self, offered: bool) -> bool:
        """Whether passthrough is to be asked for; ``offered``: whether the kernel has it."""
        ...

    def opened(self, request: OpenRequest, reply: abi.OpenOut) -> abi.OpenOut:
        """The answer to ``request`` as the kernel shall have it."""
        ...

    def asked_again(self, unique: int) -> None:
        """The kernel has not had the answer to the open ``unique`` of a daemon before this one."""
        ...

    def released(self, node: int, fh: int, *, is_dir: bool) -> None:
        """The kernel has closed the handle ``fh`` of inode ``node``; again where a daemon died."""
        ...


class OpenRequest(NamedTuple):
    """An OPEN or an OPENDIR of inode ``node``. ``is_direct``: by O_DIRECT."""

    unique: int
    node: int
    is_dir: bool
    is_direct: bool


class Channel:
    """Owns ``device``, the descriptor of a mount; ``end`` is called, from any thread, when that is gone.

    Invariants: replies go out on the descriptor that the request came in on, there being but one. What waits
    for the kernel's locks (notifications) never holds up a reply, for which such a lock may be held.
    ``unanswered`` has ``THREADS`` buffers of ``MESSAGE`` bytes, and is where requests are noted for the next
    daemon unless the kernel would send them again; None where none follows.
    """

    def __init__(self, device: int, end: Callable[[], None], unanswered: Unanswered | None = None) -> None:
        self._device = device
        self._end = end
        self._unanswered = unanswered
        self._is_noting = False
        self._may_receive = threading.Event()
        self._near, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for side in (self._near, self._far):
            _enlarge(side)
        self._longest_listing = self._far.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - 4096
        self._notices: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._init: int | None = None
        self._is_resumed = False
        self._offered = 0
        self._opens_under_way: dict[int, OpenRequest] = {}
        self._is_closed = False
        self._threads: list[threading.Thread] = []

    def give_far_end(self) -> str:
        """What pyfuse3 mounts on instead of a directory: libfuse owns "/dev/fd/N" from now on."""
        return f"/dev/fd/{self._far.detach()}"

    def start(
        self, requests: Requests, opens: Opens, init: bytes = b"", unanswered: Sequence[bytes] = ()
    ) -> None:
        """Serve from now on.

        ``init``: the INIT that a daemon before this one has answered. pyfuse3 hears it, and the kernel
        nothing but that what is unanswered shall be sent again; or else it has left what is ``unanswered``.
        """
        if init:
            self._is_resumed = True
            self._greet(init)
            self._near.send(init)
        else:
            self._may_receive.set()
        if self._unanswered is None:
            buffers = [memoryview(bytearray(MESSAGE)) for _ in range(THREADS)]
        else:
            buffers = self._unanswered.buffers
        jobs: dict[str, Callable[[], None]] = {
            f"channel-{number}": partial(self._serve, buffer, () if number else unanswered, requests, opens)
            for number, buffer in enumerate(buffers)
        }
        jobs |= {"channel-replies": partial(self._relay, opens), "channel-notices": self._notify}
        for name, job in jobs.items():
            thread = threading.Thread(target=job, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self, patience: float = 1.0) -> None:
        """Stop serving, after the mount was taken away. A thread still in the device is left there.

        Not before pyfuse3 has ended: it takes the end of its session for a broken device.
        """
        self._is_closed = True
        self._may_receive.set()
        with contextlib.suppress(OSError):
            self._near.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            # A reply that comes now must not go to whatever gets this number next.
            device, self._device = self._device, _CLOSED
            os.close(device)
        self._near.close()
        self._far.close()  # if nobody was given it

    # Replies, for those who answer READ.

    def data(self, unique: int, data: bytes | bytearray | memoryview) -> None:
        """See Replies."""
        self._answer(unique, (abi.header_of_reply(len(data), unique), data))

    def error(self, unique: int, number: int) -> None:
        """See Replies."""
        self._answer(unique, (abi.error_reply(number, unique),))

    # The threads.

    def _serve(self, buffer: memoryview, left: Sequence[bytes], requests: Requests, opens: Opens) -> None:
        # Where a daemon is killed while the kernel looks for the page, the request fails with EIO
        # (fuse_dev_do_read of fs/fuse/dev.c, by get_user_pages).
        buffer[:4096] = bytes(4096)
        self._may_receive.wait()  # what is sent again is what nobody has received since
        for message in left:
            self._take(memoryview(bytearray(message)), requests, opens)
        while self._receive(buffer) and not self._is_closed:
            self._take(buffer, requests, opens)
            abi.clear(buffer)
        self._end()

    def _take(self, message: memoryview, requests: Requests, opens: Opens) -> None:
        """One request, at the beginning of ``message``, to whom it is for."""
        length, opcode, unique, *_rest = abi.IN_HEADER.unpack_from(message)
        if self._is_noting and self._unanswered is not None and opcode not in abi.ANSWERLESS:
            self._unanswered.note(unique, message[:length])
        if opcode == Opcode.READ:
            self._read(requests, abi.parse_read(message))
            return
        if opcode == Opcode.INTERRUPT and requests.interrupt(abi.interrupted_by(message)):
            return
        self._take_note(message, opens)
        with contextlib.suppress(OSError):  # pyfuse3 has ended, and so will this
            self._near.send(message[:length])

    def _take_note(self, message: memoryview, opens: Opens) -> None:
        """What the channel has to know of a request that pyfuse3 answers."""
        length, opcode, unique, node, *_rest = abi.IN_HEADER.unpack_from(message)
        if opcode in (Opcode.OPEN, Opcode.OPENDIR):
            if unique & abi.FUSE_UNIQUE_RESEND:
                opens.asked_again(unique)
            is_dir = opcode == Opcode.OPENDIR
            request = OpenRequest(unique, node, is_dir, not is_dir and abi.is_direct(message))
            self._opens_under_way[unique] = request
        elif opcode in (Opcode.RELEASE, Opcode.RELEASEDIR):
            try:
                opens.released(node, abi.released_by(message), is_dir=opcode == Opcode.RELEASEDIR)
            except Exception:
                log.exception("release failed")
        elif opcode in (Opcode.READDIR, Opcode.READDIRPLUS):
            abi.limit_listing(message, self._longest_listing)
        elif opcode == Opcode.INIT:
            self._greet(message)
            opens.greeted(bytes(message[:length]))

    def _greet(self, init: memoryview | bytes) -> None:
        self._init = abi.unique_of(init)
        self._offered = abi.requested_flags(init)
        self._is_noting = self._unanswered is not None and not self._offered & abi.FUSE_HAS_RESEND

    def _read(self, requests: Requests, request: abi.ReadRequest) -> None:
        try:
            requests.read(request)
        except Exception:  # without its threads the mount would stand still
            log.exception("read failed")
            self.error(request.unique, errno.EIO)

    def _receive(self, buffer: memoryview) -> int:
        """The length of the next request, in ``buffer``; 0 once the mount is gone."""
        while True:
            try:
                return os.readv(self._device, (buffer,))
            except OSError as error:
                if error.errno in _AGAIN:
                    continue
                if error.errno != errno.ENODEV:  # which is how an unmount shows
                    log.error("the FUSE device cannot be read: %s", error.strerror)  # noqa: TRY400
                return 0

    def _relay(self, opens: Opens) -> None:
        buffer = bytearray(MESSAGE)
        message = memoryview(buffer)
        while True:
            try:
                length = self._near.recv_into(buffer)
            except OSError:
                length = 0
            if length == 0:
                self._notices.put(None)
                return
            _length, error, unique = abi.OUT_HEADER.unpack_from(buffer)
            request = self._opens_under_way.pop(unique, None)
            if unique == 0:
                self._notices.put(bytes(message[:length]))
                continue
            if unique == self._init and error == 0:
                self._answer_init(buffer, opens)
                if self._is_resumed:
                    continue
            elif request is not None and error == 0:
                _decide(opens, request, buffer)
            self._answer(unique, (message[:length],))

    def _answer_init(self, reply: bytearray, opens: Opens) -> None:
        self._init = None
        out = abi.InitOut.read(reply).with_background(BACKGROUND).with_longest_write(MESSAGE - 4096)
        if opens.negotiated(bool(self._offered & abi.FUSE_PASSTHROUGH)):
            out = out.with_passthrough()
        can_resend = bool(self._offered & abi.FUSE_HAS_RESEND)
        if can_resend:
            out = out.with_resend()
        out.write(reply)
        if self._is_resumed:
            if can_resend:
                self._write((abi.resend_notice(),))
            self._may_receive.set()

    def _notify(self) -> None:
        while (notice := self._notices.get()) is not None:
            self._write((notice,))

    def _answer(self, unique: int, parts: tuple[bytes | bytearray | memoryview, ...]) -> None:
        self._write(parts)
        if self._unanswered is not None:
            self._unanswered.answered(unique)

    def _write(self, parts: tuple[bytes | bytearray | memoryview, ...]) -> None:
        device = self._device
        if device == _CLOSED:
            return
        try:
            os.writev(device, parts)
        except OSError as error:
            if error.errno not in _UNWANTED:
                log.error("a reply to the kernel failed: %s", error.strerror)  # noqa: TRY400


def _decide(opens: Opens, request: OpenRequest, reply: bytearray) -> None:
    try:
        opens.opened(request, abi.OpenOut.read(reply)).write(reply)
    except Exception:  # the file is read through the daemon then
        log.exception("open failed")


def _enlarge(side: socket.socket) -> None:
    """Room for the longest message; a plain user gets what net.core.wmem_max allows, for shorter listings."""
    for force, plain in ((_SO_SNDBUFFORCE, socket.SO_SNDBUF), (_SO_RCVBUFFORCE, socket.SO_RCVBUF)):
        try:
            side.setsockopt(socket.SOL_SOCKET, force, 2 * MESSAGE)
        except PermissionError:
            side.setsockopt(socket.SOL_SOCKET, plain, 2 * MESSAGE)
