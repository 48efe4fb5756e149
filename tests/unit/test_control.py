"""The control socket: a real socket, a real blocking client in a thread."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import stat
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from fusestripe.errors import CacheError, MountError
from fusestripe.kernel.mounting import FSTYPE, Mount
from fusestripe.telemetry import control, rundir
from fusestripe.telemetry.client import daemon_pid, request
from fusestripe.telemetry.control import Handler, Send, serve
from fusestripe.telemetry.rundir import runtime_dir, runtime_dirs_of, socket_of, socket_path


@contextlib.asynccontextmanager
async def serving(path: str, handlers: Mapping[str, Handler]) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, path, handlers)
        yield
        nursery.cancel_scope.cancel()


async def ask(path: str, command: str, timeout: float = 5.0, **args: object) -> list[Any]:
    return await trio.to_thread.run_sync(lambda: list(request(path, command, timeout=timeout, **args)))


async def echo(args: Mapping[str, Any], send: Send) -> None:
    for number in range(args["times"]):
        await send({"number": number, "word": args["word"]})


async def refuse(args: Mapping[str, Any], send: Send) -> None:
    raise CacheError("the cache is full", mend="clear it")


async def fail(args: Mapping[str, Any], send: Send) -> None:
    raise ZeroDivisionError("a bug")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s.sock")


async def test_answers_come_in_order(path: str) -> None:
    async with serving(path, {"echo": echo}):
        answers = await ask(path, "echo", times=3, word="ü")
    assert answers == [{"number": number, "word": "ü"} for number in range(3)]


async def test_no_answer_is_an_answer(path: str) -> None:
    async with serving(path, {"echo": echo}):
        assert await ask(path, "echo", times=0, word="") == []


async def test_answers_larger_than_a_socket_buffer(path: str) -> None:
    word = "x" * 900_000
    async with serving(path, {"echo": echo}):
        answers = await ask(path, "echo", times=5, word=word)
    assert [answer["word"] == word for answer in answers] == [True] * 5


async def test_a_refusal_keeps_its_message_and_mend(path: str) -> None:
    async with serving(path, {"refuse": refuse}):
        with pytest.raises(MountError, match=r"^the cache is full: clear it$"):
            await ask(path, "refuse")


async def test_a_request_that_is_too_long_or_no_text_is_not_sent(path: str) -> None:
    async with serving(path, {"echo": echo}):
        with pytest.raises(MountError, match="more than one request holds: name directories instead"):
            await ask(path, "echo", times=1, word="x" * control.LONGEST_REQUEST)
        with pytest.raises(MountError, match="a name that is not UTF-8 cannot be asked for"):
            await ask(path, "echo", times=1, word="\udcff")
        assert await ask(path, "echo", times=1, word="x") == [{"number": 0, "word": "x"}]


async def test_an_unknown_command_is_named(path: str) -> None:
    async with serving(path, {}):
        with pytest.raises(MountError, match='does not know "dance"'):
            await ask(path, "dance")


async def test_a_bug_in_a_handler_leaves_the_server_up(path: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(path, {"fail": fail, "echo": echo}):
        with pytest.raises(MountError, match="ZeroDivisionError: a bug"):
            await ask(path, "fail")
        assert len(await ask(path, "echo", times=1, word="")) == 1
    assert "control command failed" in caplog.text


@pytest.mark.parametrize("line", [b"\n", b"{}\n", b"not json\n", b'{"command": 4}\n'])
async def test_what_is_no_request_is_refused(path: str, line: bytes) -> None:
    async with serving(path, {"echo": echo}):
        async with await trio.open_unix_socket(path) as stream:
            await stream.send_all(line)
            answer = b""
            while part := await stream.receive_some():
                answer += part
        assert "not a request" in msgspec.json.decode(answer)["error"]
        assert len(await ask(path, "echo", times=1, word="")) == 1


async def test_a_hang_up_cancels_the_handler(path: str) -> None:
    started, cancelled = trio.Event(), trio.Event()

    async def wait(args: Mapping[str, Any], send: Send) -> None:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with serving(path, {"wait": wait}):
        stream = await trio.open_unix_socket(path)
        await stream.send_all(b'{"command": "wait"}\n')
        await started.wait()
        await stream.aclose()
        with trio.fail_after(5):
            await cancelled.wait()


async def test_a_hang_up_seen_by_sending_cancels_a_handler_with_a_nursery(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    done = trio.Event()

    async def flood(args: Mapping[str, Any], send: Send) -> None:
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(send_forever, send)
        finally:
            done.set()

    async def send_forever(send: Send) -> None:
        while True:
            await send("x" * 10_000)

    async with serving(path, {"flood": flood}):
        stream = await trio.open_unix_socket(path)
        await stream.send_all(b'{"command": "flood"}\n')
        await stream.receive_some()
        await stream.aclose()
        with trio.fail_after(5):
            await done.wait()
    assert caplog.text == ""


async def test_a_daemon_at_work_is_not_silent(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ALIVE_SECONDS", 0.02)

    async def work(args: Mapping[str, Any], send: Send) -> None:
        await trio.sleep(1.0)
        await send("done")

    async with serving(path, {"work": work}):
        assert await ask(path, "work", timeout=0.5) == ["done"]


async def test_a_silent_daemon_is_given_up(path: str) -> None:
    async def wait(args: Mapping[str, Any], send: Send) -> None:
        await trio.sleep_forever()

    async with serving(path, {"wait": wait}):
        with pytest.raises(MountError, match=r"silent for 0\.1 s"):
            await ask(path, "wait", timeout=0.1)


async def test_a_stale_socket_is_replaced_and_removed_at_the_end(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)
    with pytest.raises(MountError, match="the daemon is gone"):
        await ask(path, "echo")
    assert await trio.to_thread.run_sync(daemon_pid, path) is None
    async with serving(path, {"echo": echo}):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert await trio.to_thread.run_sync(daemon_pid, path) == os.getpid()
        assert len(await ask(path, "echo", times=1, word="")) == 1
    assert os.listdir(os.path.dirname(path)) == []


async def test_an_old_server_leaves_the_socket_of_the_new_one(path: str) -> None:
    async with serving(path, {"echo": echo}):
        async with serving(path, {}):
            pass
        assert not os.path.exists(path)
    async with serving(path, {}), trio.open_nursery() as nursery:
        await nursery.start(serve, path, {"echo": echo})
        assert len(await ask(path, "echo", times=1, word="")) == 1
        nursery.cancel_scope.cancel()


@contextlib.contextmanager
def dying_after(path: str, last: bytes) -> Iterator[None]:
    """A daemon that answers one value, then ``last``, and is gone."""

    def answer_and_die() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b'{"value": 1}\n' + last)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        thread = threading.Thread(target=answer_and_die)
        thread.start()
        yield
        thread.join(5)


@pytest.mark.parametrize("last", [b"", b"\n", b'{"value', b"junk\n"])
def test_a_daemon_that_dies_in_an_answer_is_an_error(path: str, last: bytes) -> None:
    with dying_after(path, last):
        answers = request(path, "any", timeout=5)
        assert next(answers) == 1
        with pytest.raises(MountError, match="ended in the middle"):
            next(answers)


@pytest.mark.parametrize("logs", [True, False])
def test_who_finds_no_daemon_is_told_where_it_logged(tmp_path: Path, logs: bool) -> None:
    log = tmp_path / "x.log"
    if logs:
        log.touch()
    with pytest.raises(MountError, match="the daemon is gone: mount it again; ") as caught:
        next(request(str(tmp_path / "x.sock"), "any"))
    assert (str(log) in str(caught.value)) is logs


async def test_a_client_of_a_mount_that_is_taken_away_is_told_so(path: str) -> None:
    """Its log goes with it, so that nobody is sent there."""
    began = trio.Event()

    async def busy(_args: object, _send: Send) -> None:
        began.set()
        await trio.sleep_forever()

    errors: list[str] = []

    def asking() -> None:
        try:
            list(request(path, "busy", timeout=5))
        except MountError as error:
            errors.append(str(error))

    async with trio.open_nursery() as clients, trio.open_nursery() as nursery:
        await nursery.start(serve, path, {"busy": busy})
        clients.start_soon(trio.to_thread.run_sync, asking)
        await began.wait()
        nursery.cancel_scope.cancel()
    assert errors == ["the mount was taken away meanwhile: mount it again"]


def as_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths as for a user who is not root, owning what this process makes."""
    real = os.lstat

    def owned(path: str) -> os.stat_result:
        found = list(real(path))
        found[4] = 1234
        return os.stat_result(found)

    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    monkeypatch.setattr(os, "lstat", owned)


