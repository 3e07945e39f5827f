"""The lower bound of how far behind a reader was; offsets and seconds are small numbers."""

from __future__ import annotations

import pytest

from jepsen_like.report.operations import operations_of
from jepsen_like.report.staleness import lags
from tests.jepsen_like.report.histories import Pen


def lags_of(pen: Pen) -> list[float]:
    return [lag for _, lag in lags(operations_of(pen.history))]


def test_who_reads_everything_is_not_behind() -> None:
    """A record is acknowledged, and the next poll brings it."""
    pen = Pen()
    pen.assign(["a"], at=0, start="beginning")
    pen.send("a", 0, begin=1, end=2)
    pen.poll({"a": [0]}, begin=5, end=6)
    assert lags_of(pen) == [0]


def test_behind_since_the_record_was_known() -> None:
    """It was acknowledged at 2, and the poll of 5 did not bring it."""
    pen = Pen()
    pen.assign(["a"], at=0, start="beginning")
    pen.send("a", 0, begin=1, end=2)
    pen.poll({}, begin=5, end=6)
    assert lags_of(pen) == [3]


def test_what_is_acknowledged_later_is_not_owed() -> None:
    """The poll was under way when the record became known."""
    pen = Pen()
    pen.assign(["a"], at=0, start="beginning")
    pen.send("a", 0, begin=1, end=5.5)
    pen.poll({}, begin=5, end=6)
    assert lags_of(pen) == [0]


def test_other_readers_and_high_watermarks_tell_as_well() -> None:
    """Nobody was told of an acknowledgement, but one reader saw the record, and another the end."""
    pen = Pen()
    pen.assign(["a", "b"], at=0, start="beginning")
    pen.poll({"a": [0]}, begin=1, end=2, process=7)
    pen.poll({}, begin=2, end=3, process=8, high_watermarks={"b": 4})
    pen.poll({"b": [0]}, begin=5, end=6)
    pen.poll({"a": [0]}, begin=7, end=8)
    assert lags_of(pen) == [0, 0, 3, 4]


def test_beginning_anew_owes_nothing_older() -> None:
    """A reader that starts over at 10 has not been behind since 2."""
    pen = Pen()
    pen.send("a", 0, begin=1, end=2)
    pen.assign(["a"], at=10, start="beginning")
    pen.poll({}, begin=11, end=12)
    assert lags_of(pen) == [1]


def test_from_the_end_owes_only_what_comes() -> None:
    """It was told to skip what is there."""
    pen = Pen()
    pen.send("a", 0, begin=1, end=2)
    pen.assign(["a"], at=10, start="end")
    pen.poll({}, begin=11, end=12)
    assert lags_of(pen) == [0]


@pytest.mark.parametrize("acks", [0, 1])
def test_what_may_be_lost_is_not_owed(acks: int) -> None:
    """A record that one broker had may be gone: nobody can bring it."""
    pen = Pen()
    pen.assign(["a"], at=0, start="beginning")
    pen.send("a", 0, begin=1, end=2, acks=acks)
    pen.poll({}, begin=5, end=6)
    assert lags_of(pen) == [0]
