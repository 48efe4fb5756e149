"""Handing a mount over: who gets it, what the next one finds, and what is refused."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from fusestripe.errors import MountError
from fusestripe.handover import Giver, Owner, Taken, manager_of, serve, take
from fusestripe.kernel import mounting
from fusestripe.kernel.attach import MountOptions
from tests.support.mounted import until

OPTIONS = MountOptions("s3://bucket", allow_other=True)


class Lab:
    """A giver in a thread. Instead of a mount it makes a file, in which is the number of that mount."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, user: int) -> None:
        self.path = str(directory / "socket")
        self.made: list[tuple[MountOptions, tuple[int, int]]] = []
        self.stands = False
        self._directory = directory
        monkeypatch.setattr(mounting, "find_mount", self._find)
        monkeypatch.setattr(mounting, "detach", self._detach)
        owner = Owner(user, os.getgid())
        self.giver = Giver("/mnt", owner, make=self._make)
        self._end, self._told = os.pipe()
        self._thread = threading.Thread(target=serve, args=(self.giver, self.path, owner, self._end))
        self._thread.start()
        until(
            lambda: os.path.exists(self.path) and os.stat(self.path).st_uid == user
        )  # it is given away then

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        os.close(self._told)
        self._thread.join()
        os.close(self._end)
        self.giver.close()

    def tell(self, text: str, content: bytes = b"") -> None:
        """What a keeper says, with a descriptor of a file of that ``content``."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(manager_of(self.path))
            descriptors = [self._file(content)] if content else []
            socket.send_fds(sender, [text.encode()], descriptors)
            for descriptor in descriptors:
                os.close(descriptor)

    def _make(self, mountpoint: str, options: MountOptions, owner: tuple[int, int]) -> int:
        assert mountpoint == "/mnt"
        assert not self.stands
        self.made.append((options, owner))
        self.stands = True
        return self._file(b"mount %d" % len(self.made))

    def _file(self, content: bytes) -> int:
        path = self._directory / "file"
        path.write_bytes(content)
        descriptor = os.open(path, os.O_RDONLY)
        path.unlink()
        return descriptor

    def _find(self, path: str) -> mounting.Mount | None:
        device = f"0:{len(self.made)}"
        return mounting.Mount(path, mounting.FSTYPE, "s", device, ()) if self.stands else None

    def _detach(self, path: str, *, lazy: bool) -> None:
        assert (path, lazy, self.stands) == ("/mnt", True, True)
        self.stands = False


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    lab = Lab(tmp_path, monkeypatch, os.getuid())
    try:
        yield lab
    finally:
        lab.close()
    assert not lab.stands
    assert os.listdir(tmp_path) == []


def contents(taken: Taken) -> dict[str, bytes]:
    return {name: os.pread(descriptor, 100, 0) for name, descriptor in taken.descriptors.items()}


def leave(lab: Lab, taken: Taken) -> None:
    """The taker is gone, and the giver has seen it."""
    taken.close()
    taken.connection.close()
    with suppress(MountError):
        # Refused while the one before is thought to serve; nothing that could be asked for is asked for.
        take_nothing(lab)


def take_nothing(lab: Lab) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(lab.path)
        connection.send(b"nothing")
        refusal = msgspec.json.decode(connection.recv(1000))
        assert refusal == {"error": "that was no question", "mend": "ask by `fusestripe mount --device`"}


def test_who_comes_next_gets_the_mount_with_its_state(lab: Lab) -> None:
    first = take(lab.path, OPTIONS)
    assert contents(first) == {"device": b"mount 1"}
    assert first.manager == manager_of(lab.path)
    lab.tell("FDSTORE=1\nFDNAME=device", b"another")  # it is the giver's own that counts
    for number in range(20):
        lab.tell(f"FDSTORE=1\nFDNAME=own-{number}", b"more")  # nor does a taker fill the giver with its own
    lab.tell("FDSTORE=1\nFDNAME=state", b"old")
    lab.tell("FDSTORE=1\nFDNAME=state", b"state")
    lab.tell("READY=1\nSTATUS=at work")
    leave(lab, first)
    second = take(lab.path, OPTIONS)
    assert contents(second) == {"device": b"mount 1", "state": b"state"}
    assert lab.made == [(OPTIONS, (os.getuid(), os.getgid()))]
    leave(lab, second)


def test_a_mount_that_cannot_be_taken_over_is_made_anew(lab: Lab) -> None:
    """For the last one left no state, brought nobody up with it, wanted something else, or it is gone."""
    for number, (options, words, stands) in enumerate(
        (
            (OPTIONS, ["READY=1"], True),
            (OPTIONS, ["FDSTORE=1\nFDNAME=state"], True),
            (MountOptions("s3://other"), ["READY=1", "FDSTORE=1\nFDNAME=state"], True),
            (OPTIONS, ["READY=1", "FDSTORE=1\nFDNAME=state"], False),
            (OPTIONS, [], True),
        ),
        1,
    ):
        taken = take(lab.path, options)
        assert contents(taken) == {"device": b"mount %d" % number}
        for word in words:
            lab.tell(word, b"state" if "FDSTORE" in word else b"")
        leave(lab, taken)
        lab.stands = stands
    lab.stands = True


def test_one_at_a_time(lab: Lab) -> None:
    taken = take(lab.path, OPTIONS)
    with pytest.raises(MountError, match="another process serves this mount: end it first"):
        take(lab.path, OPTIONS)
    assert contents(taken) == {"device": b"mount 1"}
    leave(lab, taken)


def test_another_user_gets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may reach the socket all the same, and is not who it is for either."""
    lab = Lab(tmp_path, monkeypatch, 12345)
    try:
        for path in (lab.path, manager_of(lab.path)):
            assert (os.stat(path).st_uid, os.stat(path).st_mode & 0o777) == (12345, 0o600)
        with pytest.raises(MountError, match="the mount is for user 12345, not for 0: see --user"):
            take(lab.path, OPTIONS)
        lab.tell("FDSTORE=1\nFDNAME=state", b"state")
        assert lab.made == []
    finally:
        lab.close()


