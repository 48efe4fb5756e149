"""The channel between a device and pyfuse3, both played by socket pairs that keep messages whole."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fusestripe.kernel import abi
from fusestripe.kernel.channel import MESSAGE, Channel, OpenRequest
from tests.unit.test_abi import message

_SO_SNDBUFFORCE = 32  # include/uapi/asm-generic/socket.h
BROKEN = 13
PASSTHROUGH_INIT = struct.pack("=IIIII", 7, 45, 0, abi.FUSE_INIT_EXT, abi.FUSE_PASSTHROUGH >> 32)


class Requests:
    """Answers a READ with as many bytes "r", unless its handle is odd: those are kept."""

    def __init__(self) -> None:
        self.channel: Channel | None = None
        self.kept: set[int] = set()

    def read(self, request: abi.ReadRequest) -> None:
        assert self.channel is not None
        if request.fh == BROKEN:
            raise ZeroDivisionError
        if request.fh % 2:
            self.kept.add(request.unique)
        else:
            self.channel.data(request.unique, memoryview(b"r" * request.size))

    def interrupt(self, unique: int) -> bool:
        if unique not in self.kept:
            return False
        assert self.channel is not None
        self.channel.error(unique, 4)
        return True


class Opens:
    """Sends every open of an even inode to the backing file of that number."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.open: dict[int, int] = {}
        self.init = b""
        self.again: list[int] = []

    def greeted(self, init: bytes) -> None:
        self.init = init

    def negotiated(self, offered: bool) -> bool:
        return self.enabled and offered

    def asked_again(self, unique: int) -> None:
        self.again.append(unique)

    def opened(self, request: OpenRequest, reply: abi.OpenOut) -> abi.OpenOut:
        node = request.node
        if node == BROKEN:
            raise ZeroDivisionError
        self.open[node] = reply.fh
        return reply if node % 2 else reply._replace(open_flags=abi.FOPEN_PASSTHROUGH, backing_id=node)

    def released(self, node: int, fh: int, *, is_dir: bool) -> None:
        assert self.open[node] == fh
        del self.open[node]


class Ends:
    """The kernel's end of the device, and pyfuse3's end of the session."""

    def __init__(
        self, kernel: socket.socket, session: socket.socket, requests: Requests, opens: Opens
    ) -> None:
        self.kernel = kernel
        self.session = session
        self.requests = requests
        self.opens = opens
        self.ended = threading.Event()

    def hear(self, side: socket.socket) -> bytes:
        side.settimeout(20)
        return side.recv(MESSAGE)


@contextmanager
def running(enabled: bool = True) -> Iterator[Ends]:
    kernel, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    device.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 2 * MESSAGE)
    requests, opens = Requests(), Opens(enabled)
    ended = threading.Event()
    channel = requests.channel = Channel(device.detach(), ended.set)
    session = socket.socket(fileno=int(channel.give_far_end().rpartition("/")[2]))
    ends = Ends(kernel, session, requests, opens)
    ends.ended = ended
    channel.start(requests, opens)
    try:
        yield ends
    finally:
        kernel.close()
        session.close()
        channel.close()


def test_a_read_never_reaches_pyfuse3() -> None:
    with running() as ends:
        ends.kernel.send(message(abi.Opcode.READ, 9, struct.pack("=QQIIQII", 2, 0, 5, 0, 0, 0, 0)))
        assert ends.hear(ends.kernel) == abi.header_of_reply(5, 9) + b"rrrrr"
        ends.kernel.send(message(3, 11, b"getattr"))
        assert ends.hear(ends.session) == message(3, 11, b"getattr")


def test_a_defect_fails_one_read_and_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    with running() as ends:
        for unique in range(2, 40, 2):
            ends.kernel.send(
                message(abi.Opcode.READ, unique, struct.pack("=QQIIQII", BROKEN, 0, 5, 0, 0, 0, 0))
            )
            assert ends.hear(ends.kernel) == abi.error_reply(errno.EIO, unique)
        ends.kernel.send(message(abi.Opcode.READ, 41, struct.pack("=QQIIQII", 2, 0, 1, 0, 0, 0, 0)))
        assert ends.hear(ends.kernel) == abi.header_of_reply(1, 41) + b"r"
    assert "ZeroDivisionError" in caplog.text


def test_everything_else_goes_there_and_back_unchanged() -> None:
    with running() as ends:
        for unique in range(2, 200, 2):
            ends.kernel.send(message(1, unique, b"name\0"))
            request = ends.hear(ends.session)
            assert request == message(1, unique, b"name\0")
            reply = abi.header_of_reply(100, unique) + os.urandom(100)
            ends.session.send(reply)
            assert ends.hear(ends.kernel) == reply


def test_the_longest_message_passes() -> None:
    with running() as ends:
        reply = abi.header_of_reply(MESSAGE - 16, 2) + bytes(MESSAGE - 16)
        ends.session.send(reply)
        assert ends.hear(ends.kernel) == reply


@pytest.mark.parametrize(("enabled", "asks"), [(True, True), (False, False)])
def test_passthrough_is_asked_for_where_it_is_offered_and_wanted(enabled: bool, asks: bool) -> None:
    with running(enabled) as ends:
        ends.kernel.send(message(abi.Opcode.INIT, 1, PASSTHROUGH_INIT))
        ends.hear(ends.session)
        body = struct.pack("=IIIIHHIIHHII", 7, 38, 131072, 1, 12, 9, 1 << 20, 1, 256, 0, 0, 0) + bytes(28)
        ends.session.send(abi.header_of_reply(len(body), 1) + body)
        out = abi.InitOut.read(bytearray(ends.hear(ends.kernel)))
        assert out.max_background > 12
        assert (out.flags2 << 32 == abi.FUSE_PASSTHROUGH) is asks
        assert (out.max_stack_depth == 1) is asks


