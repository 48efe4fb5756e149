"""Versions with bytes to put into caches, and caches to put them into."""

from __future__ import annotations

import mmap
import random
from pathlib import Path

import msgspec

from fusestripe.cache.store import CachedObject, CacheStore
from fusestripe.stripes.plan import stripe_count, stripe_length
from fusestripe.units import ObjectVersion

STRIPE = 8192
"""The stripe size of the tests, bytes: two pages."""


class Sample(msgspec.Struct, frozen=True):
    """A version and its bytes."""

    version: ObjectVersion
    data: bytes
    stripe_size: int = STRIPE

    def __repr__(self) -> str:
        return f"<Sample {self.version.path}>"

    @property
    def stripes(self) -> range:
        """The indices of its stripes."""
        return range(stripe_count(len(self.data), self.stripe_size))

    def stripe(self, index: int) -> memoryview:
        """The bytes of a stripe at a page-aligned address, as the buffers of a daemon are."""
        length = stripe_length(index, len(self.data), self.stripe_size)
        view = memoryview(mmap.mmap(-1, self.stripe_size))[:length]
        start = index * self.stripe_size
        view[:] = self.data[start : start + length]
        return view


def sample(path: str = "step-1/model.pt", size: int = 3 * STRIPE + 5000, tag: str = "e1") -> Sample:
    """A version whose bytes depend on all that names it."""
    data = random.Random(f"{path} {size} {tag}").randbytes(size)
    return Sample(ObjectVersion("s3://bucket", path, size, tag), data)


def open_store(
    directory: Path, *, size: int = 1 << 30, reserve: int = 0, descriptors: int = 128
) -> CacheStore:
    """A store with the stripe size of the tests."""
    return CacheStore(directory, stripe_size=STRIPE, size=size, reserve=reserve, descriptors=descriptors)


def fill(store: CacheStore, what: Sample) -> None:
    """Put all of ``what`` into the cache, and let go of it."""
    obj = store.acquire(what.version)
    for index in what.stripes:
        assert obj.save(index, what.stripe(index))
    store.release(obj)


def load(obj: CachedObject, what: Sample, index: int) -> bytes | None:
    """The stripe as the cache gives it, or None for a miss."""
    into = memoryview(bytearray(stripe_length(index, what.version.size, what.stripe_size)))
    return bytes(into) if obj.load(index, into) else None


def check(obj: CachedObject, what: Sample) -> int:
    """How many stripes the cache gives; each is right, or the test fails."""
    given = [(index, load(obj, what, index)) for index in what.stripes]
    for index, data in given:
        assert data is None or data == what.stripe(index), f"stripe {index} is wrong"
    return sum(data is not None for _, data in given)


def file_of(directory: Path, what: Sample, suffix: str) -> Path:
    """Where the format puts a file of the object."""
    key = what.version.key
    return directory / "objects" / key[:2] / f"{key}-{what.stripe_size}{suffix}"


def full_store(directory: Path, *, of: int = 4) -> CacheStore:
    """A store that has room for ``of`` files of four stripes, and holds as many: file-0 is the oldest."""
    store = open_store(directory, size=of * 4 * STRIPE)
    for number in range(of):
        fill(store, sample(f"file-{number}", 4 * STRIPE))
    return store


def present_files(store: CacheStore, count: int = 6) -> list[int]:
    found = []
    for number in range(count):
        obj = store.acquire(sample(f"file-{number}", 4 * STRIPE).version)
        if obj.present_bytes:
            found.append(number)
        store.release(obj)
    return found


def disk_use(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*.data"))
