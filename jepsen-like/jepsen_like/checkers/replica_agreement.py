"""Anomaly: replicas whose logs differ at the end, or differ from what clients saw (divergence).

Counts places. Below the smaller of two high watermarks two replicas hold the same batches, byte for
byte as their CRCs say, unless deleted on one of them; the whole of their logs where all are
reported in sync, and then no byte is damaged. Epochs never fall within a log, and batches do not
overlap. What clients saw at an offset is what each replica holds there that counts it as committed,
and it lies before the end of some log.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from jepsen_like.checkers.finding import Finding, Findings

if TYPE_CHECKING:
    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import Batch, KeyAccount, Replica


def check(account: Account) -> list[Finding]:
    found, batches = Findings("replica-divergence"), 0
    for key in account.keys.values():
        replicas = sorted(key.replicas.values())
        batches += sum(map(_committed_count, replicas))
        for replica in replicas:
            _check_form(key, replica, found)
            if account.looks.is_whole:
                _check_bytes(key, replica, found)
        for one, other in combinations(replicas, 2):
            _check_pair(key, one, other, found)
        if replicas:
            _check_observed(key, replicas, found)
    return [found.finding(batches_compared=batches)]


def _committed_count(replica: Replica) -> int:
    return bisect_left(replica.batches, replica.high_watermark, key=lambda batch: batch[0])


def _check_bytes(key: KeyAccount, replica: Replica, found: Findings) -> None:
    where = f"key {key.key!r}, node {replica.node} (event {replica.event})"
    for what in replica.damage:
        found.add(f"{where}: {what}".__str__)


def _check_form(key: KeyAccount, replica: Replica, found: Findings) -> None:
    for before, batch in pairwise(replica.batches):
        if batch[1] < before[1] or batch[0] < before[0] + max(1, len(before[3])):
            found.add(partial(_form_sentence, key, replica, before, batch))


def _form_sentence(key: KeyAccount, replica: Replica, before: Batch, batch: Batch) -> str:
    return (
        f"key {key.key!r}, node {replica.node} (event {replica.event}): behind the batch of epoch "
        f"{before[1]} at offset {before[0]}, of {len(before[3])} records, stands one of epoch "
        f"{batch[1]} at offset {batch[0]}"
    )


def _check_pair(key: KeyAccount, one: Replica, other: Replica, found: Findings) -> None:
    start = 0 if key.is_kept else max(one.log_start, other.log_start)
    end = min(one.high_watermark, other.high_watermark)
    left, right = _part(one, start, end), _part(other, start, end)
    if left == right:
        return
    here = {batch[0]: batch for batch in left}
    there = {batch[0]: batch for batch in right}
    apart = [at for at in sorted(here | there) if here.get(at) != there.get(at)]
    if not apart:  # one base offset twice: counted already
        return
    sentence = partial(_pair_sentence, key, one, other, here.get(apart[0]), there.get(apart[0]))
    found.add(sentence, count=len(apart))


def _part(replica: Replica, start: int, end: int) -> list[Batch]:
    """The batches that begin there: what begins before it is half deleted."""
    first = bisect_left(replica.batches, start, key=lambda batch: batch[0])
    return replica.batches[first : bisect_left(replica.batches, end, key=lambda batch: batch[0])]


def _pair_sentence(
    key: KeyAccount, one: Replica, other: Replica, here: Batch | None, there: Batch | None
) -> str:
    return (
        f"key {key.key!r}: node {one.node} (event {one.event}) holds {_batch(here)}, "
        f"node {other.node} (event {other.event}) holds {_batch(there)}"
    )


def _batch(batch: Batch | None) -> str:
    if batch is None:
        return "no batch that begins there"
    offset, epoch, crc, values = batch
    return f"the batch at offset {offset} of epoch {epoch}, CRC {crc}, values {values[:5]!r}"


def _check_observed(key: KeyAccount, replicas: list[Replica], found: Findings) -> None:
    offsets = sorted(key.order.observed)
    for replica in replicas:
        first = bisect_left(offsets, key.log_start)
        end = bisect_left(offsets, replica.high_watermark)
        held, part = replica.held(), offsets[first:end]
        if [*map(held.get, part)] == [*map(key.order.observed.get, part)]:
            continue
        for offset in part:
            if held.get(offset) != key.order.observed[offset]:
                found.add(partial(_observed_sentence, key, replica, offset, held.get(offset)))
    log_end = max(replica.log_end for replica in replicas)
    for offset in offsets[bisect_left(offsets, log_end) :]:
        found.add(partial(_beyond_sentence, key, offset, log_end))


def _observed_sentence(key: KeyAccount, replica: Replica, offset: int, held: object) -> str:
    value = key.order.observed[offset]
    stands = "holds nothing there" if held is None else f"holds {held!r} there"
    return (
        f"key {key.key!r}, offset {offset}, value {value!r} ({key.order.witness(offset, value)}): "
        f"node {replica.node} {stands} (event {replica.event})"
    )


def _beyond_sentence(key: KeyAccount, offset: int, log_end: int) -> str:
    value = key.order.observed[offset]
    return (
        f"key {key.key!r}, offset {offset}, value {value!r} ({key.order.witness(offset, value)}): "
        f"every log ends before it, the longest at {log_end}"
    )
