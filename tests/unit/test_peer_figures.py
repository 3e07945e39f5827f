"""The table of `benchmarks.peers`: what is lost comes first, and nothing is compared unfairly."""

from __future__ import annotations

from benchmarks.peers.figures import Figure, is_lost, medians, row, rows, shown

LATENCY = Figure("p50_ms", "latency", False)
RATE = Figure("produce_s", "rate", True)
LATE = Figure("late_ms", "sent late", None)


def test_medians_are_of_the_rounds_in_which_a_peer_has_the_figure() -> None:
    """One of three turns of a peer failed: the other two count."""
    rounds = [
        {"raftmq": {"p50_ms": 3.0}, "nats": {"p50_ms": 1.0}},
        {"raftmq": {"p50_ms": 1.0}},
        {"raftmq": {"p50_ms": 2.0}, "nats": {"p50_ms": 2.0}},
    ]
    assert medians(rounds) == {"raftmq": {"p50_ms": 2.0}, "nats": {"p50_ms": 1.5}}


def test_a_row_is_lost_where_one_peer_is_better() -> None:
    """A higher latency than the best peer's is lost, a lower rate too, whoever else is worse."""
    found = row(LATENCY, {"raftmq": {"p50_ms": 2.0}, "a": {"p50_ms": 1.0}, "b": {"p50_ms": 4.0}})
    assert (found.ratios, found.behind) == ({"a": 2.0, "b": 0.5}, 2.0)
    assert is_lost(found)
    found = row(RATE, {"raftmq": {"produce_s": 100.0}, "a": {"produce_s": 400.0}})
    assert (found.ratios, found.behind) == ({"a": 0.25}, 4.0)
    assert not is_lost(row(RATE, {"raftmq": {"produce_s": 9.0}, "a": {"produce_s": 8.0}}))


def test_the_worst_loss_is_on_top_and_wins_keep_their_order() -> None:
    """Somebody who reads the first row of the page reads the worst figure of raftmq."""
    figures = [Figure(key, key, False) for key in ("won", "lost", "won_more", "lost_more")]
    own = {"won": 1.0, "lost": 2.0, "won_more": 1.0, "lost_more": 3.0}
    other = {"won": 2.0, "lost": 1.0, "won_more": 9.0, "lost_more": 1.0}
    found = rows(figures, {"raftmq": own, "a": other})
    assert [one.figure.key for one in found] == ["lost_more", "lost", "won", "won_more"]


def test_what_cannot_be_compared_is_not_lost() -> None:
    """A peer that cannot sync has no such figure; conditions of the machine are no contest."""
    assert row(LATENCY, {"raftmq": {"p50_ms": 2.0}, "a": {}}).behind is None
    assert row(LATENCY, {"raftmq": {}, "a": {"p50_ms": 1.0}}).behind is None
    assert not is_lost(row(LATE, {"raftmq": {"late_ms": 2.0}, "a": {"late_ms": 1.0}}))
    assert rows([RATE], {"raftmq": {}, "a": {}}) == []


def test_figures_are_shown_with_three_digits_or_more() -> None:
    assert [shown(each) for each in (None, 0.123, 12.34, 123.4, 31_234.5)] == [
        *("-", "0.12", "12.3", "123", "31,234")
    ]
