"""Anomaly: of two scheduled records of one key, the one that was due later was delivered first.

Counts records, each against the one before it in the log. Judged only where a leader must have had
both: delivered in one epoch, and the record that comes too late was acknowledged before the other
one was due, by clocks that no fault had touched. Epochs are those of the replicas' logs; without
these nothing is judged, nor where disks were at fault, for what cannot be read is delivered later.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.checkers.schedule_account import CLOCK_BOUND_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import KeyAccount
    from jepsen_like.checkers.schedule_account import Scheduled


class _Delivered(NamedTuple):
    offset: int
    epoch: int
    due: float
    one: Scheduled


def check(account: Account) -> list[Finding]:
    found, judged = Findings("due-order"), 0
    if not account.schedule.has_disk_faults:
        by_key: dict[str, list[Scheduled]] = {}
        for one in account.schedule.scheduled:
            by_key.setdefault(one.key.key, []).append(one)
        for name, scheduled in by_key.items():
            delivered = sorted(_delivered(account, account.keys[name], scheduled))
            for before, late in pairwise(delivered):
                if before.epoch != late.epoch or not _has_both(account, before, late):
                    continue
                judged += 1
                if late.due < before.due:
                    found.add(partial(_sentence, before, late))
    return [found.finding(pairs_judged=judged)]


def _delivered(
    account: Account, key: KeyAccount, scheduled: list[Scheduled]
) -> Iterator[_Delivered]:
    """What was read, and stands in a log."""
    epochs: dict[int, int] = {}
    for replica in key.replicas.values():
        for base, epoch, _, values in replica.batches:
            epochs |= dict.fromkeys(range(base, base + len(values)), epoch)
    stamps = account.schedule.stamps.get(key.key, {})
    for one in scheduled:
        if one.first is not None and (offset := one.first.offset) in stamps and offset in epochs:
            yield _Delivered(offset, epochs[offset], stamps[offset].due, one)


def _has_both(account: Account, before: _Delivered, late: _Delivered) -> bool:
    """The leader had the late one when it chose the one before it."""
    of, send = account.schedule, late.one.send
    if not late.one.is_acknowledged or send.completed is None:
        return False
    assert late.one.first is not None, "it was read"
    acknowledged_at, read_at = of.times[send.completed], late.one.first.time
    begin = min(before.one.sent_at, late.one.sent_at)
    is_in_time = acknowledged_at < before.due - CLOCK_BOUND_SECONDS
    return is_in_time and not of.is_clock_touched(begin, read_at)


def _sentence(before: _Delivered, late: _Delivered) -> str:
    return (
        f"{late.one}: delivered at offset {late.offset}, behind {before.one.value!r} at offset "
        f"{before.offset}, which was due at {before.due:.3f} s; both in epoch {late.epoch}"
    )
