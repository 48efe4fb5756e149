"""Who is handed a stripe here, and who is sent on to others that were. Pure: no clock, no network.

An owner that sent each of its stripes to every node of a job would need as long as there are nodes. So it
sends one to ``fanout`` nodes at a time; whoever asks meanwhile is sent on to one of those, which passes on
what it gets while it gets it, and does the same: a tree for each stripe, as deep as the logarithm of their
number.

Those that ask first for one stripe are often the first for the next one as well: readers go through a file in
the same order, and some are ahead. They would send twice what they get, at half the speed, while those behind
them send nothing. So who has much to send sends each stripe once, and has the rest fetched from there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

__all__ = ["FANOUT", "HandOn"]

FANOUT = 2
"""Nodes that one stripe is sent to at a time, as chosen by simulation (README, "Nodes of one job")."""
BUSY = 20
"""Who sends so many stripes at a time sends on whoever can be sent on."""
PATIENT = 4
"""Who was sent on so often is not sent on for that reason: trees stay low."""
REMEMBERED = 4096
"""Stripes whose holders are remembered; of one that is forgotten nobody is sent on until it is sent again."""


class _Spread:
    """Where one stripe is on its way to, and who had it; with how many were sent on to each."""

    __slots__ = ("referred", "sending")

    def __init__(self) -> None:
        self.sending: set[str] = set()
        self.referred: dict[str, int] = {}


class HandOn:
    """For all stripes of a node, by any key.

    Invariant: a stripe is on its way to at most ``fanout`` members, unless who asks cannot be sent on.
    """

    def __init__(self, fanout: int = FANOUT, busy: int = BUSY) -> None:
        self._fanout = fanout
        self._busy = busy
        self._sending = 0
        self._spreads: OrderedDict[object, _Spread] = OrderedDict()

    def ask(
        self,
        key: object,
        asker: str,
        avoid: Collection[str] = (),
        *,
        hops: int = 0,
        passes_on: bool = True,
    ) -> str | None:
        """``asker`` wants a stripe: the member it should ask instead, or None: it is to be sent here.

        ``avoid`` did not have it: they are sent nobody any more. ``hops``: so often it was sent on until now.
        ``passes_on``: others may be sent on to ``asker``. Who is sent it has to be told of by ``ended``.
        """
        spread = self._spreads.setdefault(key, _Spread())
        self._spreads.move_to_end(key)
        self._forget_old()
        for member in avoid:
            spread.referred.pop(member, None)
        most = 1 if self._sending >= self._busy and hops < PATIENT else self._fanout
        if len(spread.sending) >= most:
            holders = [member for member in spread.referred if member != asker]
            if holders:
                # Who has all of it before who still gets it; of those the one that had the least to do.
                chosen = min(holders, key=lambda one: (one in spread.sending, spread.referred[one]))
                spread.referred[chosen] += 1
                return chosen
        self._sending += asker not in spread.sending
        spread.sending.add(asker)
        if passes_on:
            spread.referred.setdefault(asker, 0)
        return None

    def ended(self, key: object, asker: str, *, whole: bool) -> None:
        """Nothing more is sent to ``asker``, which has the ``whole`` stripe, or not."""
        spread = self._spreads.get(key)
        if spread is None:
            return
        self._sending -= asker in spread.sending
        spread.sending.discard(asker)
        if not whole:
            spread.referred.pop(asker, None)

    @property
    def sending(self) -> int:
        """How many stripes are on their way now."""
        return self._sending

    def _forget_old(self) -> None:
        while len(self._spreads) > REMEMBERED:
            key = next((key for key, spread in self._spreads.items() if not spread.sending), None)
            if key is None:
                return
            del self._spreads[key]
