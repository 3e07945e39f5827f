"""The table at the end of a run of disasters for brokers."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.cluster.broker_disasters import Outcome
    from tests.cluster.broker_ledger import BrokerLedger


def report(outcomes: Sequence[Outcome], ledger: BrokerLedger) -> str:
    rows = {
        "disasters": len(outcomes),
        "acknowledged": len(ledger.acknowledged),
        "acknowledged and lost": ledger.lost,
        "taken by one leader only": len(ledger.taken),
        "taken and lost": ledger.taken_lost,
        "denied": len(ledger.denied),
        "uncertain": len(ledger.uncertain),
        "comparisons of all logs": ledger.comparisons,
        "findings": len(ledger.findings),
    }
    lines = [f"{name:28}{value:>10}" for name, value in rows.items()]
    lines += [f"  told clients: {name:40}{n:>6}" for name, n in sorted(ledger.errors.items())]
    return "\n".join([*lines, "", *_table(outcomes)]) + "\n"


def _table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield f"{'':28}{'':>8}{'leaderless s':>16}{'unserved s':>16}{'stopping s':>16}"
    yield f"{'':20}{'count':>8}{'settled':>8}" + f"{'median':>8}{'max':>8}" * 3
    for disaster in sorted({outcome.disaster for outcome in outcomes}):
        same = [outcome for outcome in outcomes if outcome.disaster == disaster]
        settled = [outcome for outcome in same if outcome.was_settled]
        columns = "".join(
            f"{median(times):>8.2f}{max(times):>8.2f}"
            for times in zip(*(outcome[1:4] for outcome in settled), strict=True)
        )
        yield f"{disaster.verb + ' ' + disaster.whom:20}{len(same):>8}{len(settled):>8}{columns}"
