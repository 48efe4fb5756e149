"""An owner dies while its stripes are on their way: nobody waits for somebody that waits for them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from tests.cluster.test_peers import CONTENT, MD5, SIZE, STRIPE, digest, from_origin, know_each_other
from tests.support.job import Job
from tests.support.mounted import until
from tests.support.mounted_store import MountedStore

# Far less than the time after which a download is given up.
SECONDS = 40.0


def test_readers_go_on_when_an_owner_dies_in_the_middle(store: MountedStore) -> None:
    store.put("file", CONTENT)
    with Job(store, 5).nodes(stripe_size=STRIPE) as nodes:
        know_each_other(nodes)
        store.proxy.reset()
        store.proxy.shape(rate=100_000)
        dying, others = nodes[0], nodes[1:]
        with ThreadPoolExecutor(len(others)) as pool:
            reads = [pool.submit(digest, node.path / "file") for node in others]
            # Its own stripes go out to some, and those pass them on.
            until(lambda: all(node.status()["peers"]["sent"] > STRIPE // 8 for node in nodes))
            dying.kill()
            store.proxy.shape(rate=0)
            began = time.monotonic()
            assert [read.result() for read in reads] == [MD5] * len(others)
        assert time.monotonic() - began < SECONDS
        assert from_origin(store) < 2 * SIZE
