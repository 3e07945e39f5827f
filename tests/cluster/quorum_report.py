"""The table at the end of a run of disasters."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.quorum_disasters import Outcome
    from tests.cluster.quorum_ledger import Ledger


def report(outcomes: list[Outcome], ledger: Ledger) -> str:
    rows = {
        "disasters": len(outcomes),
        "acknowledged": len(ledger.acknowledged),
        "acknowledged and lost": len(ledger.lost),
        "denied": len(ledger.denied),
        "uncertain": len(ledger.uncertain),
        "comparisons of all images": ledger.comparisons,
        "findings": len(ledger.findings),
    }
    lines = [f"{name:28}{value:>10}" for name, value in rows.items()]
    return "\n".join([*lines, "", *_table(outcomes)]) + "\n"


def _table(outcomes: list[Outcome]) -> Iterator[str]:
    yield f"{'seconds until served again':28}{'count':>10}{'settled':>10}{'median':>10}{'max':>10}"
    for disaster in sorted({outcome.disaster for outcome in outcomes}):
        same = [outcome for outcome in outcomes if outcome.disaster == disaster]
        times = [outcome.seconds for outcome in same if outcome.was_settled]
        columns = f"{median(times):>10.2f}{max(times):>10.2f}" if times else ""
        yield f"{disaster.verb + ' ' + disaster.whom:28}{len(same):>10}{len(times):>10}{columns}"
