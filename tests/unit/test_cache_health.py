"""The health of the cache disk: one line a change, and a rest before it is tried again."""

from __future__ import annotations

import errno
import logging

import pytest

from fusestripe.cache.health import DiskHealth

ERROR = OSError(errno.EIO, "Input/output error")


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_unstable_and_down_until_something_succeeds_after_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    health = DiskHealth((1, 5, 30), clock)

    def fail() -> None:
        for _ in range(1000):
            health.failed("writing stripe 3 of s3://bucket/a", ERROR)

    assert (health.state, health.worth_trying) == ("normal", True)
    with caplog.at_level(logging.WARNING):
        fail()
        assert (health.state, health.worth_trying) == ("unstable", False)
        assert len(caplog.records) == 1
        assert "stripe 3 of s3://bucket/a: Input/output error" in caplog.text

        health.succeeded()  # of a write that was under way
        assert health.state == "unstable"
        clock.now += 1
        assert (health.state, health.worth_trying) == ("unstable", True)
        fail()
        assert (health.state, health.worth_trying) == ("unstable", False)
        clock.now += 5
        assert len(caplog.records) == 1
        fail()
        assert (health.state, health.worth_trying) == ("down", False)
        assert len(caplog.records) == 2
        for _ in range(3):  # an attempt in so many seconds, however often it fails
            clock.now += 30
            assert (health.state, health.worth_trying) == ("down", True)
            fail()
            assert not health.worth_trying
        assert len(caplog.records) == 2

        clock.now += 30
        health.succeeded()
        assert (health.state, health.worth_trying) == ("normal", True)
        assert len(caplog.records) == 3
        fail()
        assert health.state == "unstable"
        clock.now += 1
        health.succeeded()
        assert health.state == "normal"


def test_down_while_it_does_not_answer() -> None:
    health = DiskHealth()
    health.hangs(8)
    assert (health.state, health.worth_trying) == ("down", False)
    health.answers()
    assert (health.state, health.worth_trying) == ("normal", True)
