"""A mount beside a plain dictionary, and what the one may show when the other holds this (stateful tests)."""

from __future__ import annotations

import errno
import functools
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, Concatenate, cast

import msgspec
from hypothesis.stateful import RuleBasedStateMachine, rule
from hypothesis.strategies import SearchStrategy
from typing_extensions import ParamSpec

from fusestripe.origins.retry import SETTLED_SECONDS
from tests.support.model_lab import TTL, Lab, Shape
from tests.support.mounted import until
from tests.support.mounted_store import KIB, content
from tests.support.past import Past
from tests.support.proxy import Fault
from tests.support.reader import ENDED

__all__ = ["KEPT", "NAMES", "PAGE", "Compared", "Opened", "step"]

SLACK = 1.0
"""Seconds by which a lifetime may be longer: the kernel counts it from when the answer reaches it."""
TURN = 8
AFTERMATH = 5.0
"""Seconds for which a stripe that could not be had may be refused once the origin is back: what waits for the
next try, and the answer that is kept for those who ask again at once."""

PAGE = 4 * KIB
NAMES = ("a", "d/b.bin", "d/e/c")
KEPT = "kept"
"""Nobody touches it: with it the directory of an example is there."""

ENDS = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)
"""What reads get whose daemon is gone (fs/fuse/dev.c); EIO is of a page that was asked for before."""


class Opened(msgspec.Struct, eq=False):
    """A handle. ``contents``: what it may be of; ``since``: when that may have been looked up."""

    name: str
    descriptor: int
    size: int
    contents: list[bytes]
    since: float
    is_direct: bool
    is_orphan: bool = False


P = ParamSpec("P")


def step(**arguments: SearchStrategy[Any]) -> Callable[[Callable[Concatenate[Any, P], None]], Any]:
    """A rule that is told to the lab, and what comes of it."""

    def decorate(method: Callable[Concatenate[Any, P], None]) -> Any:
        @functools.wraps(method)
        def told(self: Compared, /, *args: P.args, **kwargs: P.kwargs) -> None:
            self.lab.story.append(f"{time.monotonic():.3f} {method.__name__} {kwargs}")
            with self.lab.watching():
                method(self, *args, **kwargs)

        return cast(Callable[..., Any], rule)(**arguments)(told)

    return decorate


