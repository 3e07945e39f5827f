"""Rounds as tables: medians, ratios of raftmq's figures to the connector's, and aims. Pure.

A round of a section has by title of each work what it took: seconds, CPU seconds of Spark with its
Python processes, and CPU seconds of the servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from benchmarks.peers.figures import shown
from benchmarks.peers.page import SPARK_TITLE, public

KAFKA, KAFKA_TUNED = "Kafka", "Kafka, tuned"
# Near the megabyte that a request of Kafka's may have, and time to fill it.
TUNED = {"linger.ms": "100", "batch.size": "1000000", "buffer.memory": "134217728"}
AIMS = {"sink": 1.2, "source": 3.0}  # of the connector's rate, at less CPU
COUNTED = {  # of which one is measured
    "few": "A microbatch of 10 rows, from topic to topic; CPU ms with a share of the query's start",
    "empty": "A trigger that finds nothing, CPU ms",
}
TITLES = {
    "sink": "Into a topic",
    "source": "Out of a topic",
    "copy": "A stream from topic to topic, `availableNow`, four microbatches",
}
COLUMNS = ("Spark's CPU", "servers' CPU", "together", "aim")
SECTION = """\
{title}

raftmq's source and sink of Spark beside Spark's own connector for Kafka, in one session
(`local[2]`) and one run. The command, which writes this section anew:

    {command}

Run on {date} at {commit}: {cpu}, {cores} cores, {system}, Python {python}. {versions}.
{rounds} round(s) after one that is not counted, {rows:,} rows with a key of 8 bytes.

Three brokers and three nodes of Kafka run all the time, and share the cores with Spark; at rest
they took {at_rest} of a core. Topics have 12 partitions and three replicas, two of which must be in
sync; `acks=all`, and nothing is synced before. Works take turns. Figures are medians of the rounds;
in brackets is the median of raftmq's through the connector's in the same round: of the tuned one
for many rows, as it is for few. Tuned: {tuned}.
CPU is of Spark with its Python processes, and of the servers of that side.
"""

Round = Mapping[str, Sequence[float]]


class Cell(NamedTuple):
    """A figure of one work; `ratio`: through the connector's, which itself has none."""

    value: float
    ratio: float | None


class Line(NamedTuple):
    """Attributes:
    speed: rows a second, or milliseconds of one.
    cpu: of Spark, of servers and of both: seconds for a million rows, or milliseconds for one.
    aim: "" where there is none.
    """

    title: str
    speed: Cell
    cpu: tuple[Cell, Cell, Cell]
    aim: str


def lines(section: str, rounds: Sequence[Round], rows: int) -> list[Line]:
    return [_line(section, title, rounds, rows) for title in rounds[0]]


def _line(section: str, title: str, rounds: Sequence[Round], rows: int) -> Line:
    base = base_of(section, title)
    own = [_figures(section, one[title], rows) for one in rounds]
    of_base = [_figures(section, one[base], rows) for one in rounds] if base else []
    speed, spark, servers, both = (
        _cell([one[at] for one in own], [one[at] for one in of_base]) for at in range(4)
    )
    return Line(title, speed, (spark, servers, both), _aim(section, speed.ratio, both.ratio))


def _figures(section: str, taken: Sequence[float], rows: int) -> tuple[float, ...]:
    """As a `Line` has them, of one round."""
    seconds, *cpu = taken
    cpu = [*cpu, sum(cpu)]
    if section in COUNTED:
        return tuple(1e3 * each for each in (seconds, *cpu))
    return (rows / seconds, *(each / rows * 1e6 for each in cpu))


def _cell(values: Sequence[float], bases: Sequence[float]) -> Cell:
    if not bases or min(bases) <= 0:  # too little CPU for the system's clock
        return Cell(median(values), None)
    ratios = (value / base for value, base in zip(values, bases, strict=True))
    return Cell(median(values), median(ratios))


def base_of(section: str, title: str) -> str | None:
    """With which work of the connector one of raftmq's is compared: the better one of its kind."""
    if title.startswith(KAFKA):
        return None
    kind = section.split()[0]
    if kind == "source":
        return KAFKA + title[title.index(":") :]
    return KAFKA if kind in COUNTED else KAFKA_TUNED  # to wait for more rows helps no small one


def _aim(section: str, speed: float | None, cpu: float | None) -> str:
    aim = AIMS.get(section.split()[0])
    if aim is None or speed is None or cpu is None:
        return ""
    said = "reached" if speed >= aim and cpu < 1 else "missed"
    return f"{aim:g} times the rate, less CPU: {said}"


# -- as text -----------------------------------------------------------------------------------


def tables(outcome: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """By title, with a head of columns as the first row of each."""
    found = {}
    for section, rounds in outcome["sections"].items():
        kind, _, size = section.partition(" ")
        if kind in COUNTED:
            title, head = COUNTED[kind], ["", "ms", *COLUMNS]
        else:
            title = f"{TITLES[kind]}: values of {int(size):,} B, CPU seconds a million rows"
            head = ["", "rows/s", *COLUMNS]
        made = lines(section, rounds, outcome["head"]["rows"])
        found[title] = [head, *map(_texts, made)]
    return found


def _texts(line: Line) -> list[str]:
    return [line.title, *map(_text, (line.speed, *line.cpu)), line.aim]


def _text(cell: Cell) -> str:
    text = shown(cell.value)
    return text if cell.ratio is None else f"{text} ({shown(cell.ratio)})"


def markdown(outcome: Mapping[str, Any]) -> str:
    """The section of the page."""
    text = [SECTION.format(title=SPARK_TITLE, **outcome["head"])]
    text += [f"**{public(line)}**\n" for line in outcome["warnings"]]
    for title, (head, *rows) in tables(outcome).items():
        bars = "|---" + "|---:" * (len(head) - 2) + "|---|"
        text += [f"### {title}", "", f"| {' | '.join(head)} |", bars]
        text += [*(f"| {' | '.join(row)} |" for row in rows), ""]
    return "\n".join(text)
