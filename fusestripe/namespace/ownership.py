"""To whom what is shown belongs, and with which permission bits. Pure."""

from __future__ import annotations

import msgspec

from fusestripe.origins.base import Entry

__all__ = ["Ownership", "Shown"]

PERMISSIONS = 0o7777
FILE_MODE, DIR_MODE = 0o666, 0o777
"""What creat(2) and mkdir(2) of most programs ask for, and what a umask takes from."""
UMASK = 0o022
"""For what an origin knows no mode of."""


class Shown(msgspec.Struct, frozen=True, gc=False):
    """As stat(2) has it; ``mode`` without the file's type."""

    mode: int
    uid: int
    gid: int


class Ownership(msgspec.Struct, frozen=True):
    """Who owns what is shown.

    ``uid`` and ``gid`` (of who mounted) own what an origin knows no owner of. ``all_uid`` and ``all_gid`` own
    everything, whatever the origin says; ``umask`` are bits that nothing has. It takes away and never gives:
    a mode that an origin tells is not widened by it.
    """

    uid: int
    gid: int
    all_uid: int | None = None
    all_gid: int | None = None
    umask: int | None = None

    def of(self, entry: Entry) -> Shown:
        """What is shown for ``entry``."""
        owner = entry.owner
        uid = self.uid if owner is None or owner.uid is None else owner.uid
        gid = self.gid if owner is None or owner.gid is None else owner.gid
        if owner is not None:
            mode = owner.mode & PERMISSIONS & ~(self.umask or 0)
        else:
            mode = (DIR_MODE if entry.is_dir else FILE_MODE) & ~(UMASK if self.umask is None else self.umask)
        return Shown(
            mode,
            uid if self.all_uid is None else self.all_uid,
            gid if self.all_gid is None else self.all_gid,
        )
