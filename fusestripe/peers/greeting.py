"""Keeping in touch: who is a member, and who of those that were left alone is worth asking again."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection

import trio

from fusestripe.peers.client import PeerClient, PeerFailed
from fusestripe.peers.discovery import Discovery
from fusestripe.peers.members import Members
from fusestripe.peers.messages import PROTOCOL, Hello
from fusestripe.units import format_size

__all__ = ["greet_members", "renew_members"]

log = logging.getLogger(__name__)

# A member that takes longer to say hello is called down (seconds); and so many are greeted at once.
GREET_SECONDS = 1.0
GREETED_AT_ONCE = 128


async def greet_members(members: Members, client: PeerClient, say: Callable[[], Hello]) -> None:
    """Say hello to whoever has rested, for ever. The members are ``known`` after the first round."""
    limiter = trio.CapacityLimiter(GREETED_AT_ONCE)
    while True:
        changed = members.changed
        hello = say()
        async with trio.open_nursery() as nursery:
            for name in members.due():
                nursery.start_soon(_greet, members, client, hello, name, limiter)
        members.known.set()
        with trio.move_on_at(members.next_due()):
            await changed.wait()


async def _greet(
    members: Members, client: PeerClient, hello: Hello, name: str, limiter: trio.CapacityLimiter
) -> None:
    def say() -> Hello:
        return client.greet(name, hello, timeout=GREET_SECONDS)

    try:
        answer = await trio.to_thread.run_sync(say, limiter=limiter, abandon_on_cancel=True)
    except PeerFailed as error:
        client.forget(name)
        members.failed(name, "stranger" if error.is_stranger else "down", error.why)
        return
    except Exception as error:  # no thread, or a fault of ours: it costs one member, for a while
        log.exception("peer %s", name)
        members.failed(name, "down", f"{type(error).__name__}: {error}")
        return
    if answer.identity == hello.identity:
        members.is_me(name)
    elif answer.protocol != PROTOCOL:
        members.failed(name, "stranger", "it speaks another protocol: it is another version of fusestripe")
    elif answer.stripe_size != hello.stripe_size:
        members.failed(name, "stranger", f"its stripes are of {format_size(answer.stripe_size)}")
    else:
        members.answered(name)


async def renew_members(discovery: Discovery, know: Callable[[Collection[str]], Awaitable[None]]) -> None:
    """Find the members anew now and then, for ever. Where that fails they stay as they were."""
    why = ""
    while True:
        await trio.sleep(discovery.again)
        try:
            await know(await discovery.find())
        except OSError as error:
            if why != str(error):
                why = str(error)
                log.warning("the members cannot be looked up, and stay as they are: %s", why)
            continue
        why = ""
