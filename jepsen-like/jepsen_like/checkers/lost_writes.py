"""Anomaly: an acknowledged value is lost: readers passed its offset, or no replica's log has it.

Promised are values that all acknowledged, and those of a leader that led from first to last. A
value is judged in two ways. By readers: one read what is before and what is after it, or all from
the beginning to something after it, and none ever read the value. By replicas at the end: none has
it ("lost-write"), or one of them lacks it below its own high watermark, or lacks it while all are
reported in sync ("lost-on-node", counted once for each node); so is a whole log that is missing
then. A replica that lags lacks what it has not fetched yet: a figure only. So are values that were
not promised. Records that may have been deleted are not judged; of those in transactions readers
prove nothing, the logs alone count.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from jepsen_like.checkers.finding import Finding, Findings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import KeyAccount, Replica, Session, Value

Span: TypeAlias = "tuple[int, int]"  # offsets that one reader went through, the end exclusive


def check(account: Account) -> list[Finding]:
    lost, on_node = Findings("lost-write"), Findings("lost-on-node")
    lightly = behind = 0
    for key in account.keys.values():
        spans = _spans(key)
        gone = _lost(key, key.promised, spans)
        for value in gone:
            lost.add(partial(_lost_sentence, key, value))
        lightly += len(_lost(key, key.unpromised, spans))
        behind += _check_nodes(key, set(gone), on_node, is_whole=bool(account.looks.is_whole))
    _check_logs(account, on_node)
    return [lost.finding(lost_lightly=lightly), on_node.finding(values_behind=behind)]


def _lost(key: KeyAccount, acknowledged: dict[Value, int | None], spans: list[Span]) -> list[Value]:
    """In the order in which they were acknowledged."""
    unread = acknowledged.keys() - key.read_values
    lost = {
        value
        for value in unread
        if key.in_transaction(value) is None and _is_within(spans, key.place(value))
    }
    if key.replicas:
        lost |= acknowledged.keys() - key.kept_values
    if not lost:
        return []
    return [value for value in acknowledged if value in lost and not key.may_be_deleted(value)]


def _spans(key: KeyAccount) -> list[Span]:
    """Offset ranges that readers went through; disjoint, rising, and not adjacent."""
    spans: dict[Session, Span] = {}
    for read in key.reads:
        first, last = min(read.offsets), max(read.offsets)
        if key.key in read.session.from_beginning:
            first = 0
        start, end = spans.get(read.session, (first, last))
        spans[read.session] = min(start, first), max(end, last + 1)
    return _merged(sorted(spans.values()))


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _is_within(spans: list[Span], offset: int | None) -> bool:
    if offset is None:
        return False
    place = bisect_right(spans, offset, key=lambda span: span[0]) - 1
    return place >= 0 and offset < spans[place][1]


def _check_nodes(key: KeyAccount, gone: set[Value], found: Findings, *, is_whole: bool) -> int:
    """How many values are missing where a replica is only behind."""
    behind = 0
    for replica in key.replicas.values():
        missing = key.promised.keys() - set(replica.values()) - gone
        for value in sorted(missing, key=repr):
            place = key.place(value)
            if key.may_be_deleted(value):
                continue
            if is_whole or (place is not None and place < replica.high_watermark):
                found.add(partial(_node_sentence, key, value, replica))
            else:
                behind += 1
    return behind


def _check_logs(account: Account, found: Findings) -> None:
    """Whether all nodes that are to keep a key have a log of it."""
    if not account.looks.is_whole or not any(key.replicas for key in account.keys.values()):
        return
    for key in account.keys.values():
        missing = account.replica_count - len(key.replicas)
        if key.sends and missing > 0:
            found.add(partial(_log_sentence, key, account.replica_count), count=missing)


def _log_sentence(key: KeyAccount, replica_count: int) -> str:
    nodes = ", ".join(map(str, sorted(key.replicas))) or "no node"
    return f"key {key.key!r}: {replica_count} nodes are to keep it, {nodes} had a log of it"


def _lost_sentence(key: KeyAccount, value: Value) -> str:
    gone = []
    if value not in key.read_values:
        gone.append("nobody read it")
    if key.replicas and value not in key.kept_values:
        gone.append("no replica has it")
    place = key.place(value)
    if passed := next((r for r in key.reads if place is not None and max(r.offsets) > place), None):
        gone.append(f"event {passed.completed} read offset {max(passed.offsets)}")
    return f"{_value_sentence(key, value)}: {', '.join(gone)}"


def _node_sentence(key: KeyAccount, value: Value, replica: Replica) -> str:
    return (
        f"{_value_sentence(key, value)}: node {replica.node}, whose log ends at offset "
        f"{replica.log_end}, does not have it (event {replica.event})"
    )


def _value_sentence(key: KeyAccount, value: Value) -> str:
    place, sent = key.place(value), key.senders.get(value)
    where = "" if place is None else f" at offset {place}"
    when = "" if sent is None else f" in event {sent.completed}"
    return f"key {key.key!r}, value {value!r}, acknowledged{where}{when}"
