"""The latency plot: how long operations took, by outcome, with quantile lines.

Owns the points and the lines over them. Of many points most are left out: of each moment and
outcome the slowest are kept, and every so many of the rest, so that no outlier is lost. The lines
are over all of them.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import nlargest
from typing import TYPE_CHECKING

from jepsen_like.history.event import Type
from jepsen_like.report import painting
from jepsen_like.report.aims import quantile
from jepsen_like.report.operations import operations_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from jepsen_like.history.event import Event
    from jepsen_like.report.operations import Operation
    from jepsen_like.report.painting import Scene

SHOWN = ("send", "poll", "read", "write", "cas")
PANELS_MAX = 3  # more would be too flat to read
MOMENTS = 250  # parts of the run in which points are thinned: a few pixels each
POINTS_MAX = 12  # of each moment and outcome; more cover each other
LINE_MOMENTS_MAX = 100  # points of a quantile line
LINE_OPERATIONS_MIN = 20  # for each moment, on the average; fewer make a line that jumps
LINES: tuple[tuple[float, painting.LineStyle], ...] = ((0.5, "-"), (0.99, ":"))
LATENCY_MS_MIN = 0.1  # what was quicker is drawn there: a logarithm has no zero
OUTCOMES = (
    (Type.OK, painting.OK_COLOUR, "ok"),
    (Type.FAIL, painting.FAIL_COLOUR, "not done (fail)"),
    (Type.INFO, painting.INFO_COLOUR, "unknown (info)"),
)


def write_latency(history: Sequence[Event], path: Path, *, title: str, subtitle: str) -> None:
    scene = painting.scene_of(history)
    by_f: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations_of(history):
        by_f[operation.f].append(operation)
    shown = [f for f in SHOWN if f in by_f][:PANELS_MAX] or ["send"]
    paper = painting.open_paper(title, subtitle)
    grid = paper.add_gridspec(
        len(shown),
        1,
        left=painting.LEFT,
        right=painting.RIGHT,
        top=painting.TOP,
        bottom=painting.BOTTOM,
        hspace=0.16,
    )
    panels = [paper.add_subplot(grid[row]) for row in range(len(shown))]
    for f, axes in zip(shown, panels, strict=True):
        painting.dress(axes, scene, f"{f}: {len(by_f[f]):,} operations", "milliseconds")
        _draw(axes, scene, by_f[f])
    painting.name_phases(panels[0], scene)
    _legends(panels, scene)
    for axes in panels[:-1]:
        axes.tick_params(labelbottom=False)
    panels[-1].set_xlabel("seconds since the run began, when the operation was asked", fontsize=10)
    painting.save(paper, path)


def _draw(axes: Axes, scene: Scene, operations: Sequence[Operation]) -> None:
    axes.set_yscale("log")
    latencies: list[float] = [1.0, 100.0]
    for outcome, colour, _ in OUTCOMES:
        points = thinned((one for one in operations if one.outcome is outcome), scene.end)
        heights = [_milliseconds(one) for one in points]
        size = 5 if outcome is Type.OK else 11
        axes.scatter(
            [one.begin for one in points], heights, s=size, color=colour, alpha=0.5, linewidths=0
        )
        latencies += heights
    answered = [one for one in operations if one.outcome is Type.OK]
    for share, style in LINES:
        times, heights = quantile_line(answered, share, scene.end)
        axes.plot(times, heights, color="black", linestyle=style, linewidth=1.3)
    axes.set_ylim(min(latencies) * 0.8, max(latencies) * 2)
    axes.yaxis.set_major_formatter("{x:,g}")


def _legends(panels: Sequence[Axes], scene: Scene) -> None:
    dots = [painting.dot(colour, label) for _, colour, label in OUTCOMES]
    lines = [
        painting.line("black", f"{share:.0%} of ok are quicker", style) for share, style in LINES
    ]
    first = painting.legend(panels[0], [*dots, *lines], "an operation was")
    if len(panels) > 1:
        painting.fault_legend(panels[1], scene)
    elif painting.fault_legend(panels[0], scene, top=0.75):
        panels[0].add_artist(first)  # a second legend takes the place of the first


def thinned(operations: Iterable[Operation], end: float) -> list[Operation]:
    """Of each moment the slowest, and of the rest every so many."""
    return [one for moment in _moments(operations, end, MOMENTS).values() for one in _few(moment)]


def _few(moment: list[Operation]) -> Iterator[Operation]:
    if len(moment) <= POINTS_MAX:
        yield from moment
        return
    slowest = POINTS_MAX // 3
    yield from nlargest(slowest, moment, key=lambda one: one.seconds)
    yield from moment[:: -(-len(moment) // (POINTS_MAX - slowest))]  # as they came: no selection


def quantile_line(
    operations: Sequence[Operation], share: float, end: float
) -> tuple[list[float], list[float]]:
    """(times, milliseconds), broken where nothing ended well."""
    count = min(max(len(operations) // LINE_OPERATIONS_MIN, 1), LINE_MOMENTS_MAX)
    moments = _moments(operations, end, count)
    times = [(place + 0.5) * end / count for place in range(count)]
    heights = [
        quantile([_milliseconds(one) for one in moments.get(place, ())], share)
        for place in range(count)
    ]
    return times, [float("nan") if height is None else height for height in heights]


def _moments(operations: Iterable[Operation], end: float, count: int) -> dict[int, list[Operation]]:
    found: dict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        found[min(int(operation.begin / end * count), count - 1)].append(operation)
    return found


def _milliseconds(operation: Operation) -> float:
    return max(operation.seconds * 1000, LATENCY_MS_MIN)