def test_the_giver_s_end_is_seen(lab: Lab) -> None:
    taken = take(lab.path, OPTIONS)
    ended = threading.Thread(target=taken.await_end)
    ended.start()
    lab.close()
    ended.join(10)
    assert not ended.is_alive()
    taken.close()
    taken.connection.close()
    with pytest.raises(MountError, match=r"nobody hands a mount over at .*socket: no such file"):
        take(lab.path, OPTIONS)


@pytest.mark.parametrize("kind", ["link", "hard link", "file"])
def test_what_is_put_in_the_place_of_a_socket_is_given_to_nobody(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write in the directory swaps it between bind(2) and chown(2)."""
    path, precious = tmp_path / "socket", tmp_path / "precious"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(precious))
    umask = os.umask

    def swap(mask: int) -> int:
        if path.is_socket():
            path.unlink()
            if kind == "link":
                path.symlink_to(precious)
            elif kind == "hard link":
                os.link(precious, path)
            else:
                path.write_text("")
        return umask(mask)

    monkeypatch.setattr(os, "umask", swap)
    monkeypatch.setattr("fusestripe.handover.manager_of", lambda path: path)
    owner = Owner(12345, 12345)
    with pytest.raises(MountError, match="socket cannot be made: something else was put in its place: name"):
        serve(Giver("/mnt", owner), str(path), owner, -1)
    assert precious.stat().st_uid == os.getuid()


def test_descriptors_that_do_not_come_along_are_an_error(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                socket.send_fds(connection, [b'{"names": ["device", "state"]}'], [listener.fileno()])

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(MountError, match=r"1 of 2 descriptors came along from .*socket: raise the limit"):
            take(path, OPTIONS)
        thread.join()