def test_a_users_runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch)
    below_runtime = runtime_dir({"XDG_RUNTIME_DIR": str(tmp_path / "run")})
    assert below_runtime == str(tmp_path / "run" / "fusestripe")
    below_cache = runtime_dir({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert below_cache == str(tmp_path / "cache" / "fusestripe" / "run")
    for directory in (below_cache, os.path.dirname(below_cache)):
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
    own = {"FUSESTRIPE_RUNTIME_DIR": str(tmp_path / "job"), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    assert runtime_dir(own) == str(tmp_path / "job")


def test_the_socket_is_named_by_its_mountpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch)
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    one, other = socket_path("/mnt/a", environ), socket_path("/mnt/b", environ)
    assert one != other
    assert one == socket_path("/mnt/a", environ)
    assert os.path.dirname(one) == str(tmp_path / "fusestripe")


def test_a_runtime_directory_of_everybody_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch)
    (tmp_path / "fusestripe").mkdir()
    (tmp_path / "fusestripe").chmod(0o777)
    with pytest.raises(MountError, match="others may write in"):
        runtime_dir({"XDG_RUNTIME_DIR": str(tmp_path)})


def test_a_socket_path_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch)
    with pytest.raises(MountError, match="too long for a socket"):
        socket_path("/mnt", {"XDG_RUNTIME_DIR": str(tmp_path / ("x" * 100))})


