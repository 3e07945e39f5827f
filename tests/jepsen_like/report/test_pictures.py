"""The pictures: they are written for whatever happened, and points that stand out stay in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jepsen_like.history.event import Type
from jepsen_like.report.latency import POINTS_MAX, quantile_line, thinned, write_latency
from jepsen_like.report.operations import Operation
from jepsen_like.report.painting import draw_lanes, fault_legend, open_paper, scene_of
from jepsen_like.report.timeline import Rates, write_timeline
from tests.jepsen_like.report.histories import Pen, whole_run

if TYPE_CHECKING:
    from pathlib import Path

    from jepsen_like.history.event import Event

PNG_BYTES_MIN = 10_000


def registers() -> list[Event]:
    pen = Pen()
    for step in range(50):
        f = ("read", "write", "cas")[step % 3]
        pen.operation(step % 4, f, begin=step, end=step + 0.5, value={"key": "r", "found": 1})
    return pen.history


def only_polls() -> list[Event]:
    pen = Pen()
    pen.poll({"a": [0]}, begin=1, end=1)
    pen.fault("kill", begin=1, end=2)
    return pen.history


@pytest.mark.parametrize(
    "history",
    [whole_run(seed=3, seconds=60, operations=500), registers(), only_polls(), []],
    ids=["whole run", "registers", "only polls", "nothing"],
)
@pytest.mark.parametrize("write", [write_timeline, write_latency])
def test_a_picture_of_anything(write: type, history: list[Event], tmp_path: Path) -> None:
    """A whole run, one without sends, one with a single poll, and one that never began."""
    path = tmp_path / "picture.png"
    write(history, path, title="PASSED", subtitle="somewhere")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > PNG_BYTES_MIN


def test_a_kind_has_one_entry_in_the_legend() -> None:
    """Three faults of two kinds, and how often each struck."""
    pen = Pen()
    pen.fault("kill", begin=1, end=2)
    pen.fault("kill", begin=3, end=4)
    pen.fault("pause", begin=5, end=6)
    legend = fault_legend(open_paper("", "").add_subplot(), scene_of(pen.history))
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["kill (2)", "pause (1)"]


def test_each_node_has_a_lane() -> None:
    """Nodes 1 and 3 were hit, and something hit nobody in particular."""
    pen = Pen()
    pen.fault("kill", begin=1, end=2, nodes=(3, 1))
    pen.fault("packets", begin=1, end=3, nodes=())
    axes = open_paper("", "").add_subplot()
    draw_lanes(axes, scene_of(pen.history))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["node 1", "node 3", "no node"]


def operation(begin: float, seconds: float) -> Operation:
    return Operation(0, "send", begin, begin + seconds, Type.OK, None, None, None)


def test_few_points_all_stay() -> None:
    """Nothing is left out where there is room."""
    few = [operation(1.0, took) for took in (0.1, 0.2, 0.3)]
    assert thinned(few, 100.0) == few


def test_the_slowest_point_stays() -> None:
    """Ten thousand quick operations in one moment, and one that took seconds."""
    slow = operation(0.15, 7.0)
    left = thinned([*(operation(0.1, 0.001) for _ in range(10_000)), slow], 100.0)
    assert slow in left
    assert len(left) <= POINTS_MAX


def test_a_line_has_a_hole_where_nothing_ended_well() -> None:
    """40 operations in the first half of the time, none in the second."""
    times, heights = quantile_line([operation(1.0, 0.002) for _ in range(40)], 0.5, 100.0)
    assert times == [25.0, 75.0]
    assert heights[0] == pytest.approx(2.0)
    assert heights[1] != heights[1]  # not a number


def test_rates_are_counts_by_seconds() -> None:
    """Bins of half a second at least: six in one of them are twelve a second."""
    rates = Rates(10.0).of([(0.1, 2), (0.4, 4), (10.0, 1)])
    assert (rates[0], rates[20], sum(rates)) == (12.0, 2.0, 14.0)
