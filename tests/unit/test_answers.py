"""Answers about paths: given in their time, thrown out after it, and cheap to keep by the ten thousand."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from fusestripe.namespace.answers import KEPT, Answers


class Watched:
    """An answer that counts how often someone looks whether its time is over."""

    looks = 0

    def __init__(self, expires: float) -> None:
        self._expires = expires

    @property
    def expires(self) -> float:
        type(self).looks += 1
        return self._expires


async def test_an_answer_is_given_until_its_time(autojump_clock: MockClock) -> None:
    answers: Answers[Watched] = Answers()
    answer = Watched(trio.current_time() + 10)
    answers.keep("path", answer)
    await trio.sleep(9)
    assert answers.get("path") is answer
    await trio.sleep(1)
    assert answers.get("path") is None


async def test_the_latest_answer_counts_and_a_forgotten_one_does_not(autojump_clock: MockClock) -> None:
    answers: Answers[Watched] = Answers()
    later = Watched(trio.current_time() + 10)
    answers.keep("path", Watched(trio.current_time() + 10))
    answers.keep("path", later)
    assert answers.get("path") is later
    answers.forget("path")
    answers.forget("never known")
    assert answers.get("path") is None


async def test_answers_past_their_time_are_thrown_out(autojump_clock: MockClock) -> None:
    answers: Answers[Watched] = Answers()
    for number in range(10 * KEPT):
        answers.keep(str(number), Watched(trio.current_time() + 1))
        if number % 100 == 0:
            await trio.sleep(0.1)
    assert len(answers) <= KEPT


async def test_fresh_answers_are_not_looked_at_again_and_again(autojump_clock: MockClock) -> None:
    answers: Answers[Watched] = Answers()
    Watched.looks = 0
    count = 10 * KEPT
    for number in range(count):
        answers.keep(str(number), Watched(trio.current_time() + 600))
    assert len(answers) == count
    assert Watched.looks <= 2 * count
