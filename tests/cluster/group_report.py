"""The table at the end of a run of disasters for a group."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.cluster.group_cluster import GroupCluster
    from tests.cluster.group_disasters import Outcome


def report(outcomes: Sequence[Outcome], cluster: GroupCluster) -> str:
    verdict = cluster.verdict
    if verdict is None:
        return "nothing was judged\n"
    rows = {
        "disasters": len(outcomes),
        "members that ever were": len(cluster.members.orders),
        "acknowledged": len(cluster.acknowledged),
        "handed out": verdict.handed_count,
        "acknowledged, never handed out": verdict.never,
        "denied": len(cluster.load.denied),
        "partitions given to members": len(verdict.owned),
        "times commits were looked at": len(cluster.load.observations),
        "errors that members went on after": sum(one.problems for one in verdict.lives.values()),
        "commits by hand that were refused": sum(one.refused for one in verdict.lives.values()),
        "findings": len(cluster.findings),
    }
    lines = [f"{name:44}{value:>10}" for name, value in rows.items()]
    lines += [f"  again: {name:35}{n:>10}" for name, n in sorted(verdict.repeats.items())]
    lines += [
        f"  told clients: {name:28}{n:>10}" for name, n in sorted(cluster.load.errors.items())
    ]
    return "\n".join([*lines, "", *_table(outcomes)]) + "\n"


def _table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield f"{'healed after, s':36}{'count':>8}{'median':>8}{'max':>8}"
    for name in sorted({str(outcome.disaster) for outcome in outcomes}):
        times = [outcome.healed for outcome in outcomes if str(outcome.disaster) == name]
        yield f"{name:36}{len(times):>8}{median(times):>8.2f}{max(times):>8.2f}"
