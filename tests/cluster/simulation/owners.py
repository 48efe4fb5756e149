"""How evenly the stripes of a file are owned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fusestripe.peers.ring import owner

__all__ = ["most_owned"]


def most_owned(members: Sequence[str], key: str, stripes: int) -> float:
    """What the member with the most of so many ``stripes`` owns, over the mean."""
    owned = Counter(owner(members, key, index) for index in range(stripes))
    return max(owned.values()) * len(members) / stripes
