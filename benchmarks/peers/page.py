"""The outcome of a run as a document: as tables on a terminal, and as the page `docs/PEERS.md`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table

from benchmarks.peers.environment import CHECKOUT
from benchmarks.peers.figures import CONDITIONS, FIGURES, SYNCED, Row, is_lost, medians, rows, shown
from benchmarks.peers.known import PEERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

    from benchmarks.peers.figures import Figures

PAGE = CHECKOUT / "docs/PEERS.md"
HEAD = """\
# Beside other queues

raftmq and its peers on one machine, in one run. The command, which installs each peer into an
environment of its own and writes this page anew:

    {command}

Run on {date} at {commit}: {cpu}, {cores} cores, {system}, Python {python}. {rounds} round(s),
seconds of each case times {scale:g}.

Three servers of a peer, three replicas, and one client process share the cores. The peers take
turns in each round, the order rotates, and each turn has new servers without data. Records are of
1 KiB, in one log: a topic of one partition, a stream. All clients are Python's. Figures are medians
of the rounds; in brackets is raftmq's through the peer's. A row is lost where any peer is better,
and the row that is lost by most stands first. Synced: each record is on the disks before it is
acknowledged. The load is one program, only the client differs; latency counts from when a record
was due, by a timer of the kernel, until its acknowledgement.
"""
CONDITIONS_TITLE = "What loaded the machine"
CONDITIONS_HEAD = """\
How late a record was sent is part of its latency. Where threads waited for a core for longer than
they ran (a share above 0.5), latencies say more of the machine than of the peer.
"""
SPARK_TITLE = "## Spark, beside its connector for Kafka"
OTHERS_CORES_MAX = 0.3
PLACE = re.compile(r"\w+://\S+|(?:/[\w.+@-]+){2,}")


class Outcome(NamedTuple):
    """Attributes:
    head: what stands above the tables: command, date, commit, machine.
    versions: by peer.
    skipped: by peer, why.
    failed: turns that brought nothing, each with its reason.
    rounds: figures by peer.
    """

    head: Mapping[str, Any]
    versions: Mapping[str, Mapping[str, str]]
    skipped: Mapping[str, str]
    failed: Sequence[str]
    rounds: Sequence[Mapping[str, Figures]]

    def by_peer(self) -> dict[str, Figures]:
        found = medians(self.rounds)
        return {peer: found[peer] for peer in PEERS if peer in found}


def show(console: Console, outcome: Outcome) -> None:
    for title, found in _sections(outcome):
        table = Table("", *_names(outcome), title=title)
        for one in found:
            table.add_row(one.figure.title, *_cells(outcome, one))
        console.print(table)
    for peer, versions in outcome.versions.items():
        console.print(f"{PEERS[peer].title}: {_listed(versions)}")
    for line in _warnings(outcome):
        console.print(line, style="bold red")


def page(outcome: Outcome) -> str:
    """Markdown."""
    lines = [HEAD.format(**outcome.head)]
    lines += [f"**{public(line)}**\n" for line in _warnings(outcome)]
    for title, found in _sections(outcome):
        about = [CONDITIONS_HEAD] if title == CONDITIONS_TITLE else []
        lines += ["", f"## {title}", "", *about, *_markdown(outcome, found)]
    lines += ["", "## What was run", ""]
    lines += ["| peer | versions | acknowledged | synced |", "|---|---|---|---|"]
    for peer, versions in outcome.versions.items():
        kind = PEERS[peer]
        synced = kind.synced or "cannot be had: it leaves syncing to the system"
        lines.append(f"| {kind.title} | {_listed(versions)} | {kind.acknowledged} | {synced} |")
    return "\n".join([*lines, ""])


def spark_section(text: str) -> str:
    """Of the page as it is: the last one, which `benchmarks.spark_peers` writes; "" if none."""
    _, title, section = text.partition(SPARK_TITLE)
    return title + section


def with_spark_section(text: str, section: str) -> str:
    """The page, that section in the place of the one that it has."""
    before = text.removesuffix(spark_section(text)).rstrip("\n")
    return f"{before}\n\n{section}" if section else f"{before}\n"


def public(line: str) -> str:
    """Of one line, without the paths and addresses of this machine."""
    return PLACE.sub("...", " ".join(line.split()))


def _sections(outcome: Outcome) -> list[tuple[str, list[Row]]]:
    """Titles and rows, of those that have any."""
    found = rows(FIGURES, outcome.by_peer())
    sections = [
        ("What raftmq loses", [one for one in found if is_lost(one)]),
        ("What raftmq wins", [one for one in found if one.behind and not is_lost(one)]),
        ("Not compared", [one for one in found if not one.behind]),
        (CONDITIONS_TITLE, rows(CONDITIONS, outcome.by_peer())),
    ]
    return [(title, some) for title, some in sections if some]


def _markdown(outcome: Outcome, found: Iterable[Row]) -> list[str]:
    names = ["", *_names(outcome)]
    lines = ["| " + " | ".join(names) + " |", "|---" + "|---:" * (len(names) - 1) + "|"]
    cells = ([one.figure.title, *_cells(outcome, one)] for one in found)
    return lines + [f"| {' | '.join(each)} |" for each in cells]


def _names(outcome: Outcome) -> list[str]:
    return [PEERS[peer].title for peer in outcome.by_peer()]


def _cells(outcome: Outcome, one: Row) -> list[str]:
    cells = []
    for peer in outcome.by_peer():
        value = shown(one.values.get(peer))
        is_compared = one.figure.is_more_better is not None and peer in one.ratios
        cells.append(f"{value} ({shown(one.ratios[peer])})" if is_compared else value)
    return cells


def _warnings(outcome: Outcome) -> list[str]:
    """What is missing, and whether the rest can be judged."""
    lines = [f"SKIPPED {PEERS[peer].title}: {why}" for peer, why in outcome.skipped.items()]
    lines += [f"FAILED {one}" for one in outcome.failed]
    others = [
        figures[key]
        for figures in outcome.by_peer().values()
        for key in ("others_cores", f"{SYNCED}others_cores")
        if key in figures
    ]
    worst = max(others, default=0.0)
    if worst > OTHERS_CORES_MAX:
        lines.append(
            f"NOT TO BE JUDGED: other processes took {worst:.1f} cores during a turn. "
            "Run it on a machine that does nothing else."
        )
    return lines


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}".strip() for name, version in versions.items())
