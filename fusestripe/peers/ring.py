"""Which member owns a stripe, the same on every node that knows the same members. Pure.

Rendezvous hashing ("highest random weight": Thaler and Ravishankar, A Name-Based Mapping Scheme for
Rendezvous, 1996): each member has a weight for each stripe, and the heaviest owns it. When a member goes,
only its own stripes move, each to the member that was second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import xxhash

__all__ = ["own_first", "owner", "ranking"]


def ranking(members: Iterable[str], key: str, index: int) -> list[str]:
    """``members``, the owner of stripe ``index`` of the version ``key`` first, then whoever would follow."""
    seed = _seed(key, index)
    return sorted(members, key=lambda member: (_weight(member, seed), member), reverse=True)


def owner(members: Collection[str], key: str, index: int) -> str:
    """The first of ``ranking``, of which there is at least one."""
    seed = _seed(key, index)
    return max(members, key=lambda member: (_weight(member, seed), member))


def own_first(members: Collection[str], me: str, key: str, indexes: Sequence[int]) -> list[int]:
    """``indexes`` as ``me`` should bring them: what it owns at first, for all; then the others'.

    The latter in an order of its own, so that the nodes do not all ask one owner at a time.
    """
    mine = [index for index in indexes if owner(members, key, index) == me]
    owned = set(mine)
    others = [index for index in indexes if index not in owned]
    return mine + sorted(others, key=lambda index: _weight(f"{me} asks", _seed(key, index)))


def _seed(key: str, index: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{key}/{index}".encode())


def _weight(member: str, seed: int) -> int:
    return xxhash.xxh3_64_intdigest(member.encode(), seed)
