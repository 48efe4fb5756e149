"""The descriptor pool: bounded, least recently used out first, never one that is borrowed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from fusestripe.cache.descriptors import DescriptorPool
from fusestripe.errors import CacheError


class Opener:
    """Opens /dev/null and remembers how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return os.open(os.devnull, os.O_RDONLY)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.fixture
def pool() -> Iterator[DescriptorPool]:
    pool = DescriptorPool(2)
    yield pool
    pool.close()
    assert pool.open_count == 0


def test_a_descriptor_is_kept_until_others_are_used_more_recently(pool: DescriptorPool) -> None:
    opener = Opener()
    for owner in (1, 2, 1, 3, 1):  # 3 pushes 2 out
        with pool.borrow(owner, "data", opener):
            assert pool.open_count <= 2
    assert opener.count == 3
    with pool.borrow(2, "data", opener):
        assert opener.count == 4


def test_a_borrowed_descriptor_is_not_closed_by_forget_until_given_back(pool: DescriptorPool) -> None:
    with pool.borrow(1, "data", Opener()) as fd:
        pool.forget(1)
        assert is_open(fd)
        with pool.borrow_open(1, "data") as again:
            assert again is None
        assert pool.open_count == 1
    assert pool.open_count == 0


def test_forget_closes_what_is_idle_and_only_the_owners(pool: DescriptorPool) -> None:
    for owner in (1, 2):
        with pool.borrow(owner, "data", Opener()):
            pass
    pool.forget(1)
    with pool.borrow_open(1, "data") as mine, pool.borrow_open(2, "data") as other:
        assert mine is None
        assert other is not None


def test_borrow_open_never_opens(pool: DescriptorPool) -> None:
    with pool.borrow_open(1, "data") as fd:
        assert fd is None
    assert pool.open_count == 0


def test_an_opener_that_fails_leaves_its_place_to_others(pool: DescriptorPool) -> None:
    def fails() -> int:
        raise FileNotFoundError

    for _ in range(5):
        with pytest.raises(FileNotFoundError), pool.borrow(1, "data", fails):
            pass
    assert pool.open_count == 0


def test_where_all_are_borrowed_one_waits(pool: DescriptorPool) -> None:
    got = threading.Event()

    def third() -> None:
        with pool.borrow(3, "data", Opener()):
            got.set()

    with ExitStack() as stack:
        for owner in (1, 2):
            stack.enter_context(pool.borrow(owner, "data", Opener()))
        thread = threading.Thread(target=third)
        thread.start()
        assert not got.wait(0.1)
        assert pool.open_count == 2
    assert got.wait(10)
    thread.join()


def test_many_threads_on_few_descriptors_always_have_their_own_file() -> None:
    pool = DescriptorPool(3)
    wrong: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for step in range(200):
                owner = (seed * 7 + step * 3) % 11
                with pool.borrow(owner, "data", lambda owner=owner: memory_file(owner)) as fd:  # type: ignore[misc]
                    assert os.pread(fd, 8, 0) == b"%08d" % owner
                    assert pool.open_count <= 3
                if step % 17 == 0:
                    pool.forget(owner)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.close()
    assert wrong == []
    assert pool.open_count == 0


def memory_file(owner: int) -> int:
    fd = os.memfd_create("owner")
    os.pwrite(fd, b"%08d" % owner, 0)
    return fd


def test_a_closed_pool_says_so() -> None:
    pool = DescriptorPool(1)
    pool.close()
    with pytest.raises(CacheError), pool.borrow(1, "data", Opener()):
        pass
