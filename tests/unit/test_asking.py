"""Whom a node asks for a stripe, and what stands behind what, with a client that asks nobody."""

from __future__ import annotations

import threading
from typing import cast

import trio

from fusestripe.peers.asking import DOWNLOADS_EACH, Asking
from fusestripe.peers.client import PeerClient
from fusestripe.peers.members import Members
from fusestripe.peers.messages import Ask, Note
from fusestripe.peers.ring import ranking
from fusestripe.stripes.memory import BufferPool
from fusestripe.stripes.resident import Stripe
from fusestripe.units import ObjectVersion

STRIPE = 4096
VERSION = ObjectVersion("s3://bucket", "file", 1000 * STRIPE, "tag")
ME, OTHER = "me:1", "other:1"


class Download:
    """It has nothing whole, and waits with all else until it is cancelled."""

    def __init__(self, client: Client, ask: Ask) -> None:
        self._client = client
        self._ask = ask
        self._cancelled = threading.Event()

    def run(self) -> Note | None:
        if self._ask.want != "whole":
            self._cancelled.wait(20)
        return Note(missing=True)

    def cancel(self) -> None:
        self._client.left += self._ask.want != "whole"
        self._cancelled.set()


class Client:
    def __init__(self) -> None:
        self.waiting = self.left = 0

    def download(self, member: str, ask: Ask, *_more: object, timeout: float) -> Download:
        assert member == OTHER
        self.waiting += ask.want != "whole"
        return Download(self, ask)

    def forget(self, member: str) -> None:
        pass


async def test_what_is_ours_does_not_stand_behind_what_waits_for_others() -> None:
    """The other's stripes may wait for it in just this way: neither would ever ask the origin."""
    members, client = Members(), Client()
    members.replace([ME, OTHER], ME)
    members.answered(OTHER)
    members.known.set()
    asking = Asking(members, cast(PeerClient, client), STRIPE, timeout=60)
    pool = BufferPool(1 << 20, STRIPE)
    owner = {index: ranking(members.live(), VERSION.key, index)[0] for index in range(100)}
    theirs = [index for index in owner if owner[index] == OTHER]
    ours = next(index for index in owner if owner[index] == ME)

    async def stripe(index: int) -> Stripe:
        made = Stripe((VERSION, index), STRIPE, lambda: pool.take(STRIPE, urgent=False))
        await made.provide()
        return made

    async with trio.open_nursery() as nursery:
        for index in theirs[: 2 * DOWNLOADS_EACH]:
            nursery.start_soon(asking.bring, await stripe(index))
        while client.waiting < DOWNLOADS_EACH:
            await trio.sleep(0.01)
        await asking.bring(await stripe(ours))
        assert client.left == 0
        nursery.cancel_scope.cancel()
