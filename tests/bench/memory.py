"""Memory as a machine of one's own has it, on one whose memory is not its own."""

from __future__ import annotations

import mmap

import psutil

from fusestripe.units import MIB

__all__ = ["claim_memory"]

_HUGE_PAGE = 2 * MIB


def claim_memory(size: int) -> None:
    """Have the kernel's free memory, ``size`` bytes of it, be memory already.

    A virtual machine gives back what it does not use (free page reporting, mm/page_reporting.c), and the
    first touch of a page that has to be asked for again takes ten times as long: whoever fills a page cache
    would be measured by that, and who keeps nothing would not.
    """
    size = min(size, psutil.virtual_memory().free // 2)
    if size <= 0:
        return
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for offset in range(0, size, _HUGE_PAGE):
            memory[offset] = 1
