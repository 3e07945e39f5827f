"""Anomaly: operations on a register (a topic's configuration) that are not linearizable.

Counts keys. Owns how events become operations: times are indexes of events. A key whose history
needs too long a search counts as wrong: it is not known to be right.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.checkers.linearizable import NoVerdict, check_key
from jepsen_like.checkers.registers import Kind, Operation, Outcome, Unknown
from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.registers import Value
    from jepsen_like.history.event import Event


def check(account: Account) -> list[Finding]:
    by_key: dict[str, list[Operation]] = defaultdict(list)
    for began, ended in account.registers:
        by_key[began.value["key"]].append(operation(began, ended))
    found, without_verdict = Findings("not-linearizable"), 0
    for _, operations in sorted(by_key.items()):
        try:
            violation = check_key(operations)
        except NoVerdict as error:
            without_verdict += 1
            found.add(f"key {operations[0].key!r} has no verdict: {error}".__str__)
        else:
            if violation is not None:
                found.add(violation.__str__)
    return [found.finding(registers=len(by_key), without_verdict=without_verdict)]


def operation(began: Event, ended: Event | None) -> Operation:
    """`ended`: None, if it never did."""
    asked: dict[str, Any] = began.value
    answer: dict[str, Any] = (ended.value if ended else None) or {}
    kind, outcome = Kind(began.f), _outcome(ended)
    value: Value = asked.get("value")
    if kind is Kind.READ:
        value = answer.get("value")
    return Operation(
        process=int(began.process),
        kind=kind,
        key=asked["key"],
        outcome=outcome,
        invoked_at=began.index,
        returned_at=math.inf if ended is None or outcome is Outcome.INFO else ended.index,
        value=value,
        expected=asked.get("expected"),
        found=answer.get("found", Unknown.VALUE) if outcome is Outcome.FAIL else Unknown.VALUE,
    )


def _outcome(ended: Event | None) -> Outcome:
    if ended is None or ended.type is Type.INFO:
        return Outcome.INFO
    return Outcome.OK if ended.type is Type.OK else Outcome.FAIL
