"""The timeline plot of a run: operations per second by outcome, with phases and faults.

Owns the rows of the plot and the counting by second. The final reads go over everything once more;
they may leave the plot at the top, so that the load can be seen.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from jepsen_like.history.event import WATCH, Type
from jepsen_like.report import painting
from jepsen_like.report.operations import (
    SEND,
    acknowledged_offsets,
    operations_of,
    polled_count,
)
from jepsen_like.report.spans import load_span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from jepsen_like.history.event import Event
    from jepsen_like.report.operations import Operation
    from jepsen_like.report.painting import Scene

BINS = 300  # about three pixels each
BIN_SECONDS_MIN = 0.5  # shorter ones would show single operations
HEADROOM = 1.15  # of the highest rate under load, before the curve leaves the plot


class Rates:
    """Counts by time, as rates."""

    def __init__(self, end: float) -> None:
        self.width = max(BIN_SECONDS_MIN, end / BINS)
        self.edges = [i * self.width for i in range(int(end / self.width) + 2)]

    def of(self, counted: Iterable[tuple[float, int]]) -> list[float]:
        """A second, for each bin between edges; `counted`: (time, how many)."""
        counts = [0] * (len(self.edges) - 1)
        for time, count in counted:
            counts[int(time / self.width)] += count
        return [count / self.width for count in counts]


def write_timeline(history: Sequence[Event], path: Path, *, title: str, subtitle: str) -> None:
    scene = painting.scene_of(history)
    operations = operations_of(history)
    rates = Rates(scene.end)
    load_end = load_span(history)[1]
    paper = painting.open_paper(title, subtitle)
    lanes = 0.35 + 0.22 * painting.lane_count(scene)
    grid = paper.add_gridspec(
        5,
        1,
        height_ratios=[1, 1, 0.8, 0.6, lanes],
        left=painting.LEFT,
        right=painting.RIGHT,
        top=painting.TOP,
        bottom=painting.BOTTOM,
        hspace=0.38,
    )
    rows = [paper.add_subplot(grid[row]) for row in range(5)]
    _draw_done(rows[0], scene, rates, operations, load_end)
    _draw_polled(rows[1], scene, rates, operations, load_end)
    _draw_trouble(rows[2], scene, rates, operations)
    _draw_in_sync(rows[3], scene, history)
    painting.dress(rows[4], scene, "faults, by the node that they hit", "")
    painting.draw_lanes(rows[4], scene)
    painting.fault_legend(rows[0], scene)
    painting.name_phases(rows[0], scene)
    for row in rows[:-1]:
        row.tick_params(labelbottom=False)
    rows[-1].set_xlabel("seconds since the run began", fontsize=10)
    painting.save(paper, path)


def _draw_done(
    axes: Axes, scene: Scene, rates: Rates, operations: Sequence[Operation], load_end: float
) -> None:
    if any(operation.f == SEND for operation in operations):
        title, unit = "acknowledged", "records/s"
        counted = [(one.end, len(acknowledged_offsets(one))) for one in operations]
    else:
        title, unit = "operations that were answered", "operations/s"
        asked = [one for one in operations if not one.is_by_the_way]
        counted = [(one.end, int(one.is_answered)) for one in asked]
    painting.dress(axes, scene, title, unit)
    _fill(axes, rates, rates.of(counted), painting.OK_COLOUR, load_end)


def _draw_polled(
    axes: Axes, scene: Scene, rates: Rates, operations: Sequence[Operation], load_end: float
) -> None:
    painting.dress(axes, scene, "polled by all readers together", "records/s")
    counted = [(operation.end, polled_count(operation)) for operation in operations]
    _fill(axes, rates, rates.of(counted), painting.POLL_COLOUR, load_end)


def _draw_trouble(axes: Axes, scene: Scene, rates: Rates, operations: Sequence[Operation]) -> None:
    troubled = [one for one in operations if not (one.is_answered or one.is_by_the_way)]
    fails = rates.of((one.end, 1) for one in troubled if one.outcome is Type.FAIL)
    infos = rates.of((one.end, 1) for one in troubled if one.outcome is Type.INFO)
    both = [fail + info for fail, info in zip(fails, infos, strict=True)]
    painting.dress(axes, scene, "not done, or nobody knows", "operations/s")
    axes.stairs(both, rates.edges, fill=True, color=painting.INFO_COLOUR)
    axes.stairs(fails, rates.edges, fill=True, color=painting.FAIL_COLOUR)
    axes.set_ylim(0, max(max(both), 1.0) * HEADROOM)
    handles = [
        painting.line(painting.INFO_COLOUR, "unknown (info)"),
        painting.line(painting.FAIL_COLOUR, "not done (fail)"),
    ]
    painting.legend(axes, handles, "operations")


def _draw_in_sync(axes: Axes, scene: Scene, history: Sequence[Event]) -> None:
    painting.dress(axes, scene, "partitions with a leader, and with all replicas in sync", "%")
    seen = [event for event in history if event.process == WATCH and event.f == "isr"]
    times = [event.time for event in seen]
    for name, colour in (("led", painting.GREY), ("whole", painting.POLL_COLOUR)):
        shares = [_share(event, name) for event in seen]
        axes.step(times, shares, where="post", color=colour, linewidth=1.5)
    axes.set_ylim(-4, 108)
    axes.set_yticks([0, 50, 100])
    handles = [
        painting.line(painting.GREY, "has a leader"),
        painting.line(painting.POLL_COLOUR, "all in sync"),
    ]
    painting.legend(axes, handles, "partitions")


def _share(event: Event, name: str) -> float:
    """In percent; a gap without an answer, or without partitions."""
    if event.type is not Type.OK or not event.value["partitions"]:
        return math.nan
    return float(100 * event.value[name] / event.value["partitions"])


def _fill(axes: Axes, rates: Rates, heights: list[float], colour: str, load_end: float) -> None:
    axes.stairs(heights, rates.edges, fill=True, color=colour, alpha=0.8)
    under_load = [
        height
        for edge, height in zip(rates.edges, heights, strict=False)
        if edge + rates.width <= load_end
    ]
    top = max(max(under_load, default=0.0), 1.0) * HEADROOM
    axes.set_ylim(0, top)
    if max(heights) > top:
        axes.annotate(
            f"final reads: up to {max(heights):,.0f}/s",
            (1, 1),
            xytext=(0, 3),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            fontsize=9,
            color=painting.GREY,
        )