def test_an_older_kernel_is_not_asked() -> None:
    with running() as ends:
        ends.kernel.send(message(abi.Opcode.INIT, 1, struct.pack("=IIII", 7, 31, 0, 1)))
        ends.hear(ends.session)
        body = struct.pack("=IIIIHHIIHHII", 7, 31, 131072, 1, 12, 9, 1 << 20, 1, 256, 0, 0, 0) + bytes(28)
        ends.session.send(abi.header_of_reply(len(body), 1) + body)
        assert abi.InitOut.read(bytearray(ends.hear(ends.kernel))).flags2 == 0


def open_file(ends: Ends, unique: int, node: int, error: int = 0) -> bytes:
    header = struct.pack("=IIQQIIIHH", 48, abi.Opcode.OPEN, unique, node, 0, 0, 7, 0, 0)
    ends.kernel.send(header + bytes(8))
    ends.hear(ends.session)
    if error:
        ends.session.send(abi.error_reply(error, unique))
    else:
        ends.session.send(abi.header_of_reply(16, unique) + struct.pack("=QIi", 100 + node, 2, 0))
    return ends.hear(ends.kernel)


def test_an_open_is_decided_on_its_way_back() -> None:
    with running() as ends:
        assert abi.OpenOut.read(bytearray(open_file(ends, 20, 4))) == (104, abi.FOPEN_PASSTHROUGH, 4)
        assert abi.OpenOut.read(bytearray(open_file(ends, 22, 5))) == (105, 2, 0)
        assert open_file(ends, 24, 6, error=2) == abi.error_reply(2, 24)
        assert ends.opens.open == {4: 104, 5: 105}
        release = struct.pack("=IIQQIIIHH", 64, abi.Opcode.RELEASE, 26, 4, 0, 0, 7, 0, 0)
        ends.kernel.send(release + struct.pack("=QIIQ", 104, 0, 0, 0))
        ends.hear(ends.session)
        assert ends.opens.open == {5: 105}


def test_a_defect_in_the_decision_leaves_the_file_to_the_daemon(caplog: pytest.LogCaptureFixture) -> None:
    with running() as ends:
        assert abi.OpenOut.read(bytearray(open_file(ends, 20, BROKEN))) == (100 + BROKEN, 2, 0)
        for node in (BROKEN, 40, 41, 42, 43, 44):  # none of them open: each a KeyError
            release = struct.pack("=IIQQIIIHH", 64, abi.Opcode.RELEASE, 26, node, 0, 0, 7, 0, 0)
            ends.kernel.send(release + struct.pack("=QIIQ", 104, 0, 0, 0))
            ends.hear(ends.session)
        assert open_file(ends, 28, 4)
    assert "ZeroDivisionError" in caplog.text
    assert "KeyError" in caplog.text


@pytest.mark.parametrize("opcode", [abi.Opcode.READDIR, abi.Opcode.READDIRPLUS])
def test_a_listing_fits_the_way_back(opcode: int) -> None:
    with running() as ends:
        ends.kernel.send(message(opcode, 8, struct.pack("=QQIIQII", 3, 17, 64 << 20, 0, 0, 0, 0)))
        _fh, _offset, size = abi.READ_IN.unpack_from(ends.hear(ends.session), 40)
        assert size < ends.session.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        ends.kernel.send(message(opcode, 8, struct.pack("=QQIIQII", 3, 17, 4096, 5, 6, 7, 0)))
        body = ends.hear(ends.session)[40:]
        assert body == struct.pack("=QQIIQII", 3, 17, 4096, 5, 6, 7, 0)


def test_the_kernel_never_sends_more_than_is_read() -> None:
    with running() as ends:
        ends.kernel.send(message(abi.Opcode.INIT, 1, PASSTHROUGH_INIT))
        ends.hear(ends.session)
        body = struct.pack("=IIIIHHIIHHII", 7, 38, 131072, 1, 12, 9, 16 << 20, 1, 256, 0, 0, 0) + bytes(28)
        ends.session.send(abi.header_of_reply(len(body), 1) + body)
        assert abi.InitOut.read(bytearray(ends.hear(ends.kernel))).max_write + 4096 <= MESSAGE


def test_an_interrupt_of_a_read_is_answered_here_and_others_go_on() -> None:
    with running() as ends:
        ends.kernel.send(message(abi.Opcode.READ, 31, struct.pack("=QQIIQII", 3, 0, 5, 0, 0, 0, 0)))
        while 31 not in ends.requests.kept:
            pass
        ends.kernel.send(message(abi.Opcode.INTERRUPT, 33, struct.pack("=Q", 31)))
        assert ends.hear(ends.kernel) == abi.error_reply(4, 31)
        other = message(abi.Opcode.INTERRUPT, 35, struct.pack("=Q", 12))
        ends.kernel.send(other)
        assert ends.hear(ends.session) == other


def test_notifications_pass() -> None:
    with running() as ends:
        notice = struct.pack("=IiQ", 16 + 8, 2, 0) + bytes(8)  # FUSE_NOTIFY_INVAL_INODE
        ends.session.send(notice)
        assert ends.hear(ends.kernel) == notice