class Compared(RuleBasedStateMachine):
    """A directory of its own in the bucket, seen through a mount of one shape, and what is done to both."""

    lab: ClassVar[Lab]

    def __init__(self) -> None:
        super().__init__()
        self.past = Past()
        self.handles: list[Opened] = []
        self.floors: dict[str, float] = {}
        self.shape = Shape(16 * KIB)
        self.is_down = False
        self.failed_until = 0.0
        self.turns: Counter[str] = Counter()
        self.seeds = random.Random(0)
        self.lab.example += 1
        self.lab.story = [f"example {self.lab.example}"]
        self.top = f"e{self.lab.example}"

    def _key(self, name: str) -> str:
        return f"{self.top}/{name}"

    def _path(self, name: str) -> str:
        return str(self.lab.mount(self.shape).path / self._key(name))

    def _is_turn(self, what: str) -> bool:
        """What takes longer than all the rest is for one step of many."""
        self.turns[what] += 1
        return self.turns[what] % TURN == 1

    def _may_end(self) -> bool:
        self._recover()
        return self._is_turn("end")

    def _saw(self, what: str, code: int) -> None:
        name = "SIGBUS" if code == ENDED else errno.errorcode.get(code, "bytes")
        self.lab.seen[f"{what}: {name}"] += 1

    def _read_spans(self, pick: int, how: str, spans: list[tuple[int, int]]) -> None:
        handle = self._pick(pick) if self.handles else self._open(NAMES[pick % len(NAMES)])
        if handle is not None:
            for span in spans:
                self._read(handle, how, *span)

    def _pick(self, number: int) -> Opened:
        return self.handles[number % len(self.handles)]

    def _call(
        self, name: str, *arguments: object, meanwhile: Callable[[], None] | None = None
    ) -> tuple[int, Any]:
        self.lab.reader.begin(name, *arguments)
        if meanwhile is not None:
            meanwhile()
        code, value = self.lab.reader.finish()
        self.lab.story.append(f"    {name} {arguments}: {_shown(code, value)}")
        if self.is_down and (code or (isinstance(value, tuple) and value[-1] in (errno.EIO, ENDED))):
            self._recover()  # one reader that fails is enough: each takes the whole of a time-out
        return code, value

    def _since(self, name: str, begin: float) -> float:
        return max(begin - TTL - SLACK, self.floors.get(name, 0.0))

    def _failures(self, *others: int) -> set[int]:
        """``others``, and EIO where the origin has been failing for long enough."""
        failing = self.is_down or time.monotonic() < self.failed_until
        return {code for code in others if code} | ({errno.EIO} if failing else set())

    def _fail(self, how: str) -> None:
        self.is_down = True
        if how == "refuse":
            self.lab.store.proxy.refuse()
        else:
            self.lab.store.proxy.set_faults([Fault(how, times=0)])

    def _damage(self, damages: list[tuple[int, int, str]]) -> None:
        for number, position, how in damages:
            files = [path for path in self.lab.cache_files() if path.stat().st_size]
            if files:
                path = files[number % len(files)]
                _damage(path, position % path.stat().st_size, how)

    def _recover(self) -> None:
        if self.is_down:
            proxy = self.lab.store.proxy
            proxy.set_faults([])
            proxy.accept()
            proxy.release()
            self.is_down = False
            self.failed_until = time.monotonic() + AFTERMATH

    def _come_and_go(self) -> None:
        proxy = self.lab.store.proxy
        proxy.refuse()
        self.lab.tidy("ls")
        proxy.accept()

    def _put(self, name: str, data: bytes) -> None:
        begin = time.monotonic()
        self.lab.store.put(self._key(name), data)
        self.past.change(name, data, begin, time.monotonic())
        self.lab.story.append(f"    put {name}: {len(data)} bytes {data[:4].hex()}")

    def _restart(self, damages: list[tuple[int, int, str]]) -> None:
        """What is damaged meanwhile is in nobody's memory."""
        for name in NAMES:
            self._read_whole(name)
        for handle in list(self.handles):
            self._close(handle)
        self.lab.wait_closed(self.shape)
        self.lab.end(self.shape)
        self._damage(damages)
        self.lab.mount(self.shape)
        for name in NAMES:
            self._read_whole(name)

    def _fail_while_something_new_is_read(self, how: str, name: str, span: tuple[int, int]) -> None:
        self._recover()
        self._put(name, content(sum(span), self.seeds.getrandbits(60)))
        until(lambda: self._stat(name) == sum(span), TTL + 5 * SLACK)
        handle = self._open(name)
        self._fail(how)
        if handle is not None:
            self._read(handle, "pread", *span)

    def _replace_under_a_reader(self, name: str, size: int) -> None:
        """By one of the same size, when a byte of it has been read."""
        self._put(name, content(size, self.seeds.getrandbits(60)))
        handle = self._open(name)
        if handle is not None:
            self._read(handle, "pread", 0, 1)
            self._put(name, content(handle.size, self.seeds.getrandbits(60)))
            self._read(handle, "pread", 0, handle.size)

    def _kill(self) -> None:
        self.lab.kill(self.shape)
        for handle in self.handles:
            handle.is_orphan = True
        self.lab.mount(self.shape)

    def _open(self, name: str, flags: int = 0) -> Opened | None:
        begin = time.monotonic()
        code, found = self._call("open", self._path(name), os.O_RDONLY | flags)
        since = self._since(name, begin)
        possible = self.past.possible(name, since, time.monotonic())
        self._saw("open", code)
        if code:
            assert code in self._failures(errno.ENOENT if None in possible else 0), errno.errorcode.get(code)
            return None
        descriptor, size, _inode = found
        contents = [each for each in possible if each is not None and len(each) == size]
        mount = self.lab.mount(self.shape)
        self.lab.seen["read by the kernel"] += mount.status()["passed_through"] > 0
        handle = Opened(name, descriptor, size, contents, since, bool(flags & os.O_DIRECT))
        self.handles.append(handle)
        assert contents, f"{name} has {size} bytes: {[each and len(each) for each in possible]}"
        return handle

    def _close(self, handle: Opened) -> None:
        self.handles.remove(handle)
        code, _ = self._call("close", handle.descriptor)
        assert code == 0 or handle.is_orphan

    def _read_whole(self, name: str) -> None:
        handle = self._open(name)
        if handle is not None:
            self._read(handle, "pread", 0, handle.size)
            self._close(handle)

    def _read(
        self, handle: Opened, how: str, offset: int, length: int, meanwhile: Callable[[], None] | None = None
    ) -> None:
        if handle.is_direct:
            how, offset, length = "direct", offset // PAGE * PAGE, -(-length // PAGE) * PAGE
        if how == "mapped":
            length = min(length, handle.size - offset)
            if length <= 0:
                return
            code, _ = self._call("map", handle.descriptor)
            assert code == 0, errno.errorcode.get(code)
        begin = time.monotonic()
        code, got = self._call(how, handle.descriptor, offset, length, meanwhile=meanwhile)
        data, code = got if code == 0 else (b"", code)
        if code:
            assert code in self._refusals(handle, how), (how, handle.name, errno.errorcode.get(code, code))
        self._saw("read" if code else how, code)
        wanted = [each[offset : offset + length] for each in handle.contents]
        fits = [data == each if code == 0 else each.startswith(data) for each in wanted]
        assert any(fits), f"{handle.name}: {len(data)} bytes by {how} at {offset} are of no version it may be"
        handle.contents = [each for each, fit in zip(handle.contents, fits, strict=True) if fit]
        if code == errno.ESTALE:
            self.floors[handle.name] = begin

    def _refusals(self, handle: Opened, how: str) -> set[int]:
        """What a read of ``handle`` may fail with, as things are."""
        codes = self._failures(*(ENDS if handle.is_orphan else ()))
        # Whichever of them it is. A version that was put back may be told to have changed for a while yet,
        # from when the last request was refused that had been under way before.
        since = handle.since - SETTLED_SECONDS - 2 * SLACK
        if len(set(self.past.possible(handle.name, since))) > 1:
            codes.add(errno.ESTALE)
        if codes and how == "mapped":
            codes.add(ENDED)
        return codes

    def _stat(self, name: str) -> int | None:
        """The size, None where there is nothing."""
        begin = time.monotonic()
        code, found = self._call("stat", self._path(name))
        possible = self.past.possible(name, self._since(name, begin), time.monotonic())
        if code:
            assert code in self._failures(errno.ENOENT if None in possible else 0), errno.errorcode.get(code)
            return None
        is_directory, size = found
        assert not is_directory
        assert size in [len(each) for each in possible if each is not None], (name, size)
        return int(size)

    def _catch_up(self, name: str) -> None:
        """A version is seen once the lifetime of the one before is over."""
        held = self.past.now().get(name)
        self._stat(name)
        until(lambda: self._whole(name) == held, TTL + 5 * SLACK)

    def _whole(self, name: str) -> bytes | None:
        """All that is read of a version that only one content is the like of; None where there is nothing."""
        handle = self._open(name)
        if handle is None:
            return None
        self._read(handle, "pread", 0, handle.size)
        self._close(handle)
        return handle.contents[-1] if len(set(handle.contents)) == 1 else b"any of several"


def _shown(code: int, value: Any) -> str:
    if code == 0 and isinstance(value, tuple) and isinstance(value[0], bytes):
        data, code = value
        value = f"{len(data)} bytes {data[:4].hex()}"
    return f"{errno.errorcode.get(code, code)} {value}"


def _damage(path: Any, position: int, how: str) -> None:
    with open(path, "r+b") as file:
        if how == "cut":
            file.truncate(position)
            return
        file.seek(position)
        old = file.read(1 if how == "flip" else PAGE)
        file.seek(position)
        file.write(bytes([old[0] ^ 1]) if how == "flip" else bytes(len(old)))
