"""How often the tree asks an origin, and what it says when."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
import trio.testing

from fusestripe.errors import NotFound, OriginUnavailable
from fusestripe.namespace.routes import RouteTable
from fusestripe.namespace.tree import Absent, Found, Tree
from fusestripe.origins.base import Entry
from tests.support.memory_origin import MemoryOrigin


def tree(nursery: trio.Nursery, **origins: MemoryOrigin) -> Tree:
    """Routes by keyword: ``root`` is "", a double underscore is a slash."""
    routes = {"" if name == "root" else name.replace("__", "/"): origin for name, origin in origins.items()}
    return Tree(RouteTable(routes), nursery, ttl=60, negative_ttl=5, timeout=30)


def files(count: int) -> dict[str, bytes]:
    return {f"f{number:05}": b"x" for number in range(count)}


async def test_names_in_a_listed_directory_cost_nothing(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    origin = MemoryOrigin(files(100))
    names = tree(nursery, root=origin)
    listing = await names.list_dir("")
    assert len(listing.entries) == 100
    for name in listing.entries:
        assert (await names.lookup("", name)).entry.size == 1
    with pytest.raises(NotFound):
        await names.lookup("", "missing")
    assert origin.asked == {"list": 1}


async def test_the_first_name_lists_its_directory_for_the_others(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    origin = MemoryOrigin(files(1000))
    names = tree(nursery, root=origin)
    for name in files(1000):
        await names.lookup("", name)
    assert origin.asked == {"list": 1}


class Hiding(MemoryOrigin):
    """Does not list ".hidden"."""

    def list_dir(self, path: str) -> Iterator[list[Entry]]:
        for page in super().list_dir(path):
            yield [entry for entry in page if not self.hides(entry.name)]

    def hides(self, name: str) -> bool:
        return name == ".hidden"


async def test_a_name_that_listings_hide_is_there_for_who_knows_it(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    origin = Hiding({"run/.hidden/file": b"xyz", "run/file": b"x", "other/file": b"x"})
    names = tree(nursery, root=origin)
    for _ in range(3):
        assert set((await names.list_dir("run")).entries) == {"file"}
        assert (await names.lookup("run", ".hidden")).entry.is_dir
        assert (await names.lookup("run/.hidden", "file")).entry.size == 3
        for directory, name in (("run", ".other"), ("other", ".hidden")):
            with pytest.raises(NotFound):
                await names.lookup(directory, name)
    # What is asked once is known for as long as what is listed.
    assert origin.asked == {"list": 3, "stat": 2}


async def test_a_huge_directory_is_not_listed_for_one_name(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    origin = MemoryOrigin(files(10_000))
    names = tree(nursery, root=origin)
    assert (await names.lookup("", "f09999")).entry.size == 1
    assert origin.asked == {"list": 2, "stat": 1}
    await names.lookup("", "f09999")
    with pytest.raises(NotFound):
        await names.lookup("", "missing")
    with pytest.raises(NotFound):
        await names.lookup("", "missing")
    assert origin.asked == {"list": 2, "stat": 2}
    assert len((await names.list_dir("")).entries) == 10_000
    assert origin.asked["list"] == 12


async def test_answers_are_believed_for_their_time_and_no_longer(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    origin = MemoryOrigin({"a": b"1"})
    names = tree(nursery, root=origin)
    before = await names.lookup("", "a")
    origin.replace("a", b"22")
    await trio.sleep(59)
    assert (await names.lookup("", "a")).entry == before.entry
    await trio.sleep(2)
    assert (await names.lookup("", "a")).entry.size == 2


async def test_a_new_file_is_seen_within_the_negative_ttl(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    origin = MemoryOrigin({"a": b"1"})
    names = tree(nursery, root=origin)
    with pytest.raises(NotFound):
        await names.lookup("", "new")
    origin.replace("new", b"22")
    await trio.sleep(6)
    assert (await names.lookup("", "new")).entry.size == 2


async def test_many_who_ask_at_once_cost_one_request(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    origin = MemoryOrigin({"a/b": b"1"})
    names = tree(nursery, root=origin)
    async with trio.open_nursery() as askers:
        for _ in range(50):
            askers.start_soon(names.lookup, "a", "b")
    assert origin.asked == {"list": 1}


async def test_one_who_is_cancelled_takes_nothing_from_the_others(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    origin = MemoryOrigin({"a": b"1"})
    origin.failures = [OriginUnavailable("busy")]  # so that the answer takes a moment
    names = tree(nursery, root=origin)
    found: list[Found] = []

    async def ask() -> None:
        found.append(await names.lookup("", "a"))

    async with trio.open_nursery() as askers:
        with trio.CancelScope() as scope:
            askers.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await names.lookup("", "a")
    assert len(found) == 1


async def test_parents_of_routes_are_listed_and_nothing_else_is_there(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    names = tree(
        nursery, ckpt=MemoryOrigin({"x": b"1"}), models__llm=MemoryOrigin(), models__vision=MemoryOrigin()
    )
    assert set((await names.list_dir("")).entries) == {"ckpt", "models"}
    assert set((await names.list_dir("models")).entries) == {"llm", "vision"}
    assert set((await names.list_dir("ckpt")).entries) == {"x"}
    assert (await names.lookup("", "models")).entry.is_dir
    assert (await names.stat("ckpt/x")).entry.size == 1
    with pytest.raises(NotFound):
        await names.lookup("", "other")


async def test_what_was_forgotten_is_asked_again(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    origin = MemoryOrigin({"a": b"1"})
    names = tree(nursery, root=origin)
    await names.lookup("", "a")
    origin.replace("a", b"22")
    names.forget("a")
    assert names.known("a") is None
    assert (await names.lookup("", "a")).entry.size == 2


async def test_what_is_known_is_said_without_asking(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    origin = MemoryOrigin({"a": b"1"})
    names = tree(nursery, root=origin)
    assert names.known("a") is None
    await names.list_dir("")
    assert isinstance(names.known("a"), Found)
    assert isinstance(names.known("b"), Absent)
    await trio.sleep(6)
    assert names.known("b") is None
    assert origin.asked == {"list": 1}


async def test_an_origin_that_stumbles_is_asked_again(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    origin = MemoryOrigin({"a": b"1"})
    origin.failures = [OriginUnavailable("busy"), OriginUnavailable("busy", retry_after=3)]
    names = tree(nursery, root=origin)
    assert (await names.lookup("", "a")).entry.size == 1


def many_directories(directories: int, each: int) -> dict[str, bytes]:
    return {f"d{number:03}/s/f{file:03}": b"x" for number in range(directories) for file in range(each)}


async def list_all(names: Tree, path: str = "") -> int:
    """As `ls -R` does: each directory before those below it. The number of files."""
    count = 0
    for name, entry in (await names.list_dir(path)).entries.items():
        count += await list_all(names, f"{path}/{name}" if path else name) if entry.is_dir else 1
    return count


async def test_a_walk_costs_a_request_a_thousand_files(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    origin = MemoryOrigin(many_directories(100, 100))
    names = tree(nursery, root=origin)
    assert await list_all(names) == 10_000
    assert origin.asked.total() <= 13


async def test_a_walk_through_too_large_a_tree_goes_on_directory_by_directory(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    origin = MemoryOrigin(many_directories(30, 1), page=1)
    names = tree(nursery, root=origin)
    assert await list_all(names) == 30
    assert origin.asked["walk"] < 40


async def test_reading_here_and_there_is_no_walk(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    origin = MemoryOrigin(many_directories(100, 3))
    names = tree(nursery, root=origin)
    for number in range(20):
        await names.lookup(f"d{number:03}/s", "f000")
    assert origin.asked["walk"] == 0
