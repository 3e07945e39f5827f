"""The summary of a run on one page of text: the verdict first, then figures and findings. Pure.

Owns the words. The first line alone must tell a reader whether to read on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.report.aims import aim_results, aims_table, recovery_table
from jepsen_like.report.judgement import FAILED, UNKNOWN, WORDS, outcome_of
from jepsen_like.report.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jepsen_like.checkers.finding import Finding
    from jepsen_like.checkers.verdict import Verdict
    from jepsen_like.report.figures import Figures
    from jepsen_like.report.recovery import Recovery
    from jepsen_like.report.surroundings import Surroundings

INDENT = "  "
EXAMPLES_SHOWN = 5
ERRORS_SHOWN = 8
KINDS_SHOWN = 4
LATENESS = {
    "late": "late, as readers saw it",
    "late in calm": "where nothing was broken",
    "late at the leader in calm": "and by the leader's clock",
}


class RunContent(NamedTuple):
    """Everything that a page about a run is made of."""

    verdict: Verdict
    figures: Figures
    recoveries: Sequence[Recovery]
    surroundings: Surroundings


def verdict_line(verdict: Verdict) -> str:
    outcome = outcome_of(verdict)
    word = WORDS[outcome]
    if outcome == FAILED:
        found = [f"{one.name} {one.count:,}" for one in verdict.failures]
        return f"{word}: {', '.join(found) or '; '.join(verdict.reasons)}"
    if outcome == UNKNOWN:
        return f"{word}: {'; '.join(verdict.reasons) or 'nothing was looked at'}"
    checks = sum(one.name not in verdict.not_looked_at for one in verdict.findings)
    return f"{word}: nothing wrong, by {checks} checks"


def setting_line(surroundings: Surroundings, figures: Figures) -> str:
    """What was asked for, and which kinds of faults came of it."""
    settings = surroundings.settings
    asked = f"{settings.workload} on {settings.nodes} nodes, seed {settings.seed}"
    how_long = (
        f"{settings.fault_events} of each"
        if settings.fault_events
        else f"{settings.time_limit:g} s"
    )
    struck = sorted(kind for kind, count in figures.faults.items() if count)
    share = f" ({len(struck)} of {len(settings.nemesis)} kinds)" if settings.nemesis else ""
    return f"{asked}, {how_long} of {kinds_words(struck)}{share}"


def kinds_words(kinds: Sequence[str]) -> str:
    """The first few; the table of faults names all."""
    rest = len(kinds) - KINDS_SHOWN
    more = [f"and {rest} more"] if rest > 0 else []
    return ", ".join([*kinds[:KINDS_SHOWN], *more]) or "no faults"


def numbers_line(figures: Figures) -> str:
    return (
        f"{figures.acked:,} records acknowledged, {figures.polled:,} polled, "
        f"{_counted(figures.fault_count, 'fault')}, {figures.share_ok:.1%} ok"
    )


def summary_of(content: RunContent, files: Iterable[str]) -> str:
    verdict, figures, recoveries, surroundings = content
    nodes = surroundings.settings.nodes
    sections = [
        (
            "Numbers",
            _numbers(figures)
            + _of_groups(verdict)
            + _of_transactions(verdict)
            + _of_schedules(verdict)
            + _of_retries(verdict),
        ),
        ("Faults", _faults(figures)),
        ("Findings, the most severe first", _findings(verdict)),
        ("Recovery, of faults with nothing else broken", _recovery(recoveries, nodes)),
        ("Not available on this machine", _missing(surroundings)),
        ("Made with", _made_with(surroundings)),
        ("Repeat it", INDENT + surroundings.command),
        ("Files", "\n".join(INDENT + file for file in files)),
    ]
    parts = [f"{title}\n{text}" for title, text in sections if text]
    return "\n\n".join([_head(content), *parts]) + "\n"


def _head(content: RunContent) -> str:
    verdict, figures, _, surroundings = content
    first = verdict_line(verdict)
    more = [f"{INDENT}{reason}" for reason in verdict.reasons if reason not in first]
    if surroundings.missing:
        more.append(f"{INDENT}not tested for want of: {', '.join(surroundings.missing)}")
    return "\n".join([first, INDENT + setting_line(surroundings, figures), *more])


def _numbers(figures: Figures) -> str:
    lines = [
        f"{figures.seconds:.1f} s, {figures.load_seconds:.1f} s of them with clients at work",
        f"{figures.acked:,} records acknowledged ({figures.acked_per_second:,.0f}/s), "
        f"{figures.polled:,} polled ({figures.polled_per_second:,.0f}/s under load)",
        f"{figures.share_ok:.1%} of what clients asked was ok; "
        f"the reader furthest behind was at least {figures.worst_lag_seconds:.2f} s behind",
    ]
    rows = [
        [f, f"{tally.ok:,}", f"{tally.fail:,}", f"{tally.info:,}"]
        for f, tally in figures.tallies.items()
    ]
    told = [f"{name} {count:,}" for name, count in figures.errors.items()]
    if told:
        rest = f", and {len(told) - ERRORS_SHOWN} more" if len(told) > ERRORS_SHOWN else ""
        lines.append(f"errors: {', '.join(told[:ERRORS_SHOWN])}{rest}")
    table = Table(["operation", "ok", "not done", "unknown"], rows).as_text(INDENT * 2)
    return "\n".join([*(INDENT + line for line in lines), *([table] if rows else [])])


def _of_groups(verdict: Verdict) -> str:
    told = verdict.figures
    if not told.get("groups"):
        return ""
    return (
        f"\n{INDENT}{told['records handed out to groups']:,} records handed out to "
        f"{_counted(told['groups'], 'group')} in {told['generations']:,} generations, "
        f"{_counted(told['commits'], 'commit')}"
    )


def _of_transactions(verdict: Verdict) -> str:
    told = verdict.figures
    if not told.get("transactions"):
        return ""
    return (
        f"\n{INDENT}{told['decisions']:,} transactions decided, {told['aborts']:,} aborted, "
        f"{told['never told']:,} never told; {_counted(told['take overs'], 'take-over')}, "
        f"{_counted(told['strokes'], 'fault')} with one open, {told['late']:,} seen late, "
        f"{_counted(told['installed'], 'snapshot')} of the quorum installed"
    )


def _of_schedules(verdict: Verdict) -> str:
    told = verdict.figures
    if "scheduled records acknowledged" not in told:
        return ""
    lines = [
        f"{told['scheduled records acknowledged']:,} scheduled records acknowledged, "
        f"{told['scheduled records delivered']:,} delivered, "
        f"{told['scheduled records cancelled']:,} cancelled, "
        f"{told['scheduled records not due']:,} not due",
    ]
    for what, shown in LATENESS.items():
        if f"ms {what} p50" in told:
            figures = (f"{name} {told[f'ms {what} {name}']:,} ms" for name in ("p50", "p99", "max"))
            lines.append(f"{shown}: {', '.join(figures)}")
    return "".join(f"\n{INDENT}{line}" for line in lines)


def _of_retries(verdict: Verdict) -> str:
    told = verdict.figures
    if "retries handled" not in told:
        return ""
    return (
        f"\n{INDENT}{told['retries handled']:,} records handled by groups with retries, "
        f"{told['retries returns']:,} came back, "
        f"{_counted(told['retries letters'], 'dead letter')}, "
        f"{_counted(told['retries crashes'], 'crash', 'crashes')} of members"
    )


def _faults(figures: Figures) -> str:
    kinds = sorted(figures.faults | figures.skipped)
    rows = [
        [kind, str(figures.faults.get(kind, 0)), str(figures.skipped.get(kind, 0))]
        for kind in kinds
    ]
    if not rows:
        return INDENT + "none"
    total = ["all", str(figures.fault_count), str(sum(figures.skipped.values()))]
    return Table(["kind", "done", "skipped"], rows, total).as_text(INDENT)


def _findings(verdict: Verdict) -> str:
    found = [line for one in verdict.findings if one.count for line in _finding_lines(one)]
    looked_at = [one for one in verdict.findings if one.name not in verdict.not_looked_at]
    clean = [one for one in looked_at if not one.count]
    lines = list(found)
    if clean:
        lines.append(f"looked for, and not found: {', '.join(one.name for one in clean)}")
    lines += [f"{one.name}: {_figures(one)}" for one in clean if any(one.figures.values())]
    lines += [f"not looked at: {told}" for told in verdict.not_judged]
    return "\n".join(INDENT + line for line in lines)


def _finding_lines(finding: Finding) -> list[str]:
    word = "" if finding.fails else " (allowed)"
    figures = f"; {_figures(finding)}" if finding.figures else ""
    shown = [f"{INDENT}- {example}" for example in finding.examples[:EXAMPLES_SHOWN]]
    rest = finding.count - len(shown)
    more = [f"{INDENT}  and {rest:,} more"] if shown and rest > 0 else []
    return [f"{finding.name}: {finding.count:,}{word}{figures}", *shown, *more]


def _figures(finding: Finding) -> str:
    return ", ".join(f"{name} {figure:,}" for name, figure in finding.figures.items())


def _recovery(recoveries: Sequence[Recovery], node_count: int) -> str:
    if not recoveries:
        return ""
    notes = [
        "ack: from the fault to the first acknowledgement of the slowest key;",
        "silent: the longest time without one while it lasted;",
        "whole: from its end until all replicas were in sync",
    ]
    tables = [
        recovery_table(recoveries).as_text(INDENT),
        aims_table(aim_results(recoveries, node_count=node_count)).as_text(INDENT),
    ]
    return "\n\n".join(["\n".join(INDENT + note for note in notes), *tables])


def _missing(surroundings: Surroundings) -> str:
    return "\n".join(f"{INDENT}{name}: {reason}" for name, reason in surroundings.missing.items())


def _made_with(surroundings: Surroundings) -> str:
    commit = surroundings.commit or "unknown"
    versions = [f"{name} {version}" for name, version in surroundings.versions.items()]
    where = f"{surroundings.machine}; began {surroundings.began_at}"
    return f"{INDENT}commit {commit}; {', '.join(versions)}\n{INDENT}{where}"


def _counted(count: int, noun: str, many: str = "") -> str:
    return f"{count:,} {noun if count == 1 else many or f'{noun}s'}"
