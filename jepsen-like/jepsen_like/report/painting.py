"""What the plots share: paper, colours, phases, faults as shades and as lanes per node.

Owns the look. Writes one file when asked; draws with matplotlib's own objects and no global state,
so that nothing is left behind and no display is needed. Import it late: matplotlib is optional.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from jepsen_like.report.spans import end_of, faults_of, phases_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.legend import Legend

    from jepsen_like.history.event import Event
    from jepsen_like.report.spans import Fault, Phase

WIDTH_INCHES, HEIGHT_INCHES, DOTS_PER_INCH = 16, 9, 100
LEFT, RIGHT, TOP, BOTTOM = 0.065, 0.84, 0.848, 0.065  # of the paper; legends stand at the right
LEGEND_TOP = 1.03  # of the height of a panel
ENTRIES_MAX = 10  # more are set closer
OK_COLOUR, FAIL_COLOUR, INFO_COLOUR = "#2166ac", "#e69f00", "#c1121f"
POLL_COLOUR, GREY = "#1b7837", "#666666"
# Neighbours differ in hue and in lightness, so that many eyes can tell them apart.
KIND_COLOURS = (
    "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#7b3294", "#8c510a",
    "#56b4e9", "#b8a400", "#e7298a", "#35978f", "#878787", "#4d004b",
    "#1a9850", "#f4a582", "#4575b4", "#a6761d", "#fb6a4a", "#c2a5cf",
)  # fmt: skip
SHADE = 0.13  # opacity of a fault behind the curves: three on top of each other leave them readable
BAR_SHARE_MIN = 0.003  # of the width: a fault that lasts a moment is still seen
LETTER_SHARE = 0.0052  # of the width, for one letter of a phase's name
NOBODY = "no node"


LineStyle: TypeAlias = Literal["-", ":"]


class Scene(NamedTuple):
    """Attributes:
    end: of the history, in seconds; more than 0.
    colours: by kind of fault.
    """

    end: float
    phases: list[Phase]
    faults: list[Fault]
    colours: dict[str, str]


def scene_of(history: Sequence[Event]) -> Scene:
    faults = faults_of(history)
    kinds = sorted({fault.kind for fault in faults})
    colours = {kind: KIND_COLOURS[i % len(KIND_COLOURS)] for i, kind in enumerate(kinds)}
    return Scene(max(end_of(history), 1.0), phases_of(history), faults, colours)


def open_paper(title: str, subtitle: str) -> Figure:
    paper = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), dpi=DOTS_PER_INCH)
    FigureCanvasAgg(paper)
    paper.text(LEFT, 0.968, title, fontsize=15, fontweight="bold")
    paper.text(LEFT, 0.942, subtitle, fontsize=10, color=GREY)
    return paper


def save(paper: Figure, path: Path) -> None:
    paper.savefig(path, dpi=DOTS_PER_INCH)


def dress(axes: Axes, scene: Scene, title: str, unit: str) -> None:
    """Everything of a panel but its curves."""
    axes.set_title(title, loc="left", fontsize=10, pad=3)
    axes.set_ylabel(unit, fontsize=9)
    axes.set_xlim(0, scene.end)
    axes.grid(visible=True, color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for fault in scene.faults:
        colour = scene.colours[fault.kind]
        axes.axvspan(fault.begin, _seen_end(fault, scene), color=colour, alpha=SHADE, linewidth=0)
    for phase in scene.phases:
        axes.axvline(phase.begin, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)))


def name_phases(axes: Axes, scene: Scene) -> None:
    """Above the topmost panel, each name where its phase begins, stacked where they would touch."""
    ends: list[float] = []
    for phase in scene.phases:
        begin = phase.begin / scene.end
        level = next((i for i, end in enumerate(ends) if end <= begin), len(ends))
        ends[level : level + 1] = [begin + LETTER_SHARE * (len(phase.name) + 2)]
        axes.annotate(
            f"▸{phase.name}",
            (begin, 1),
            xytext=(0, 17 + 11 * level),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=9,
            color=GREY,
        )


def draw_lanes(axes: Axes, scene: Scene) -> None:
    """Which node was hit by what, and when. Faults that overlap on a node share its height."""
    lanes = _lanes(scene.faults)
    for place, (_, faults) in enumerate(lanes):
        tracks = _tracks(faults)
        height = 0.8 / max(len(tracks), 1)
        for level, track in enumerate(tracks):
            top = place - 0.4 + level * height
            for fault in track:
                axes.broken_barh(
                    [(fault.begin, _seen_end(fault, scene) - fault.begin)],
                    (top, height),
                    color=scene.colours[fault.kind],
                    linewidth=0,
                )
    axes.set_yticks(range(len(lanes)), [name for name, _ in lanes])
    axes.set_ylim(max(len(lanes), 1) - 0.5, -0.5)


def _lanes(faults: Sequence[Fault]) -> list[tuple[str, list[Fault]]]:
    nodes = sorted({node for fault in faults for node in fault.nodes})
    lanes = [(f"node {node}", [f for f in faults if node in f.nodes]) for node in nodes]
    nobodys = [fault for fault in faults if not fault.nodes]
    return lanes + ([(NOBODY, nobodys)] if nobodys else [])


def lane_count(scene: Scene) -> int:
    return len(_lanes(scene.faults))


def _tracks(faults: Sequence[Fault]) -> list[list[Fault]]:
    tracks: list[list[Fault]] = []
    for fault in faults:
        free = next((track for track in tracks if track[-1].end <= fault.begin), None)
        if free is None:
            tracks.append([fault])
        else:
            free.append(fault)
    return tracks


def _seen_end(fault: Fault, scene: Scene) -> float:
    return max(fault.end, fault.begin + BAR_SHARE_MIN * scene.end)


def fault_legend(axes: Axes, scene: Scene, *, top: float = LEGEND_TOP) -> Legend | None:
    """One entry for each kind, with how often it struck."""
    counts = dict.fromkeys(scene.colours, 0)
    for fault in scene.faults:
        counts[fault.kind] += 1
    handles = [
        Patch(color=colour, label=f"{kind} ({counts[kind]})")
        for kind, colour in scene.colours.items()
    ]
    if not handles:
        return None
    return legend(axes, handles, "shaded: faults (how many)", top=top)


def legend(
    axes: Axes, handles: Sequence[Line2D | Patch], title: str, *, top: float = LEGEND_TOP
) -> Legend:
    """At the right of the panel, where it hides nothing."""
    found = axes.legend(
        handles=handles,
        title=title,
        loc="upper left",
        bbox_to_anchor=(1.008, top),
        borderaxespad=0,
        frameon=False,
        fontsize=9 if len(handles) <= ENTRIES_MAX else 8,
        labelspacing=0.5 if len(handles) <= ENTRIES_MAX else 0.25,
        alignment="left",
    )
    found.get_title().set_fontsize(9)
    found.get_title().set_fontweight("bold")
    return found


def line(colour: str, label: str, style: LineStyle = "-") -> Line2D:
    return Line2D([], [], color=colour, label=label, linestyle=style, linewidth=1.8)


def dot(colour: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, label=label, linestyle="", marker="o", markersize=5)
