"""Requests that the kernel waits for, where the next daemon finds them: for kernels that send none again.

Linux 6.9 does, when it is asked to (FUSE_NOTIFY_RESEND). Before it, a request that was read from the device
is known to its reader alone, and would wait for ever.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from fusestripe.kernel.abi import ANSWERLESS, length_of, opcode_of, unique_of

__all__ = ["Unanswered", "read_unanswered"]

_HEADER = struct.Struct("=IIII")
"""How many receiving buffers of how many bytes there are, then slots of how many bytes each."""
_BEGIN = 4096
_SLOTS, _SLOT = 4096, 512
"""A look-up, the longest request in a tree that nobody can write to, has a header and a name of 256 bytes."""
_LENGTH = struct.Struct("=I")


class Unanswered:
    """Memory that others keep: ``store`` gets its descriptor, with ``left`` in it from the beginning.

    It has ``buffers``, ``count`` of ``size`` bytes, in which the kernel itself puts requests: there is no
    moment in which one of them is nowhere. From there they go into a slot until they are answered. Each
    begins with its length, which is 0 where nothing is.

    From any thread; it takes no lock. A request may be found that was answered just before its daemon died:
    the kernel takes no second answer, but a file that it opens so stays open here. Those beyond 4,096 at once
    are not noted.
    """

    def __init__(self, store: Callable[[int], None], left: Iterable[bytes], count: int, size: int) -> None:
        size = -(-size // _BEGIN) * _BEGIN
        slots = _BEGIN + count * size
        descriptor = os.memfd_create("fusestripe-unanswered", os.MFD_CLOEXEC)
        try:
            os.truncate(descriptor, slots + _SLOTS * _SLOT)
            self._memory = mmap.mmap(descriptor, slots + _SLOTS * _SLOT)
            _HEADER.pack_into(self._memory, 0, count, size, _SLOTS, _SLOT)
            view = memoryview(self._memory)
            self.buffers = [view[_BEGIN + number * size :][:size] for number in range(count)]
            # Each call of these is one step for other threads.
            self._free = deque(range(slots, slots + _SLOTS * _SLOT, _SLOT))
            self._taken: dict[int, int] = {}
            for message in left:
                self.note(unique_of(message), memoryview(message))
            store(descriptor)
        finally:
            os.close(descriptor)

    def note(self, unique: int, message: memoryview) -> None:
        """``message``, the request ``unique``, has come."""
        if len(message) > _SLOT or unique in self._taken:
            return
        try:
            place = self._free.popleft()
        except IndexError:
            return
        begin = place + _LENGTH.size
        self._memory[begin : place + len(message)] = message[_LENGTH.size :]
        self._memory[place:begin] = message[: _LENGTH.size]
        self._taken[unique] = place

    def answered(self, unique: int) -> None:
        """The kernel has the answer to ``unique``."""
        place = self._taken.pop(unique, None)
        if place is not None:
            _LENGTH.pack_into(self._memory, place, 0)
            self._free.append(place)


def read_unanswered(descriptor: int) -> Iterator[bytes]:
    """The requests that a daemon has left unanswered in the memory of ``descriptor``, each once."""
    data = memoryview(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    count, size, slots, slot = _HEADER.unpack_from(data)
    buffers = [_BEGIN + number * size for number in range(count)]
    places = [_BEGIN + count * size + number * slot for number in range(slots)]
    found: dict[int, bytes] = {}
    for place in (*places, *buffers):
        length = length_of(data[place:])
        if length and opcode_of(data[place:]) not in ANSWERLESS:
            message = bytes(data[place : place + length])
            found.setdefault(unique_of(message), message)
    yield from found.values()
