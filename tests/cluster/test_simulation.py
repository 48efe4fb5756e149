"""Jobs of many nodes, by the product's own rules in virtual time."""

from __future__ import annotations

from math import log2
from pathlib import Path

import pytest

from tests.cluster.simulation import report
from tests.cluster.simulation.job import Mode, Outcome, Setup, simulate
from tests.cluster.simulation.report import plot, row, table_of_rows

FEW, MANY = 10, 50


def of_both(mode: Mode, stripes: int) -> tuple[Outcome, Outcome]:
    few, many = (simulate(Setup(nodes, mode, stripes)) for nodes in (FEW, MANY))
    return few, many


@pytest.mark.parametrize(("mode", "stripes"), [("read", 192), ("prefetch", 512)])
def test_time_grows_no_faster_than_the_logarithm_of_the_nodes(mode: Mode, stripes: int) -> None:
    few, many = of_both(mode, stripes)
    assert many.seconds / few.seconds <= log2(MANY) / log2(FEW)
    for outcome in (few, many):
        # The origin sends each byte once, whoever wants it.
        assert outcome.from_origin == 1.0
        assert outcome.deepest <= 2 * log2(outcome.setup.nodes) + 1
        assert outcome.rate > 0.7 * outcome.setup.link


def test_without_sending_on_time_grows_with_the_nodes() -> None:
    few, many = (simulate(Setup(nodes, "read", 64, fanout=1 << 30, busy=1 << 30)) for nodes in (FEW, MANY))
    assert many.seconds > 1.5 * few.seconds
    assert many.deepest == 1


def test_readers_in_the_same_order_do_not_use_up_the_links_of_the_first() -> None:
    plain = simulate(Setup(MANY, "read", 192, busy=1 << 30))
    balanced = simulate(Setup(MANY, "read", 192))
    assert plain.most_sent > 1.8
    assert balanced.most_sent < 1.5
    assert balanced.rate > 1.3 * plain.rate


def test_who_begins_late_gets_it_as_fast_as_its_link_goes() -> None:
    outcome = simulate(Setup(FEW, "prefetch", 256, late=4.0))
    ideal = 256 * outcome.setup.stripe_size / outcome.setup.link
    # It owns a tenth, and has that already.
    assert 0.8 * ideal < outcome.last_took < 1.1 * ideal
    assert outcome.from_origin == 1.0


def test_the_same_setup_gives_the_same() -> None:
    setup = Setup(FEW, "prefetch", 64)
    assert simulate(setup) == simulate(setup)


def test_what_is_shown_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "FILE", 1000 * Setup(2).stripe_size)
    monkeypatch.setattr(report, "STRIPES", {"read": 64, "prefetch": 64})
    one = row(2)
    assert 1.0 <= one.owned < 1.2
    assert one.alone >= one.ideal
    assert table_of_rows([one]).row_count == 1
    plot([one], tmp_path / "peers.svg")
    assert "without peers" in (tmp_path / "peers.svg").read_text()
