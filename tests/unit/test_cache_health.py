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


def test_down_until_something_succeeds_after_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    health = DiskHealth(30, clock)
    assert (health.state, health.worth_trying) == ("normal", True)
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            health.failed("writing stripe 3 of s3://bucket/a", ERROR)
        assert (health.state, health.worth_trying) == ("down", False)
        assert len(caplog.records) == 1
        assert "stripe 3 of s3://bucket/a: Input/output error" in caplog.text

        health.succeeded()  # of a write that was under way
        assert health.state == "down"
        clock.now += 31
        assert (health.state, health.worth_trying) == ("down", True)
        health.failed("writing stripe 4", ERROR)
        assert not health.worth_trying
        assert len(caplog.records) == 1

        clock.now += 31
        health.succeeded()
        assert (health.state, health.worth_trying) == ("normal", True)
        assert len(caplog.records) == 2
