"""Other processes on a cache directory, for tests: run this module with COMMAND and DIRECTORY."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from fusestripe.cache.store import CacheStore
from tests.support.caches import STRIPE, check, load, open_store, sample

MANY = 10_000
FEW_DESCRIPTORS = 256


def hold(store: CacheStore) -> None:
    """Fill one file, hold it, and say so; until standard input ends."""
    what = sample()
    obj = store.acquire(what.version)
    for index in what.stripes:
        obj.save(index, what.stripe(index))
    print("held", flush=True)
    sys.stdin.read()
    assert check(obj, what) == len(what.stripes)


def fill_forever(store: CacheStore) -> None:
    """Save stripe after stripe, and say so after each, until killed."""
    number = 0
    while True:
        what = sample(f"file-{number}", 20 * STRIPE + 5000)
        obj = store.acquire(what.version)
        for index in what.stripes:
            assert obj.save(index, what.stripe(index))
            print(number, index, flush=True)
        store.release(obj)
        number += 1


def churn(store: CacheStore) -> None:
    """Acquire, save what is missing, read, release: what is held must stay, whoever clears the cache."""
    for step in range(300):
        what = sample(f"file-{step % 3}", 2 * STRIPE + 1)
        obj = store.acquire(what.version)
        for index in what.stripes:
            if load(obj, what, index) is None:
                assert obj.save(index, what.stripe(index))
        assert check(obj, what) == len(what.stripes)
        store.release(obj)
    assert store.statistics().corrupt_stripes == 0


def many(store: CacheStore) -> None:
    """Hold very many files at once, with few descriptors, and read some thousands of them."""
    samples = [sample(f"file-{number}", 100 + number) for number in range(MANY)]
    held = [store.acquire(what.version) for what in samples]
    read = list(zip(held, samples, strict=True))[::5]
    for obj, what in read:
        for index in what.stripes:
            assert obj.save(index, what.stripe(index))
    for obj, what in read:
        assert check(obj, what) == len(what.stripes)
    for obj in held:
        store.release(obj)
    print(len(held), flush=True)


def main() -> None:
    command, directory = sys.argv[1:]
    if command == "many":
        resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_DESCRIPTORS, FEW_DESCRIPTORS))
    run = {"hold": hold, "fill": fill_forever, "churn": churn, "many": many}[command]
    store = open_store(Path(directory))
    run(store)
    store.close()


if __name__ == "__main__":
    main()
