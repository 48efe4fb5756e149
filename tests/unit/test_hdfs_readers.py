"""Which of a version's readers a request for a block goes to."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, cast

import pytest

from fusestripe.errors import VersionChanged
from fusestripe.origins.hdfs_readers import READERS, HeldReaders
from fusestripe.units import ObjectVersion

VERSION = ObjectVersion("hdfs://nn", "file", 1 << 30, "mtime 1 block 1024")


class Opener:
    """Readers are numbers here."""

    def __init__(self) -> None:
        self.opened = 0

    def __call__(self, version: ObjectVersion) -> Any:
        self.opened += 1
        return self.opened


def held(opener: Opener) -> HeldReaders:
    return HeldReaders(opener, lambda version: None)


def test_one_request_after_another_needs_one_reader() -> None:
    opener = Opener()
    readers = held(opener)
    for block in range(20):
        with readers.of(VERSION).reading(block) as one:
            assert cast(Any, one.reader) == 1
    assert opener.opened == 1


def test_requests_for_one_block_at_once_have_readers_of_their_own() -> None:
    opener = Opener()
    readers = held(opener)
    with ExitStack() as stack:
        taken = [stack.enter_context(readers.of(VERSION).reading(7)).reader for _ in range(3 * READERS)]
        assert opener.opened == READERS
        assert {cast(Any, taken).count(reader) for reader in taken} == {3}
        # Other blocks are no concern of theirs.
        with readers.of(VERSION).reading(8):
            assert opener.opened == READERS


def test_a_reader_that_is_slow_gets_nothing_more_of_that_block() -> None:
    opener = Opener()
    readers = held(opener)
    with readers.of(VERSION).reading(7) as slow:
        for _ in range(5 * READERS):
            with readers.of(VERSION).reading(7) as other:
                assert other is not slow


def test_one_that_cannot_be_opened_is_not_counted() -> None:
    def gone(version: ObjectVersion) -> Any:
        raise VersionChanged("gone")

    readers = HeldReaders(gone, lambda version: None)
    for _ in range(2):
        with pytest.raises(VersionChanged), readers.of(VERSION).reading(1):
            pass


def test_after_a_drop_places_are_asked_for_again() -> None:
    opener = Opener()
    readers = held(opener)
    with readers.of(VERSION).reading(1):
        readers.drop(VERSION)
    with readers.of(VERSION).reading(1):
        assert opener.opened == 2


def test_a_reader_that_was_left_comes_last_for_that_block_alone() -> None:
    opener = Opener()
    readers = held(opener).of(VERSION)
    with readers.reading(7) as slow:
        readers.leave(slow, 7)
    with readers.reading(8) as other:
        assert other is slow
    with readers.reading(7) as other:
        assert other is not slow
    with readers.reading(7) as first, readers.reading(7) as second:
        assert slow not in (first, second)
    assert opener.opened == 3


def test_once_every_reader_was_left_the_idlest_goes_on() -> None:
    opener = Opener()
    readers = held(opener).of(VERSION)
    for _ in range(READERS):
        assert readers.can_leave(7)
        with readers.reading(7) as reader:
            readers.leave(reader, 7)
    assert not readers.can_leave(7)
    assert readers.can_leave(8)
    with readers.reading(7) as reader, readers.reading(7) as other:
        assert reader is not other
    assert opener.opened == READERS
