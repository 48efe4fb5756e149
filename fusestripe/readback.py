"""Reading back what was saved: only then is a file handed to the kernel, or called prefetched."""

from __future__ import annotations

from functools import partial

import trio

from fusestripe.cache.threads import DiskThreads
from fusestripe.errors import CacheError
from fusestripe.openfiles import OpenFile, OpenFiles
from fusestripe.stripes.plan import stripe_count, stripe_length
from fusestripe.stripes.resident import ResidentStripes

__all__ = ["ReadBack"]


class ReadBack:
    """Checks stripes in the cache against their checksums, within the memory of ``stripes``.

    Tasks run in ``nursery``; a file is held while one looks at it.
    """

    def __init__(
        self,
        files: OpenFiles,
        stripes: ResidentStripes,
        disk: DiskThreads,
        nursery: trio.Nursery,
        *,
        stripe_size: int,
    ) -> None:
        self._files = files
        self._stripes = stripes
        self._disk = disk
        self._nursery = nursery
        self._stripe_size = stripe_size

    async def is_right(self, file: OpenFile, index: int) -> bool:
        """Whether the disk gives back what was saved; if not, the stripe is cleared. Raises CacheError."""
        assert file.cached is not None
        length = stripe_length(index, file.version.size, self._stripe_size)
        buffer = await self._stripes.take(length, urgent=False)
        try:
            check = partial(file.cached.load, index, buffer.view, checking=True)
            return await self._disk.run(check, background=True)
        finally:
            self._stripes.give(buffer)

    def begin(self, file: OpenFile) -> None:
        """Check in the background what of the whole ``file`` was not, so that the kernel may read it."""
        if not file.is_read_back:
            file.is_read_back = True
            file.users += 1
            self._nursery.start_soon(self._all, file)

    async def _all(self, file: OpenFile) -> None:
        """One stripe after the other: readers want the disk too."""
        assert file.cached is not None
        try:
            for index in range(stripe_count(file.version.size, self._stripe_size)):
                if not file.cached.verified(index) and not await self.is_right(file, index):
                    return  # a reader will fetch it again, and then the file is whole once more
        except (CacheError, OSError):
            return  # said by the disk's health; no memory, no thread: it stays as it is
        finally:
            file.is_read_back = False
            await self._files.let_go(file)
