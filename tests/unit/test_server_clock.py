"""The time in signatures, where this machine's clock is wrong."""

from __future__ import annotations

import logging
import time
from datetime import datetime, timezone
from email.utils import formatdate

import pytest
from botocore.auth import SIGV4_TIMESTAMP

from fusestripe.origins.s3_client import ServerClock

HOUR = 3600.0


def signed_at(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime(SIGV4_TIMESTAMP)


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_every_request_that_was_signed_by_the_wrong_clock_may_be_sent_again(
    ahead: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Those under way together are refused one after the other; the log has one line."""
    caplog.set_level(logging.WARNING)
    clock = ServerClock()
    now = time.time()
    date, signed = formatdate(now + ahead), signed_at(now)
    for _ in range(8):
        assert clock.set_by(date, signed, "s3")
    assert abs(clock.now() - now - ahead) < 10
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("date", "signed"), [("", ""), ("never", "20260101T000000Z"), (formatdate(0), "")])
def test_what_is_no_time_sets_nothing(date: str, signed: str) -> None:
    clock = ServerClock()
    assert clock.set_by(date, signed, "s3") == ""
    assert abs(clock.now() - time.time()) < 10


def test_a_request_that_was_signed_by_the_right_time_is_refused_for_another_reason() -> None:
    clock = ServerClock()
    assert clock.set_by(formatdate(time.time()), signed_at(time.time()), "s3") == ""
