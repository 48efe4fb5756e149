"""This node as one of the members of a job: what it asks of them and gives to them, put together."""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import trio

from fusestripe.config import PeerSettings
from fusestripe.errors import reason_of
from fusestripe.openfiles import OpenFiles
from fusestripe.origins.base import Origin
from fusestripe.peers.access import read_access
from fusestripe.peers.asking import Asking
from fusestripe.peers.client import PeerClient
from fusestripe.peers.discovery import discover, find_me, host_of, local_addresses, port_of, with_port
from fusestripe.peers.greeting import greet_members, renew_members
from fusestripe.peers.members import Members, PeerStatistics
from fusestripe.peers.messages import Hello
from fusestripe.peers.ring import own_first
from fusestripe.peers.server import PeerServer
from fusestripe.reader import Reader
from fusestripe.sharing import Sharing
from fusestripe.stripes.resident import ResidentStripes
from fusestripe.units import ObjectVersion

__all__ = ["Peering"]

Origins: TypeAlias = "Collection[Origin]"

log = logging.getLogger(__name__)

# At the end what is under way to others has so long to break off (seconds).
LEAVE_SECONDS = 2.0
# How often it is tried to listen where the port is taken (seconds).
LISTEN_SECONDS = 3.0
# A mount waits no longer to see whether sharing works (seconds).
BEGIN_SECONDS = 2.0


class Peering:
    """The members as far as they are known, and calls to them. Raises ConfigError for settings of no use.

    ``run`` is its life; on the event loop.
    """

    def __init__(self, settings: PeerSettings, stripe_size: int, timeout: float) -> None:
        self._settings = settings
        self._access = read_access(settings)
        self._discovery = discover(settings, os.environ)
        self._members = Members()
        self._client = PeerClient(self._access)
        self._stripe_size = stripe_size
        self._identity = secrets.token_hex(8)
        self._lookups = trio.CapacityLimiter(1)
        self._why = "it has not begun"
        self._begun = trio.Event()
        self.asking = Asking(self._members, self._client, stripe_size, timeout)

    def arrange(self, version: ObjectVersion, indexes: Sequence[int]) -> Sequence[int]:
        """``indexes`` in the order in which this node should bring them."""
        members, me = self._members.live(), self._members.me
        return own_first(members, me, version.key, indexes) if me and len(members) > 1 else indexes

    async def run(
        self, reader: Reader, files: OpenFiles, stripes: ResidentStripes, origins: Origins, buffers: int
    ) -> None:
        """Know the members, and give them what ``origins`` and the others have, for ever.

        ``buffers`` is how many stripes fit into the memory.
        """
        with suppress(OSError):  # renewed below
            await self._know(await self._discovery.find())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._greet)
            if self._discovery.again < math.inf:
                nursery.start_soon(renew_members, self._discovery, self._know)
            shelf = Sharing(
                origins,
                files=files,
                reader=reader,
                stripes=stripes,
                members=self._members,
                path=self.asking.path,
                stripe_size=self._stripe_size,
                hello=self._hello,
                lent_at_most=max(1, buffers // 2),
                nursery=nursery,
            )
            nursery.start_soon(shelf.look_after)
            await self._serve(shelf)

    async def look(self) -> PeerStatistics:
        """Who answers at this moment, for one that serves nothing. Raises OSError where none are found."""
        await self._know(await self._discovery.find())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._greet)
            await self._members.known.wait()
            nursery.cancel_scope.cancel()
        return self.statistics()

    async def trouble(self) -> str:
        """Why this node does not share what it fetches, as soon as that is known; "" where it does."""
        with trio.move_on_after(BEGIN_SECONDS):
            await self._begun.wait()
        if not self._members.me:
            where = "of the Slurm job" if self._settings.slurm else "of [peers]"
            return f"peers: this node is none of the members {where}: it asks them and gives them nothing"
        return f"peers get nothing from this node: {self._why}" if self._why else ""

    def count(self) -> int:
        """The nodes that share now, this one among them."""
        return len(self._members.live()) if self._members.me else 1

    def statistics(self) -> PeerStatistics:
        """How it stands now."""
        return self._members.statistics(self._why)

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()

    async def _greet(self) -> None:
        await greet_members(self._members, self._client, self._hello)

    def _hello(self) -> Hello:
        return Hello(self._members.me, self._identity, self._stripe_size)

    async def _know(self, found: Collection[str]) -> None:
        look = partial(
            find_me, found, self._discovery.port, addresses=local_addresses(), name=self._settings.name
        )
        me = await trio.to_thread.run_sync(look, limiter=self._lookups, abandon_on_cancel=True)
        if not me and self._members.me in found:
            me = self._members.me  # as it has turned out
        others = set(found) - {me}
        for gone in set(self._members.others) - others:
            self.asking.forget(gone)
        if others != set(self._members.others) or me != self._members.me:
            self._members.replace(found, me)

    async def _serve(self, shelf: Sharing) -> None:
        server = await self._listen(shelf)
        self._why = ""
        log.info("peers: %s listens at port %d", self._members.me or "no member", server.port)
        try:
            await trio.sleep_forever()
        finally:
            server.close()
            with trio.move_on_after(LEAVE_SECONDS, shield=True):
                await trio.to_thread.run_sync(server.join, limiter=self._lookups, abandon_on_cancel=True)

    async def _listen(self, shelf: Sharing) -> PeerServer:
        """As soon as that can be: the port may be another's yet, of a mount that ends."""
        while True:
            port = port_of(self._members.me) or self._discovery.port
            place = with_port(self._settings.listen or "0.0.0.0", port)
            try:
                return PeerServer(place, self._access, shelf)
            except OSError as error:
                self._why = f"it cannot listen at {place}: {_reason(place, error)}"
            finally:
                self._begun.set()
            await trio.sleep(LISTEN_SECONDS)


def _reason(place: str, error: OSError) -> str:
    """What keeps it from listening: gRPC does not say."""
    host = host_of(place)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port_of(place)), family=family).close()
    except OSError as found:
        return reason_of(found)
    return str(error)
