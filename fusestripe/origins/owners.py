"""Owners and groups that a store has by name, as numbers of this machine."""

from __future__ import annotations

import grp
import pwd

__all__ = ["Owners"]


class Owners:
    """Looks names up in this machine's users and groups, each once. Safe to call from many threads."""

    def __init__(self) -> None:
        self._users: dict[str, int | None] = {}
        self._groups: dict[str, int | None] = {}

    def of(self, owner: str, group: str) -> tuple[int | None, int | None]:
        """uid and gid; None for a name that nobody has here."""
        if owner not in self._users:
            self._users[owner] = _uid(owner)
        if group not in self._groups:
            self._groups[group] = _gid(group)
        return self._users[owner], self._groups[group]


def _uid(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _gid(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None