def mount_of(user: int) -> Mount:
    return Mount("/mnt/a", FSTYPE, "s3://bucket", "0:1", (f"user_id={user}",))


def test_the_socket_of_a_mount_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert socket_of(mount_of(1234)) == socket_path("/mnt/a")


def test_the_socket_of_a_mount_that_was_made_in_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by mount(8) at boot or by cron, and asked for in a session."""
    as_user(monkeypatch)
    monkeypatch.setattr(rundir, "runtime_dirs_of", lambda user: [f"{tmp_path}/of-{user}"])
    (tmp_path / "of-1234").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    mine = socket_path("/mnt/a")
    there = tmp_path / "of-1234" / os.path.basename(mine)
    there.touch()
    assert socket_of(mount_of(1234)) == str(there)
    Path(mine).touch()
    assert socket_of(mount_of(1234)) == mine


def test_another_users_mount_is_asked_where_that_can_be_and_else_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root reaches the sockets of others; who cannot is told whose mount it is and what it shows."""
    as_user(monkeypatch)
    theirs = socket_path("/mnt/a", {"XDG_RUNTIME_DIR": str(tmp_path)})
    places = {77: [str(tmp_path / "none"), os.path.dirname(theirs)], 0: []}
    monkeypatch.setattr(rundir, "runtime_dirs_of", places.__getitem__)
    with pytest.raises(MountError, match=r"^/mnt/a shows s3://bucket and belongs to user 77; .*: ask as"):
        socket_of(mount_of(77))
    Path(theirs).touch()
    assert socket_of(mount_of(77)) == theirs
    with pytest.raises(MountError, match=r"belongs to user root \(0\)"):
        socket_of(mount_of(0))


def test_where_others_have_their_sockets() -> None:
    assert runtime_dirs_of(0) == ["/run/fusestripe"]
    nobody = pwd.getpwnam("nobody")
    assert runtime_dirs_of(nobody.pw_uid) == [
        f"/run/user/{nobody.pw_uid}/fusestripe",
        f"{nobody.pw_dir}/.cache/fusestripe/run",
    ]
    assert runtime_dirs_of(4_000_000_000) == ["/run/user/4000000000/fusestripe"]
