"""How often the tree asks an origin, and what it says when."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from fusestripe.errors import NotFound, OriginUnavailable
from fusestripe.namespace.routes import RouteTable
from fusestripe.namespace.tree import Absent, Found, Tree
from fusestripe.origins.base import Entry
from fusestripe.origins.retry import SETTLED_SECONDS
from tests.support.memory_origin import MemoryOrigin


def tree(nursery: trio.Nursery, **origins: MemoryOrigin) -> Tree:
    """Routes by keyword: ``root`` is "", a double underscore is a slash."""
    routes = {"" if name == "root" else name.replace("__", "/"): origin for name, origin in origins.items()}
    return Tree(RouteTable(routes), nursery, ttl=60, negative_ttl=5, timeout=30)


def files(count: int) -> dict[str, bytes]:
    return {f"f{number:05}.pt": b"x" for number in range(count)}


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


@pytest.mark.parametrize("directory", ["step-1000", "llama-3.1-8b", "v1.0"])
async def test_a_directory_is_listed_while_its_parent_is(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, directory: str
) -> None:
    """A cold file in a directory is as many round trips away as one at the top."""
    origin = Together({f"{directory}/model.pt": b"x"}, together=2)
    names = tree(nursery, root=origin)
    assert (await names.lookup("", directory)).entry.is_dir
    assert (await names.lookup(directory, "model.pt")).entry.size == 1
    assert origin.asked == {"list": 2}


async def test_what_looks_like_a_file_or_is_in_a_known_directory_is_not_listed(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    origin = MemoryOrigin({"model.pt": b"x", "step-1/model.pt": b"x", "README": b"x"})
    names = tree(nursery, root=origin)
    for name in ("model.pt", "step-1", "README"):
        await names.lookup("", name)
    assert origin.asked == {"list": 1}


async def test_a_name_that_turns_out_to_be_no_directory_is_what_it_is(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """The listing made in vain, or its error, concerns nobody."""
    origin = Together({"README": b"x"}, together=2)
    names = tree(nursery, root=origin)
    assert not (await names.lookup("", "README")).entry.is_dir
    with pytest.raises(NotFound):
        await names.lookup("", "missing")
    assert origin.asked == {"list": 2}


async def test_an_origin_that_cannot_list_by_prefix_is_asked_for_one_directory_at_a_time(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """There, to list a file may be an error, or read it."""
    origin = MemoryOrigin({"step-1/model.pt": b"x"})
    origin.lists_trees = False
    names = tree(nursery, root=origin)
    await names.lookup("", "step-1")
    assert origin.asked == {"list": 1}


class Together(MemoryOrigin):
    """Answers no listing before ``together`` of them are asked for."""

    def __init__(self, files: dict[str, bytes], together: int) -> None:
        super().__init__(files)
        self._barrier = threading.Barrier(together)

    def list_dir(self, path: str) -> Iterator[list[Entry]]:
        pages = list(super().list_dir(path))
        self._barrier.wait(5)
        return iter(pages)


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
    origin = Hiding({"run/.hidden/a.pt": b"xyz", "run/a.pt": b"x", "other/a.pt": b"x"})
    names = tree(nursery, root=origin)
    for _ in range(3):
        assert set((await names.list_dir("run")).entries) == {"a.pt"}
        assert (await names.lookup("run", ".hidden")).entry.is_dir
        assert (await names.lookup("run/.hidden", "a.pt")).entry.size == 3
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
    assert (await names.lookup("", "f09999.pt")).entry.size == 1
    assert origin.asked == {"list": 2, "stat": 1}
    await names.lookup("", "f09999.pt")
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
    origin = MemoryOrigin({"a/b.pt": b"1"})
    names = tree(nursery, root=origin)
    async with trio.open_nursery() as askers:
        for _ in range(50):
            askers.start_soon(names.lookup, "a", "b.pt")
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


async def test_what_was_asked_before_something_proved_wrong_is_neither_kept_nor_joined(
    nursery: trio.Nursery,
) -> None:
    origin = Slow({"run/file.pt": b"x"})
    names = tree(nursery, root=origin)
    async with trio.open_nursery() as askers:
        askers.start_soon(names.lookup, "run", "file.pt")
        await trio.to_thread.run_sync(origin.asked_first.wait)
        origin.replace("run/file.pt", b"xy")
        names.forget("run/file.pt")
        with trio.fail_after(5):
            assert (await names.lookup("run", "file.pt")).entry.size == 2
        origin.answers_first.set()
    assert (await names.lookup("run", "file.pt")).entry.size == 2
    assert origin.asked == {"list": 2}


class Slow(MemoryOrigin):
    """The first listing is as things were when it was asked for, and comes when it may."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self.asked_first, self.answers_first = threading.Event(), threading.Event()

    def list_dir(self, path: str) -> Iterator[list[Entry]]:
        pages = list(super().list_dir(path))
        if not self.asked_first.is_set():
            self.asked_first.set()
            self.answers_first.wait(10)
        return iter(pages)


async def test_those_who_queue_behind_a_failure_do_not_wait_as_long_again(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    origin = MemoryOrigin({"run/file.pt": b"x"})
    origin.failures = [OriginUnavailable("down")] * 1000
    names = tree(nursery, root=origin)
    began = trio.current_time()
    with pytest.raises(OriginUnavailable):
        await names.lookup("run", "file.pt")
    first = trio.current_time() - began
    for _ in range(10):
        with pytest.raises(OriginUnavailable):
            await names.lookup("run", "file.pt")
    assert trio.current_time() - began == first
    origin.failures.clear()
    await trio.sleep(SETTLED_SECONDS)
    assert (await names.lookup("run", "file.pt")).entry.size == 1


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


class Unordered(MemoryOrigin):
    """As a disk's directory is, and pages in which directories come first."""

    def list_dir(self, path: str) -> Iterator[list[Entry]]:
        for page in super().list_dir(path):
            yield page[::-1]

    def walk(self, path: str) -> Iterator[list[tuple[str, Entry]]]:
        for page in super().walk(path):
            yield page[::-1]


@pytest.mark.parametrize("lists_trees", [False, True], ids=["one by one", "a walk"])
async def test_entries_are_in_the_order_of_their_names(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, lists_trees: bool
) -> None:
    """Who has come to a name, with a daemon before this one, goes on behind it."""
    origin = Unordered(many_directories(100, 20) | {"d000-file": b"x", "d0": b"y", "D": b"z"})
    origin.lists_trees = lists_trees
    names = tree(nursery, root=origin)
    assert await list_all(names) == 100 * 20 + 3
    for path in ("", "d001", "d001/s"):
        found = list((await names.list_dir(path)).entries)
        assert found == sorted(found)
