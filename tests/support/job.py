"""The nodes of a job on one machine: mounts of one bucket that are each other's peers, a cache each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.support.mounted import Mounted
from tests.support.mounted_store import MountedStore
from tests.support.seaweed import free_ports

__all__ = ["Job", "at_once", "token_in"]

T = TypeVar("T")

TOKEN = "a-token-that-all-nodes-share"


def token_in(directory: Path, token: str = TOKEN) -> Path:
    """A token's file as it has to be."""
    path = directory / f"token-{token[:8]}"
    path.write_text(token)
    path.chmod(0o600)
    return path


def at_once(acts: Sequence[Callable[[], T]]) -> list[T]:
    """What each of ``acts`` returns, all begun at the same moment."""
    with ThreadPoolExecutor(len(acts)) as pool:
        return [future.result() for future in [pool.submit(act) for act in acts]]


class Job:
    """``count`` members on loopback; those that are not mounted are down."""

    def __init__(self, store: MountedStore, count: int) -> None:
        self.store = store
        self.members = [f"127.0.0.1:{port}" for port in free_ports(count)]

    @contextmanager
    def node(self, number: int, prefix: str = "", **settings: Any) -> Iterator[Mounted]:
        """Member ``number``, mounted."""
        chosen = {
            "peers": " ".join(self.members),
            "peers_name": self.members[number],
            "peers_port": int(self.members[number].rpartition(":")[2]),
            "peers_listen": "127.0.0.1",
            "peers_token_file": str(token_in(self.store.directory)),
            "memory": "64MiB",
            **settings,
        }
        with self.store.mount(prefix, at=f"node{number}", cache=f"cache{number}", **chosen) as mount:
            yield mount

    @contextmanager
    def nodes(self, numbers: Sequence[int] | None = None, **settings: Any) -> Iterator[list[Mounted]]:
        """All of them, or those of ``numbers``."""
        with ExitStack() as stack:
            chosen = range(len(self.members)) if numbers is None else numbers
            yield [stack.enter_context(self.node(number, **settings)) for number in chosen]
