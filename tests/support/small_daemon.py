"""A daemon in the place of fusestripe's: does as its first argument says with the Order on stdin.

``serve``: mount an empty tree with pyfuse3 and the control socket, as the real one does, until unmounted.
``refuse``: say why it cannot mount. ``die``: end with status 3. ``sulk``: mount, and never answer.
"""

from __future__ import annotations

import stat
import sys

import pyfuse3
import trio

from fusestripe.errors import CredentialsRefused
from fusestripe.launch import Order, read_order, report
from fusestripe.telemetry.control import serve
from fusestripe.telemetry.rundir import socket_path


class Empty(pyfuse3.Operations):
    """A tree of one directory."""

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = pyfuse3.ROOT_INODE
        entry.st_mode = stat.S_IFDIR | 0o755
        return entry

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return inode

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        return


async def main(order: Order, answers: bool) -> None:
    options = {*pyfuse3.default_options, "fsname=small", "subtype=fusestripe"}
    pyfuse3.init(Empty(), order.mountpoint, options)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, socket_path(order.mountpoint), {})
            if answers:
                report(order.ready_fd)
            await pyfuse3.main()
            nursery.cancel_scope.cancel()
    finally:
        pyfuse3.close()


if __name__ == "__main__":
    given = read_order(sys.stdin.buffer)
    if sys.argv[1] == "die":
        sys.exit(3)
    elif sys.argv[1] == "refuse":
        report(given.ready_fd, CredentialsRefused("the store says no", mend="log in"))
        sys.exit(1)
    trio.run(main, given, sys.argv[1] == "serve")
