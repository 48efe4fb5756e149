"""A bounded pool of open file descriptors: thousands of files may be open, few descriptors are."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from fusestripe.errors import CacheError

__all__ = ["DescriptorPool"]


class _Descriptor:
    """Borrowed by ``users`` threads; ``forgotten``: to be closed when the last of them is done."""

    __slots__ = ("fd", "forgotten", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 1
        self.forgotten = False


class DescriptorPool:
    """Opens on demand, closes the least recently used, and never one that a thread has borrowed.

    At most ``limit`` descriptors are open. Where all of them are borrowed, ``borrow`` waits; so a thread must
    not borrow a second one before it has given back the first.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a pool of {limit} descriptors")
        self._limit = limit
        self._changed = threading.Condition()
        self._known: OrderedDict[tuple[int, Hashable], _Descriptor] = OrderedDict()
        self._count = 0  # open ones, those being opened, and forgotten ones not yet closed
        self._closed = False

    @property
    def open_count(self) -> int:
        """How many descriptors are open or being opened."""
        return self._count

    @contextmanager
    def borrow(self, owner: int, kind: Hashable, opener: Callable[[], int]) -> Iterator[int]:
        """The descriptor of ``(owner, kind)``, opened by ``opener`` where it is not yet.

        Raises what ``opener`` raises, and CacheError once the pool is closed.
        """
        descriptor = self._take_or_open((owner, kind), opener)
        try:
            yield descriptor.fd
        finally:
            self._give_back(descriptor)

    @contextmanager
    def borrow_open(self, owner: int, kind: Hashable) -> Iterator[int | None]:
        """The descriptor of ``(owner, kind)`` if it is open now, or None. Never waits for a disk."""
        with self._changed:
            descriptor = self._take((owner, kind))
        if descriptor is None:
            yield None
            return
        try:
            yield descriptor.fd
        finally:
            self._give_back(descriptor)

    def forget(self, owner: int) -> None:
        """Close what ``owner`` has; what is borrowed is closed when it is given back."""
        with self._changed:
            mine = [key for key in self._known if key[0] == owner]
            idle = [fd for key in mine if (fd := self._drop(key)) is not None]
            self._changed.notify_all()
        for fd in idle:
            os.close(fd)

    def close(self) -> None:
        """Close everything; what is borrowed is closed when it is given back."""
        with self._changed:
            self._closed = True
            idle = [fd for key in list(self._known) if (fd := self._drop(key)) is not None]
            self._changed.notify_all()
        for fd in idle:
            os.close(fd)

    def _take(self, key: tuple[int, Hashable]) -> _Descriptor | None:
        descriptor = self._known.get(key)
        if descriptor is not None:
            descriptor.users += 1
            self._known.move_to_end(key)
        return descriptor

    def _drop(self, key: tuple[int, Hashable]) -> int | None:
        """Forget ``key``; its descriptor where it is to be closed now."""
        descriptor = self._known.pop(key)
        descriptor.forgotten = True
        if descriptor.users:
            return None
        self._count -= 1
        return descriptor.fd

    def _take_or_open(self, key: tuple[int, Hashable], opener: Callable[[], int]) -> _Descriptor:
        with self._changed:
            while True:
                if self._closed:
                    raise CacheError("the cache has been closed")
                descriptor = self._take(key)
                if descriptor is not None:
                    return descriptor
                surplus = self._oldest_idle() if self._count >= self._limit else None
                if surplus is not None or self._count < self._limit:
                    break
                self._changed.wait()
            closing = self._drop(surplus) if surplus is not None else None
            self._count += 1
        try:
            if closing is not None:
                os.close(closing)
            fd = opener()
        except BaseException:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()
            raise
        return self._keep(key, fd)

    def _oldest_idle(self) -> tuple[int, Hashable] | None:
        return next((key for key, descriptor in self._known.items() if not descriptor.users), None)

    def _keep(self, key: tuple[int, Hashable], fd: int) -> _Descriptor:
        descriptor = _Descriptor(fd)
        with self._changed:
            if self._closed or key in self._known:  # another thread opened the same: this one is used once
                descriptor.forgotten = True
            else:
                self._known[key] = descriptor
        return descriptor

    def _give_back(self, descriptor: _Descriptor) -> None:
        with self._changed:
            descriptor.users -= 1
            done = descriptor.forgotten and not descriptor.users
            if done:
                self._count -= 1
            if not descriptor.users:
                self._changed.notify()
        if done:
            os.close(descriptor.fd)
