"""Whether a run did enough to prove anything: minimum numbers of operations, faults, final reads.

Owns what a run must have done to count. Says why a history proves nothing; never that it is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jepsen_like.checkers.columns import NOT_SEEN
from jepsen_like.checkers.rerun_duplicates import finished_count
from jepsen_like.checkers.retry_activity import RetryCounts, untold
from jepsen_like.checkers.retry_activity import counts as retry_counts
from jepsen_like.checkers.schedule_lateness import cancelled_count, delivered_count
from jepsen_like.checkers.transaction_account import OF_TRANSACTIONS
from jepsen_like.checkers.transaction_activity import TransactionCounts, counts
from jepsen_like.history.event import NAMED_SEND, Type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.checkers.account import Account


# Operations that do not count as use of the queue: those without a request, those of the watcher,
# and runs of named producers, which their own programs break off as often as they like; so do those
# with transactions, of which the sends and polls count.
BY_THE_WAY = frozenset(
    {"assign", "crash", "watermark", "behind", "stale-read", NAMED_SEND, *OF_TRANSACTIONS}
)


class Demands(msgspec.Struct, frozen=True, kw_only=True):
    """What a run must reach; less, and its verdict is unknown.

    Attributes:
        ok_share_min: of the operations of clients. A compare-and-set that was refused counts as
            ok, for it was answered. It holds for sends alone, too: polls are ok without a leader.
        oks_min: operations of clients that ended well, a refusal not counted.
        acks_min: values that were acknowledged, by however many.
        faults_min: that began.
        generations_min: of each consumer group; each must have committed something, too.
        finished_min: generations of producers with names.
        deliveries_min, cancels_min: scheduled records that readers got; that were cancelled.
        transactions: what producers with transactions must have done.
        retries: what groups that move what fails must have done.
        allowed: names of findings that are only reported.
        is_to_end: clients sent and polled until the end; then everything was read once more, and
            the replicas' disks were read; and of each key some node has logged that it leads it.
    """

    ok_share_min: float = 0.5
    oks_min: int = 0
    acks_min: int = 0
    faults_min: int = 0
    generations_min: int = 0
    finished_min: int = 0
    deliveries_min: int = 0
    cancels_min: int = 0
    transactions: TransactionCounts = TransactionCounts()
    retries: RetryCounts = RetryCounts()
    allowed: frozenset[str] = frozenset()
    is_to_end: bool = False


def too_little(account: Account, demands: Demands) -> list[str]:
    """Sentences; none: it is enough."""
    return list(_reasons(account, demands))


def _reasons(account: Account, demands: Demands) -> Iterator[str]:
    operations, done = operation_count(account), done_count(account)
    ok, acks, faults = ok_count(account), acknowledged_count(account), account.faults.total()
    if not operations:
        yield "no client did anything"
    elif ok < demands.ok_share_min * operations:
        yield f"{ok} of {operations} operations ended well, {demands.ok_share_min:.0%} are wanted"
    else:
        yield from _few_sends(account, demands)
    if done < demands.oks_min:
        yield f"{done} operations were done, {demands.oks_min} are wanted"
    if acks < demands.acks_min:
        yield f"{acks} values were acknowledged, {demands.acks_min} are wanted"
    if faults < demands.faults_min:
        yield f"{faults} faults happened, {demands.faults_min} are wanted"
    yield from _idle_groups(account, demands)
    if (finished := finished_count(account)) < demands.finished_min:
        yield f"{finished} generations of names were finished, {demands.finished_min} are wanted"
    yield from _few_scheduled(account, demands)
    if account.transactions or demands.transactions != TransactionCounts():
        yield from counts(account).few(demands.transactions)
    yield from retry_counts(account).few(demands.retries)
    if behind := sorted(
        key
        for key, end in account.behind.items()
        if _last_end(account, key) < _end(account, key, end)
    ):
        yield f"the last reads did not come to the end of {_some(behind)}"
    if demands.is_to_end:
        yield from _not_at_the_end(account)


def _idle_groups(account: Account, demands: Demands) -> Iterator[str]:
    wanted = demands.generations_min
    for group in account.groups.groups.values():
        if not group.commits_done:
            yield f"group {group.name!r} has committed nothing"
        if len(group.generations) < wanted:
            count = len(group.generations)
            yield f"group {group.name!r} had {count} generations, {wanted} are wanted"


def _few_scheduled(account: Account, demands: Demands) -> Iterator[str]:
    if (delivered := delivered_count(account)) < demands.deliveries_min:
        yield f"{delivered} scheduled records came, {demands.deliveries_min} are wanted"
    if (cancelled := cancelled_count(account)) < demands.cancels_min:
        yield f"{cancelled} were cancelled, {demands.cancels_min} are wanted"


def _last_end(account: Account, key: str) -> int:
    """How far the final readers came together."""
    final = account.phases.get("final", NOT_SEEN)
    reads = account.keys[key].reads if key in account.keys else ()
    return max((max(read.offsets) + 1 for read in reads if read.invoked > final), default=0)


def _end(account: Account, key: str, end: float) -> float:
    """The end of a key that clients saw up to `end`: records of fewer acks may be gone."""
    replicas = account.keys[key].replicas.values() if key in account.keys else ()
    return min(end, max((replica.log_end for replica in replicas), default=end))


def _few_sends(account: Account, demands: Demands) -> Iterator[str]:
    sends = sum(count for (f, _), count in account.outcomes.items() if f == "send")
    ok = account.outcomes["send", Type.OK]
    if ok < demands.ok_share_min * sends:
        yield f"{ok} of {sends} sends ended well, {demands.ok_share_min:.0%} are wanted"


def _not_at_the_end(account: Account) -> Iterator[str]:
    sent = {key.key for key in account.keys.values() if key.sends}
    if unread := sorted(sent - account.final_keys):
        yield f"nobody read everything at the end of {_some(unread)}"
    if unkept := sorted(key for key in sent if not account.keys[key].replicas):
        yield f"nobody looked at the replicas of {_some(unkept)}"
    if unled := sorted(key for key in sent if not account.keys[key].leads):
        yield f"nobody said that it leads {_some(unled)}"
    yield from untold(account)
    if "heal" in account.phases:
        what = {"send": "no send ended well", "poll": "no poll brought anything"}
        yield from (
            f"{nothing} between the faults and the last reads"
            for f, nothing in what.items()
            if not account.healed[f]
        )


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - 3} more keys" if len(keys) > 3 else ""
    return ", ".join(map(repr, keys[:3])) + more


def operation_count(account: Account) -> int:
    return sum(count for (f, _), count in account.outcomes.items() if f not in BY_THE_WAY)


def ok_count(account: Account) -> int:
    """Those that were answered."""
    refused = sum(
        began.f == "cas" and ended is not None and ended.type is Type.FAIL and not ended.error
        for began, ended in account.registers
    )
    return refused + done_count(account)


def done_count(account: Account) -> int:
    return sum(
        count
        for (f, end), count in account.outcomes.items()
        if end is Type.OK and f not in BY_THE_WAY
    )


def acknowledged_count(account: Account) -> int:
    return sum(len(key.acknowledged) + len(key.lightly) for key in account.keys.values())
