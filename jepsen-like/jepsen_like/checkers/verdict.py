"""Runs all checkers over one history: pass, fail, or unknown where the run did too little.

Owns which checkers there are and what makes a run fail: any anomaly. Allowed oddities are in the
figures of a finding and fail nothing. No anomaly in a run that did too little proves nothing: the
verdict is then unknown.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from jepsen_like.checkers import (
    aborted_reads,
    activity,
    commits_back,
    duplicates,
    group_duplicates,
    group_order,
    group_unseen,
    high_watermarks,
    inconsistent_offsets,
    leader_epochs,
    lost_writes,
    not_healed,
    not_linearizable,
    offsets_linearizable,
    overlaps,
    poll_order,
    replica_agreement,
    rerun_duplicates,
    retry_activity,
    retry_attempts,
    retry_endings,
    retry_unfinished,
    schedule_deliveries,
    schedule_lateness,
    schedule_order,
    send_order,
    transaction_activity,
    transaction_cycles,
    transaction_effects,
    transaction_fencing,
    transaction_reads,
    transaction_stuck,
    unexpected_reads,
    unseen,
    zombie_commits,
)
from jepsen_like.checkers.account import Account
from jepsen_like.checkers.activity import Demands
from jepsen_like.checkers.finding import NAMES, Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jepsen_like.history.event import Event

GROUP_CHECKS = (
    group_unseen.check,
    overlaps.check,
    zombie_commits.check,
    commits_back.check,
    group_duplicates.check,
    group_order.check,
    offsets_linearizable.check,
)
TRANSACTION_CHECKS = (
    transaction_effects.check,
    transaction_fencing.check,
    transaction_reads.check,
    transaction_cycles.check,
    transaction_stuck.check,
)
SCHEDULE_CHECKS = (schedule_deliveries.check, schedule_order.check)
RETRY_CHECKS = (retry_endings.check, retry_attempts.check, retry_unfinished.check)
CHECKS = (
    inconsistent_offsets.check,
    lost_writes.check,
    duplicates.check,
    rerun_duplicates.check,
    aborted_reads.check,
    unexpected_reads.check,
    not_linearizable.check,
    replica_agreement.check,
    leader_epochs.check,
    high_watermarks.check,
    unseen.check,
    not_healed.check,
    send_order.check,
    poll_order.check,
    *GROUP_CHECKS,
    *TRANSACTION_CHECKS,
    *SCHEDULE_CHECKS,
    *RETRY_CHECKS,
)
DEFAULT_DEMANDS = Demands()
# Names of findings that only consumer groups can bring.
OF_GROUPS = (
    "offset-linearizable", "group-unseen", "overlap", "zombie-commit", "commit-back",
    "group-duplicate", "group-order",
)  # fmt: skip
OF_NAMES = ("rerun-duplicate",)  # the same of producers with names
OF_TRANSACTIONS = (  # the same of producers with transactions
    "torn-transaction", "lost-transaction", "lost-transaction-offset", "duplicate-effect",
    "version-twice", "zombie-write", "zombie-end", "aborted-transaction-read", "precommitted-read",
    "circular-reads", "transaction-skip", "transaction-order", "stuck-transaction",
)  # fmt: skip


OF_SCHEDULES = (  # the same of records that are to be delivered later
    "lost-scheduled", "undelivered", "delivered-twice", "cancelled-delivery", "early-delivery",
    "due-order",
)  # fmt: skip
OF_RETRIES = (  # the same of groups that move what fails
    "lost-retry", "retry-duplicate", "wrong-ending", "wrong-attempts", "early-retry",
    "unfinished-retries",
)  # fmt: skip


class Result(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Verdict(msgspec.Struct, frozen=True):
    """Attributes:
    findings: of every kind, also those with a count of 0; the worst first.
    reasons: why a run without anomalies does not count; empty: it does.
    not_judged: what no checker could judge, and why: "name, name: reason".
    figures: what happened, in numbers.
    """

    result: Result
    findings: list[Finding]
    reasons: list[str]
    not_judged: list[str]
    figures: dict[str, int]

    @property
    def not_looked_at(self) -> set[str]:
        """Names of findings of which this history can say nothing."""
        return {name for told in self.not_judged for name in told.partition(": ")[0].split(", ")}

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.fails]

    def __str__(self) -> str:
        lines = [f"verdict: {self.result}", *(f"  {reason}" for reason in self.reasons)]
        for finding in self.failures:
            lines.append(f"{finding.name}: {finding.count}")
            lines += (f"  {example}" for example in finding.examples)
        return "\n".join(lines)


def judge(events: Iterable[Event], demands: Demands = DEFAULT_DEMANDS) -> Verdict:
    """
    Raises:
        BadHistory: the events are no history.
    """
    account = Account(events)
    findings = [finding for check in CHECKS for finding in check(account)]
    findings = sorted((_weighed(found, demands) for found in findings), key=_severity)
    reasons = activity.too_little(account, demands)
    return Verdict(
        _result(findings, reasons), findings, reasons, _not_judged(account), _figures(account)
    )


def _weighed(finding: Finding, demands: Demands) -> Finding:
    is_allowed = finding.name in demands.allowed
    return msgspec.structs.replace(finding, fails=False) if is_allowed else finding


def _severity(finding: Finding) -> int:
    return finding.severity


def _result(findings: list[Finding], reasons: list[str]) -> Result:
    if any(finding.fails for finding in findings):
        return Result.FAIL
    return Result.UNKNOWN if reasons else Result.PASS


def _not_judged(account: Account) -> list[str]:
    """Sentences, each with the names of the findings in front of a colon."""
    not_judged = []
    if not account.registers:
        not_judged.append("not-linearizable: nobody used a register")
    if not account.groups.groups:
        not_judged.append(f"{', '.join(OF_GROUPS)}: there was no consumer group")
    if not any(rerun_duplicates.runs(account)):
        not_judged.append(f"{', '.join(OF_NAMES)}: nobody sent under a name")
    not_judged += _unseen_of_schedules(account)
    if not account.retries.groups:
        not_judged.append(f"{', '.join(OF_RETRIES)}: no group had retries")
    if not account.transactions:
        not_judged.append(f"{', '.join(OF_TRANSACTIONS)}: nobody used a transaction")
    else:
        not_judged += _unseen_of_transactions(account)
    if not account.keys:
        of_others = (*OF_GROUPS, *OF_NAMES, *OF_TRANSACTIONS, *OF_SCHEDULES, *OF_RETRIES)
        others = {"not-linearizable", "not-healed", *of_others}
        names = [name for name in NAMES if name not in others]
        return [*not_judged, f"{', '.join(names)}: nobody sent or read a record"]
    if not account.final_keys:
        not_judged.append("unseen: nobody read from the beginning in the phase 'final'")
    if not any(key.replicas for key in account.keys.values()):
        not_judged.append("replica-divergence, lost-on-node: there are no logs of replicas")
    return not_judged


def _unseen_of_schedules(account: Account) -> Iterator[str]:
    if not account.schedule.scheduled:
        yield f"{', '.join(OF_SCHEDULES)}: nobody scheduled a record"
    elif account.schedule.has_disk_faults:
        yield "due-order: disks were at fault"


def _unseen_of_transactions(account: Account) -> list[str]:
    of, told = account.transactions, []
    if of.stable is None:
        told.append("stuck-transaction: nobody looked when no client was left")
    if of.group_offsets is None:
        told.append("lost-transaction-offset: nobody asked where groups were at the end")
    return told


def _figures(account: Account) -> dict[str, int]:
    outcomes = {f"{f} {end}": n for (f, end), n in sorted(account.outcomes.items())}
    faults = {f"fault {f}": n for f, n in sorted(account.faults.items())}
    return {
        "operations": activity.operation_count(account),
        "operations ok": activity.ok_count(account),
        "keys": len(account.keys),
        "values acknowledged": activity.acknowledged_count(account),
        "records polled": account.polled_count,
        **_group_figures(account),
        **_name_figures(account),
        **_transaction_figures(account),
        **schedule_lateness.figures(account),
        **_retry_figures(account),
        **outcomes,
        **faults,
    }


def _name_figures(account: Account) -> dict[str, int]:
    if not any(rerun_duplicates.runs(account)):
        return {}
    return {"generations finished": rerun_duplicates.finished_count(account)}


def _transaction_figures(account: Account) -> dict[str, int]:
    if not account.transactions:
        return {}
    counts = msgspec.structs.asdict(transaction_activity.counts(account))
    told = {name.replace("_", " "): count for name, count in counts.items()}
    of = account.transactions
    single = list(of.single)
    unknown = sum(not one.is_aborted and not one.is_committed for one in single)
    figures = {"transactions": len(single), **told, "never told": unknown}
    if of.shared.keys:
        figures["members of versions"] = len(of.shared.keys)
        figures["versions done"] = len({done.key for done in of.shared.dones})
    return figures


def _group_figures(account: Account) -> dict[str, int]:
    groups = account.groups.groups
    if not groups:
        return {}
    return {
        "groups": len(groups),
        "records handed out to groups": account.groups.taken_count,
        "generations": sum(len(group.generations) for group in groups.values()),
        "commits": sum(group.commits_done for group in groups.values()),
    }


def _retry_figures(account: Account) -> dict[str, int]:
    if not account.retries.groups:
        return {}
    told = msgspec.structs.asdict(retry_activity.counts(account))
    return {f"retries {name}": count for name, count in told.items()}
