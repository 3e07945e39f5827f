"""The numbers of a run, each from a history of a few events."""

from __future__ import annotations

import pytest

from jepsen_like.history.event import Type
from jepsen_like.report.figures import Tally, figures_of
from tests.jepsen_like.report.histories import Pen


def test_nothing_happened() -> None:
    """A run that was killed before its first event has numbers, too: they are 0."""
    figures = figures_of([])
    assert (figures.acked, figures.polled, figures.share_ok, figures.seconds) == (0, 0, 0.0, 0.0)


def test_outcomes_are_counted_by_f() -> None:
    """One send each way; that a client begins anew, or that somebody watches, is no use made."""
    pen = Pen()
    pen.send("a", 0, begin=1, end=2)
    pen.send("a", None, begin=2, end=3, outcome=Type.FAIL, error="NotLeader: n2 leads")
    pen.send("a", None, begin=3, end=4, outcome=Type.INFO, error="RequestTimeout: 1 s")
    pen.operation(0, "crash", begin=4, end=4.5, outcome=Type.INFO)
    pen.assign(["a"], at=5, start="beginning")
    pen.operation(0, "watermark", begin=6, end=7, outcome=Type.FAIL, error="NoLeader: of a")
    figures = figures_of(pen.history)
    assert figures.tallies["send"] == Tally(ok=1, fail=1, info=1)
    assert figures.tallies["crash"] == Tally(info=1)
    assert figures.asked == 3
    assert figures.share_ok == pytest.approx(1 / 3)
    assert figures.errors == {"NotLeader": 1, "RequestTimeout": 1}


def test_what_never_completed_is_unknown() -> None:
    """A client was still waiting when the run was killed."""
    pen = Pen()
    pen.send("a", 0, begin=1, end=2)
    pen.send("a", 1, begin=3, end=4)
    figures = figures_of(pen.history[:-1])
    assert figures.tallies["send"] == Tally(ok=1, info=1)
    assert figures.errors == {"never completed": 1}


def test_only_offsets_are_acknowledgements() -> None:
    """Of three values one has an offset; the client does not know about the others."""
    pen = Pen()
    asked = {"key": "a", "acks": -1, "values": [1, 2, 3]}
    value = {**asked, "offsets": [7, None, None]}
    pen.operation(0, "send", begin=0, end=1, asked=asked, value=value, outcome=Type.INFO)
    assert figures_of(pen.history).acked == 1


@pytest.mark.parametrize(("error", "share"), [(None, 1.0), ("RequestTimeout: 1 s", 0.0)])
def test_a_refused_swap_is_an_answer(error: str | None, share: float) -> None:
    """A compare-and-set that was told no was served; one that failed with an error was not."""
    pen = Pen()
    pen.operation(0, "cas", begin=0, end=1, outcome=Type.FAIL, error=error)
    assert figures_of(pen.history).share_ok == share


def test_rates_are_those_under_load() -> None:
    """Ten seconds of load and a final read: it is in the total of records, not in the rate."""
    pen = Pen()
    pen.phase(0, "load")
    pen.sends("a", [1, 2, 3, 4, 5])
    pen.poll({"a": [0, 1]}, begin=6, end=7)
    pen.phase(10, "final")
    pen.poll({"a": [0, 1, 2, 3, 4]}, begin=11, end=12)
    pen.phase(20, "end")
    figures = figures_of(pen.history)
    assert (figures.seconds, figures.load_seconds) == (20, 10)
    assert (figures.acked, figures.acked_per_second) == (5, 0.5)
    assert (figures.polled, figures.polled_per_second) == (7, 0.2)


def test_faults_are_counted_unless_skipped() -> None:
    """Two kills and a partition that could not be made."""
    pen = Pen()
    pen.fault("kill", begin=1, end=2)
    pen.fault("kill", begin=3, end=4)
    pen.fault("partition", begin=5, end=5, skipped="no network of its own")
    figures = figures_of(pen.history)
    assert (figures.faults, figures.skipped) == ({"kill": 2}, {"partition": 1})
    assert figures.fault_count == 2
