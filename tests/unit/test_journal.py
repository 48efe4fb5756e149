"""What one daemon notes and the next one reads: whole, in order, and wherever the first one was killed."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusestripe.kernel import abi
from fusestripe.kernel.journal import FILES, Journal, Looked, Opened, Past, Place, read_past
from fusestripe.kernel.unanswered import Unanswered, read_unanswered
from fusestripe.origins.base import Entry, Owner
from tests.unit.test_abi import message

FILE = Entry(name="", is_dir=False, size=7, mtime_ns=5, tag='"tag"', owner=Owner(0o640, None, 3))
NAMES = st.text(max_size=20).map(os.fsencode) | st.binary(max_size=20)
OPENED = st.builds(
    Opened,
    st.integers(0, 2**63),
    st.integers(1, 2**60),
    NAMES,
    st.sampled_from([FILE, None]),
    st.integers(0, 9),
)


class Store:
    """Keeps the last descriptor that it was given, as a keeper does."""

    def __init__(self) -> None:
        self.kept = -1
        self.times = 0

    def __call__(self, descriptor: int) -> None:
        if self.kept >= 0:
            os.close(self.kept)
        self.kept = os.dup(descriptor)
        self.times += 1

    def past(self) -> Past | None:
        return read_past(self.kept)


# (handle, what is opened) or (handle, None): closed.
Step = tuple[int, Opened | None]


def play(journal: Journal, steps: Sequence[Step]) -> dict[int, Opened]:
    model: dict[int, Opened] = {}
    for handle, opened in steps:
        if opened is None:
            assert journal.closed(handle) == (handle in model)
            model.pop(handle, None)
        else:
            journal.opened(handle, opened)
            model[handle] = opened
    return model


@given(st.lists(st.tuples(st.integers(1, 9), st.none() | OPENED)))
def test_what_is_open_is_known(steps: list[Step]) -> None:
    store = Store()
    journal = Journal(store)
    assert store.past() is None  # nobody has spoken yet
    journal.greeted(b"init", 17, "0:42")
    model = play(journal, steps)
    past = store.past()
    assert past is not None
    assert (past.init, past.started_ns, past.device) == (b"init", 17, "0:42")
    assert past.opens == model
    assert past.last_handle == max((handle for handle, opened in steps if opened is not None), default=0)
    journal.close()
    os.close(store.kept)


def test_where_readers_of_directories_have_come_to_is_known() -> None:
    """The last reply of each, through any number of daemons, until it is closed."""
    store = Store()
    journal = Journal(store)
    journal.greeted(b"init", 17, "0:42")
    for handle in (1, 2, 3):
        journal.opened(handle, Opened(handle, 1, b"dir", None))
    journal.listed(1, 0, ["", "a", "b"])
    journal.listed(1, 2, ["b", "c\udcff", "d"])
    journal.listed(2, 0, ["", "a"])
    assert journal.closed(2)
    place = Place(2, [b"b", b"c\xff", b"d"])
    for _ in range(3):
        past = store.past()
        assert past is not None
        assert past.places == {1: place}
        journal = Journal(store, past)
    assert [place.before(number) for number in range(6)] == ["", "", "b", "c\udcff", "d", ""]
    os.close(store.kept)


@given(st.lists(st.tuples(st.integers(1, 9), st.none() | OPENED), min_size=1), st.data())
def test_the_log_of_a_daemon_that_was_killed_in_it_is_of_a_moment_before(
    steps: list[Step], data: st.DataObject
) -> None:
    store = Store()
    journal = Journal(store)
    journal.greeted(b"init", 17, "0:42")
    sizes = [os.fstat(store.kept).st_size]
    models: list[dict[int, Opened]] = [{}]
    model: dict[int, Opened] = {}
    for handle, opened in steps:
        if opened is None:
            journal.closed(handle)
            model.pop(handle, None)
        else:
            journal.opened(handle, opened)
            model[handle] = opened
        sizes.append(os.fstat(store.kept).st_size)
        models.append(dict(model))
    end = data.draw(st.integers(sizes[0], sizes[-1]))
    os.truncate(store.kept, end)
    past = store.past()
    assert past is not None
    assert past.opens == models[max(number for number, size in enumerate(sizes) if size <= end)]
    journal.close()
    os.close(store.kept)


def test_the_next_daemon_goes_on_with_it() -> None:
    store = Store()
    first = Journal(store)
    first.greeted(b"init", 17, "0:42")
    first.directory(5, "a/\udcff")
    first.directory(6, "b")
    first.opened(3, Opened(1, 9, b"a/f", FILE))
    first.opened(4, Opened(2, 9, b"a/f", FILE))
    first.file(9, "a/f", FILE)
    first.file(10, "a/\udcfe", msgspec.structs.replace(FILE, name="\udcfe"))
    first.file(11, "a/h", FILE)
    first.forgotten(11)
    first.closed(4)
    first.forgotten(6)
    before = store.past()
    assert before is not None
    assert before.directories == {5: b"a/\xff"}
    assert before.files == {9: Looked(b"a/f", FILE), 10: Looked(b"a/\xfe", FILE)}
    second = Journal(store, before)
    assert store.past() == before
    second.opened(8, Opened(5, 9, b"a/f", FILE))
    second.closed(8)
    third = Journal(store, store.past())
    after = store.past()
    assert after is not None
    assert after.opens == before.opens
    assert after.last_handle == 8  # the kernel may yet close it
    for journal in (first, second, third):
        journal.close()
    os.close(store.kept)


def test_it_stays_small_however_long_it_is_written() -> None:
    store = Store()
    journal = Journal(store)
    journal.greeted(b"init", 17, "0:42")
    journal.opened(1, Opened(1, 9, b"kept", FILE))
    for handle in range(2, 30_000):
        journal.opened(handle, Opened(handle, 9, b"some/directory/file", FILE))
        journal.closed(handle)
        assert os.fstat(store.kept).st_size < 3 << 20
    past = store.past()
    assert past is not None
    assert past.opens == {1: Opened(1, 9, b"kept", FILE)}
    assert past.last_handle == 29_999
    assert 1 < store.times < 20
    journal.close()
    os.close(store.kept)


def test_of_very_many_files_the_last_are_known() -> None:
    store = Store()
    journal = Journal(store)
    journal.greeted(b"init", 17, "0:42")
    for inode in range(2, FILES + 12):
        journal.file(inode, "some/file", FILE)
    past = store.past()
    assert past is not None
    assert sorted(past.files) == list(range(12, FILES + 12))
    journal.close()
    os.close(store.kept)


def test_memory_that_is_full_is_said_and_no_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(Store())

    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        journal.directory(5, "a")
    assert "cannot be noted: No space left" in caplog.text
    journal.close()


def test_a_record_that_was_not_written_whole_spoils_none_after_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, write = Store(), os.write
    journal = Journal(store)
    journal.greeted(b"init", 17, "0:42")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
        journal.directory(5, "a")
    journal.directory(6, "b")
    past = store.past()
    assert past is not None
    assert past.directories == {6: b"b"}
    assert "cannot be noted" in caplog.text
    journal.close()
    os.close(store.kept)


def test_what_a_later_version_notes_besides_is_nothing_to_this_one() -> None:
    store = Store()
    journal = Journal(store)
    journal.greeted(b"init", 17, "0:42")
    journal._put("new", 3, {"any": "thing"})
    past = store.past()
    assert past is not None
    assert past.directories == {}
    journal.close()
    os.close(store.kept)


def test_requests_are_found_until_they_are_answered() -> None:
    store = Store()
    noted = Unanswered(store, [message(abi.Opcode.READ, 4, b"left")], 2, 1 << 20)
    for unique in range(6, 20, 2):
        noted.note(unique, memoryview(message(abi.Opcode.READ, unique, bytes([unique]))))
    noted.answered(4)
    noted.answered(8)
    noted.answered(8)
    just, again = message(abi.Opcode.OPEN, 30, b"just come"), message(abi.Opcode.READ, 6, bytes([6]))
    noted.buffers[1][: len(just)] = just
    noted.buffers[0][: len(again)] = again
    expected = [message(abi.Opcode.READ, unique, bytes([unique])) for unique in (6, *range(10, 20, 2))]
    assert sorted(read_unanswered(store.kept)) == sorted([*expected, just])
    abi.clear(noted.buffers[0])
    abi.clear(noted.buffers[1])
    assert sorted(read_unanswered(store.kept)) == sorted(expected)
    os.close(store.kept)


def test_more_requests_than_there_is_room_for_are_answered_all_the_same() -> None:
    store = Store()
    noted = Unanswered(store, [], 1, 4096)
    for unique in range(2, 10_002, 2):
        noted.note(unique, memoryview(message(abi.Opcode.READ, unique, b"")))
    noted.note(20_000, memoryview(message(abi.Opcode.OPEN, 20_000, bytes(5000))))  # longer than any
    assert len(list(read_unanswered(store.kept))) == 4096
    for unique in range(2, 10_002, 2):
        noted.answered(unique)
    assert list(read_unanswered(store.kept)) == []
    os.close(store.kept)
