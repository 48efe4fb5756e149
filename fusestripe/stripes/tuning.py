"""How many stripes of one file are in flight."""

from __future__ import annotations

__all__ = ["stripes_in_flight"]

# What one file needs to fill a 10 Gb/s card from stores that give 50 to 100 MB/s a connection.
USUAL = 16


def stripes_in_flight(setting: int) -> int:
    """The number for the setting ``stripe_count``; -1 leaves it to fusestripe."""
    return USUAL if setting == -1 else setting
