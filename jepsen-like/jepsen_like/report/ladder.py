"""The table of several runs, with their totals.

Owns the columns and the totals. Pure but for reading the folders. A run that left nothing behind
has a row, too: it proves nothing, and must not be overlooked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.report.aims import aim_results, aims_table, merged, recovery_table
from jepsen_like.report.judgement import FAILED, PASSED, UNKNOWN, WORDS, anomalies_of, outcome_of
from jepsen_like.report.summary import kinds_words
from jepsen_like.report.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jepsen_like.report.folder import RunFolder
    from jepsen_like.report.summary import RunContent

HEADER = (
    "run", "workload", "nemeses", "seed", "seconds", "acked", "faults", "ok %", "anomalies",
    "verdict",
)  # fmt: skip


class Rung(NamedTuple):
    """`content` None: the run left nothing behind."""

    name: str
    content: RunContent | None


class Ladder:
    """The tables of several runs, in the order in which they were made."""

    def __init__(self, rungs: Sequence[Rung]) -> None:
        self._rungs = rungs
        self._contents = [rung.content for rung in rungs if rung.content]

    def runs(self) -> Table:
        return Table(HEADER, [_row(rung) for rung in self._rungs], self._totals())

    def recovery(self) -> Table:
        return recovery_table([one for content in self._contents for one in content.recoveries])

    def aims(self) -> Table:
        return aims_table(
            merged(
                [
                    aim_results(content.recoveries, node_count=content.surroundings.settings.nodes)
                    for content in self._contents
                ]
            )
        )

    def as_text(self) -> str:
        return "\n\n".join(table.as_text() for table in self._tables()) + "\n"

    def as_markdown(self) -> str:
        return "\n\n".join(table.as_markdown() for table in self._tables()) + "\n"

    def _tables(self) -> list[Table]:
        has_faults = any(content.recoveries for content in self._contents)
        return [self.runs(), *([self.recovery(), self.aims()] if has_faults else [])]

    def _totals(self) -> list[str]:
        figures = [content.figures for content in self._contents]
        asked = sum(one.asked for one in figures)
        answered = sum(one.asked * one.share_ok for one in figures)
        return [
            _runs_word(len(self._rungs)),
            "",
            "",
            "",
            f"{sum(one.seconds for one in figures):,.0f}",
            f"{sum(one.acked for one in figures):,}",
            f"{sum(one.fault_count for one in figures):,}",
            f"{100 * answered / asked:.1f}" if asked else "-",
            f"{sum(anomalies_of(content.verdict) for content in self._contents):,}",
            _together(
                outcome_of(content.verdict) if content else UNKNOWN for _, content in self._rungs
            ),
        ]


def ladder_of(runs: Iterable[RunFolder]) -> Ladder:
    return Ladder([Rung(run.path.name, run.content_if_any()) for run in runs])


def ladder_table(runs: Iterable[RunFolder]) -> str:
    """As Markdown: the runs, how they recovered, and whether that was quick enough."""
    return ladder_of(runs).as_markdown()


def _row(rung: Rung) -> list[str]:
    if rung.content is None:
        return [rung.name, *(["-"] * (len(HEADER) - 2)), WORDS[UNKNOWN]]
    verdict, figures, _, surroundings = rung.content
    settings = surroundings.settings
    return [
        rung.name,
        settings.workload
        if settings.nodes == 3
        else f"{settings.workload}, {settings.nodes} nodes",
        kinds_words(settings.nemesis),
        str(settings.seed),
        f"{figures.seconds:,.0f}",
        f"{figures.acked:,}",
        f"{figures.fault_count:,}",
        f"{100 * figures.share_ok:.1f}",
        f"{anomalies_of(verdict):,}",
        WORDS[outcome_of(verdict)],
    ]


def _runs_word(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _together(outcomes: Iterable[str]) -> str:
    """The worst of them."""
    found = set(outcomes) or {UNKNOWN}
    return WORDS[next(one for one in (FAILED, UNKNOWN, PASSED) if one in found)]
