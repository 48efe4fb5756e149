"""Bytes count only once the path was asked after them; those that wait share an answer; nothing hangs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusestripe.errors import BadAnswer, OriginUnavailable, VersionChanged
from fusestripe.origins.confirmation import FIRST_PIECE, Confirmation, fill
from fusestripe.origins.patience import Patience
from tests.support.mounted import until


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(0, 600))
def test_what_is_told_was_confirmed(chunks: list[bytes], room: int) -> None:
    into = memoryview(bytearray(room))
    events: list[int] = []  # -1: confirmed

    def run() -> None:
        fill(chunks, into, lambda: events.append(-1), events.append, "it")

    if sum(map(len, chunks)) == room:
        run()
        assert bytes(into) == b"".join(chunks)
        assert max(events, default=0) == room
    else:
        with pytest.raises(BadAnswer):
            run()
    for before, event in zip([0, *events], events, strict=False):
        assert event == -1 or before == -1


def test_pieces_grow() -> None:
    chunk = bytes(FIRST_PIECE // 4)
    told: list[int] = []
    fill([chunk] * 32, memoryview(bytearray(32 * len(chunk))), lambda: None, told.append, "it")
    assert {FIRST_PIECE, 8 * FIRST_PIECE} <= set(told)


def test_nothing_is_told_of_another_version() -> None:
    def changed() -> None:
        raise VersionChanged("it is another")

    told: list[int] = []
    with pytest.raises(VersionChanged):
        fill([b"1234"], memoryview(bytearray(4)), changed, told.append, "it")
    with pytest.raises(VersionChanged):
        fill([b"12"], memoryview(bytearray(4)), changed, told.append, "it")
    assert told == []


def test_those_that_wait_share_the_next_question() -> None:
    go_on, asked = threading.Semaphore(0), threading.Semaphore(0)
    count = 0

    def ask() -> None:
        nonlocal count
        count += 1
        asked.release()
        assert go_on.acquire(timeout=20)

    confirmation = Confirmation(ask)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(confirmation.confirm)
        assert asked.acquire(timeout=20)
        others = [pool.submit(confirmation.confirm) for _ in range(7)]
        assert not any(other.done() for other in others), "the first question began before they came"
        go_on.release()
        first.result(20)
        assert asked.acquire(timeout=20)
        go_on.release(8)
        for other in others:
            other.result(20)
    assert 2 <= count <= 8


def test_an_error_reaches_all_that_wait_and_is_forgotten() -> None:
    failures: list[Exception] = [VersionChanged("it is another")]

    def ask() -> None:
        if failures:
            raise failures.pop()

    confirmation = Confirmation(ask)
    with pytest.raises(VersionChanged):
        confirmation.confirm()
    confirmation.confirm()


class Ended(BaseException):
    """As what a panic of a library's, or the end of the process, raises."""


def test_what_ends_a_question_is_no_answer_for_those_that_wait() -> None:
    go_on, asked = threading.Semaphore(0), threading.Semaphore(0)
    outcomes: list[BaseException | None] = [None, Ended(), VersionChanged("it is another")]

    def ask() -> None:
        asked.release()
        assert go_on.acquire(timeout=20)
        if outcome := outcomes.pop(0):
            raise outcome

    confirmation = Confirmation(ask)
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(confirmation.confirm)]
        assert asked.acquire(timeout=20)
        # Both wait for the second question; one of them asks it, and it ends.
        futures += [pool.submit(confirmation.confirm) for _ in range(2)]
        until(lambda: len(confirmation._changed._waiters) == 2)  # type: ignore[attr-defined]
        go_on.release(3)
        errors = [future.exception(20) for future in futures]
    assert errors[0] is None
    assert {type(error) for error in errors[1:]} == {Ended, VersionChanged}


def test_a_call_that_has_no_thread_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = Patience(20, calls=1)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(2):
            with pytest.raises(OriginUnavailable, match="too many"):
                patience.run(lambda: 7, "it")
    assert patience.run(lambda: 7, "it") == 7


def test_a_call_that_hangs_is_left_behind() -> None:
    never = threading.Event()
    patience = Patience(0.05, calls=2)
    for _ in range(2):
        with pytest.raises(OriginUnavailable, match="no answer in"):
            patience.run(never.wait, "it")
    with pytest.raises(OriginUnavailable, match="too many"):
        patience.run(never.wait, "it")
    never.set()


def test_a_call_gives_what_it_gives() -> None:
    patience = Patience(20, calls=1)
    for _ in range(3):
        assert patience.run(lambda: 7, "it") == 7
        with pytest.raises(ZeroDivisionError):
            patience.run(lambda: 1 // 0, "it")
        with pytest.raises(TimeoutError):
            patience.run(_times_out, "it")


def _times_out() -> None:
    raise TimeoutError("its own")
