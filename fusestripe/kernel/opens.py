"""What the kernel has open: how it reads each file, and what of it the next daemon has to know."""

from __future__ import annotations

import os
from collections.abc import Callable

from fusestripe.kernel import abi
from fusestripe.kernel.channel import OpenRequest
from fusestripe.kernel.journal import Journal, Opened, Past
from fusestripe.kernel.passthrough import Passthrough
from fusestripe.origins.base import Entry

__all__ = ["OpenTable"]


class OpenTable:
    """See channel.Opens. ``journal`` is None where no daemon follows; ``past`` is what one before has left.

    ``started_ns``, ``device``: see Past. ``opened_as`` knows what a handle is of; ``drop`` closes one
    that the kernel never heard of.

    Invariants: an open is noted before the kernel hears of it, and a close after the kernel has told of it
    and before its backing file is given back. So a handle is in the journal as long as the kernel has it, and
    one that is there for nothing is known by its request, which comes again.
    """

    def __init__(
        self,
        passthrough: Passthrough,
        journal: Journal | None,
        past: Past | None,
        *,
        started_ns: int,
        device: str,
        opened_as: Callable[[int], tuple[str, Entry | None]],
        drop: Callable[[int], None],
    ) -> None:
        self._passthrough = passthrough
        self._journal = journal
        self._started_ns, self._device = started_ns, device
        self._opened_as = opened_as
        self._drop = drop
        opens = past.opens if past is not None else {}
        self._unheard = {opened.unique: (fh, opened) for fh, opened in opens.items()}
        files = [opened for opened in opens.values() if opened.entry is not None]
        passthrough.resume((opened.node, opened.backing_id) for opened in files)

    def greeted(self, init: bytes) -> None:
        """See channel.Opens."""
        if self._journal is not None:
            self._journal.greeted(init, self._started_ns, self._device)

    def negotiated(self, offered: bool) -> bool:
        """See channel.Opens."""
        return self._passthrough.negotiated(offered)

    def opened(self, request: OpenRequest, reply: abi.OpenOut) -> abi.OpenOut:
        """See channel.Opens."""
        answer = reply
        if not request.is_dir:
            answer = self._passthrough.opened(request.node, reply, is_direct=request.is_direct)
        if self._journal is not None:
            unique = request.unique & ~abi.FUSE_UNIQUE_RESEND
            path, entry = self._opened_as(reply.fh)
            opened = Opened(unique, request.node, os.fsencode(path), entry, answer.backing_id)
            self._journal.opened(reply.fh, opened)
        return answer

    def asked_again(self, unique: int) -> None:
        """See channel.Opens."""
        fh, opened = self._unheard.pop(unique & ~abi.FUSE_UNIQUE_RESEND, (0, None))
        if opened is not None:
            self.released(opened.node, fh, is_dir=opened.entry is None)
            self._drop(fh)

    def released(self, node: int, fh: int, *, is_dir: bool) -> None:
        """See channel.Opens."""
        is_known = self._journal is None or self._journal.closed(fh)
        if is_known and not is_dir:
            self._passthrough.released(node)
