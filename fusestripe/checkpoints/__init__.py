"""The usual layouts of checkpoints: what belongs to one, whether it is whole, and which rank reads what.

Pure: names, sizes and the bytes of small files in, values out. Paths are relative to the checkpoint's
directory, with "/" between components.
"""

from fusestripe.checkpoints.indexes import Unreadable
from fusestripe.checkpoints.layouts import layout_of, missing_from, needed_by, parts_of
from fusestripe.checkpoints.ordering import LATEST, TRACKERS, Tracker, are_alike, is_named_so, order, tracked
from fusestripe.checkpoints.parts import Index, Local, Part
from fusestripe.checkpoints.ranks import Ranks, parse_ranks, ranks_of_node

__all__ = [
    "LATEST",
    "TRACKERS",
    "Index",
    "Local",
    "Part",
    "Ranks",
    "Tracker",
    "Unreadable",
    "are_alike",
    "is_named_so",
    "layout_of",
    "missing_from",
    "needed_by",
    "order",
    "parse_ranks",
    "parts_of",
    "ranks_of_node",
    "tracked",
]
