"""What the commands do with a cache directory, with a store on it and without."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fusestripe.cache.catalogue import CacheCatalogue, Removed
from fusestripe.cache.store import CacheStore
from fusestripe.errors import CacheError
from tests.support.caches import STRIPE, check, file_of, fill, open_store, sample

ONE = sample("step-1/model.pt")
TEN = sample("step-10/model.pt", 2 * STRIPE)


@pytest.fixture
def catalogue(store: CacheStore, directory: Path) -> Iterator[CacheCatalogue]:
    for what in (ONE, TEN):
        fill(store, what)
    with CacheCatalogue(directory) as catalogue:
        yield catalogue


def paths(catalogue: CacheCatalogue) -> list[str]:
    return [entry.version.path for entry in catalogue.entries()]


def test_entries(store: CacheStore, catalogue: CacheCatalogue) -> None:
    began = time.time()
    partial = sample("partial", 2 * STRIPE + 1)
    obj = store.acquire(partial.version)
    obj.save(2, partial.stripe(2))
    store.pin(ONE.version)
    store.pin(TEN.version, until=began + 100)
    entries = {entry.version: entry for entry in catalogue.entries()}
    assert set(entries) == {ONE.version, TEN.version, partial.version}
    one, ten, part = (entries[what.version] for what in (ONE, TEN, partial))
    assert (one.present_bytes, one.complete, one.in_use) == (ONE.version.size, True, False)
    assert (part.present_bytes, part.complete, part.in_use) == (1, False, True)
    assert part.disk_bytes < 2 * STRIPE
    assert (one.pinned_until, ten.pinned_until, part.pinned_until) == (math.inf, began + 100, 0)
    assert (one.pinned, part.pinned) == (True, False)
    assert began - 5 < one.last_use <= part.last_use <= time.time()


def test_listing_is_not_using(catalogue: CacheCatalogue) -> None:
    before = [entry.last_use for entry in catalogue.entries()]
    list(catalogue.verify())
    assert [entry.last_use for entry in catalogue.entries()] == before


def test_verify_says_what_is_bad_and_clears_it(
    store: CacheStore, catalogue: CacheCatalogue, directory: Path
) -> None:
    with file_of(directory, ONE, ".data").open("r+b") as file:
        file.write(b"bad")
    held = store.acquire(ONE.version)
    found = {result.entry.version: result for result in catalogue.verify()}
    assert (found[ONE.version].good_bytes, found[ONE.version].bad_stripes) == (len(ONE.data) - STRIPE, 1)
    assert (found[TEN.version].good_bytes, found[TEN.version].bad_stripes) == (len(TEN.data), 0)
    held.refresh()
    assert not held.present(0)


def test_what_is_bad_is_named_with_the_endpoint_behind_the_path(
    store: CacheStore, catalogue: CacheCatalogue, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    far = replace(ONE, version=replace(ONE.version, origin="s3://b?endpoint=h:1"))
    fill(store, far)
    with file_of(directory, far, ".data").open("r+b") as file:
        file.write(b"bad")
    list(catalogue.verify())
    assert [record for record in caplog.messages if "s3://b/step-1/model.pt?endpoint=h:1" in record]


def test_evict_takes_whole_components_of_a_path(catalogue: CacheCatalogue) -> None:
    assert catalogue.evict(path="step-1").objects == 1
    assert paths(catalogue) == ["step-10/model.pt"]
    assert catalogue.evict(origin="s3://elsewhere") == Removed()
    assert catalogue.evict(origin="s3://bucket", path="step-10/model.pt").bytes == 2 * STRIPE
    assert paths(catalogue) == []


def test_clear_leaves_what_is_in_use_and_what_is_pinned(store: CacheStore, catalogue: CacheCatalogue) -> None:
    third = sample("third")
    fill(store, third)
    held = store.acquire(ONE.version)
    store.pin(TEN.version)
    removed = catalogue.clear()
    assert (removed.objects, removed.in_use, removed.pinned) == (1, 1, 1)
    assert check(held, ONE) == 4
    assert paths(catalogue) == [ONE.version.path, TEN.version.path]
    assert catalogue.clear(pinned=True).objects == 1
    store.release(held)
    assert catalogue.clear().objects == 1
    assert paths(catalogue) == []


def test_a_pin_is_taken_away(store: CacheStore, catalogue: CacheCatalogue) -> None:
    for what in (ONE, TEN):
        store.pin(what.version)
    assert catalogue.unpin(origin="s3://elsewhere") == 0
    assert catalogue.unpin(origin="s3://bucket", path=TEN.version.path) == 1
    assert catalogue.unpin(path=TEN.version.path) == 0
    removed = catalogue.clear()
    assert (removed.objects, removed.pinned) == (1, 1)
    assert catalogue.unpin() == 1
    assert catalogue.clear().pinned == 0


def test_a_damaged_object_is_not_listed_and_is_cleared(catalogue: CacheCatalogue, directory: Path) -> None:
    file_of(directory, ONE, ".ledger").write_bytes(b"")
    file_of(directory, TEN, ".pin").write_bytes(b"\0\0")
    assert paths(catalogue) == [TEN.version.path]
    assert catalogue.clear().objects == 2
    assert [path for path in (directory / "objects").rglob("*") if path.is_file()] == []


def test_without_a_daemon(directory: Path) -> None:
    store = open_store(directory)
    fill(store, ONE)
    store.close()
    with CacheCatalogue(directory) as catalogue:
        assert [result.good_bytes for result in catalogue.verify()] == [len(ONE.data)]


def test_where_there_is_no_cache_none_is_made(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="no cache") as error:
        CacheCatalogue(tmp_path)
    assert "--cache-dir" in error.value.mend
    assert list(tmp_path.iterdir()) == []


def test_a_format_from_the_future(directory: Path) -> None:
    open_store(directory).close()
    (directory / "format.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(CacheError, match="newer version"):
        CacheCatalogue(directory)
