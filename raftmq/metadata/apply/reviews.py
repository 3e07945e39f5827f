"""Rules for reviews: after fencing, restart or disk loss of a broker, updates its partitions.

Owns what a review does, and when it is complete (decision 0013). `ReviewPartitions` re-evaluates
ISR and leader of one slice of partitions, `FinishReview` ends the review; `ReportDamage` is for a
broker whose logs fail while it runs.

Invariant: a replica whose disk lost something is neither in an ISR nor eligible once its broker has
nothing pending.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.apply.brokers import registered
from raftmq.metadata.apply.limits import slice_refusal
from raftmq.metadata.commands import Done, Loss, PartitionId, Refused
from raftmq.metadata.election import Rules, disabled, review
from raftmq.metadata.image import Pending
from raftmq.topic_config import min_isr_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from raftmq.metadata.apply.draft import Draft
    from raftmq.metadata.commands import (
        AnyResult,
        FinishReview,
        ReportDamage,
        ReviewPartitions,
    )
    from raftmq.metadata.image import BrokerState, PartitionState


def rules_of(draft: Draft, topic_id: bytes) -> Rules:
    """The inputs of an election for partitions of this topic."""
    topic = draft.topic(topic_id)
    configs = {} if topic is None else topic.configs  # valid: checked when they were set
    return Rules(
        draft.is_active,
        draft.is_unfenced,
        min_isr=min_isr_in(configs),
        level=draft.feature_level,
        is_unclean_allowed=configs.get("unclean.leader.election.enable") == "true",
    )


def loss_of(draft: Draft, broker: BrokerState, key: PartitionId) -> Loss:
    """What the replica of this partition has lost, as far as its review is still pending."""
    # Empty, restored or damaged: its records are lost.
    if Pending.REVOKE_ALL in broker.pending or _is_damaged(broker, key):
        return Loss.RECORDS
    # A reboot lost only what was not synced, which matters only where that was acknowledged.
    if Pending.REVOKE_PAGE_CACHE in broker.pending:
        topic = draft.topic(key.topic_id)
        return Loss.UNSYNCED if topic is not None and topic.trusts_page_cache else Loss.NOTHING
    return Loss.NOTHING


def _is_damaged(broker: BrokerState, key: PartitionId) -> bool:
    """By bisection in the sorted tuple: there may be 10,000 of them, and 500 keys in a slice."""
    at = bisect_left(broker.damaged, key)
    return at < len(broker.damaged) and broker.damaged[at] == key


def review_partitions(draft: Draft, command: ReviewPartitions) -> AnyResult:
    """Partitions that were deleted or moved to other brokers since are skipped."""
    broker = _reviewed(draft, command)
    if isinstance(broker, Refused):
        return broker
    for key, before, rules in _hosted(draft, broker, command.partitions):
        after = review(before, broker.broker_id, rules, loss=loss_of(draft, broker, key))
        if after is not before:  # `review` returns the same object if nothing follows
            draft.put_partition(key, after)
    return Done()


def report_damage(draft: Draft, command: ReportDamage) -> AnyResult:
    """Elect other leaders in the same command: the broker is unfenced and may be serving."""
    broker = _reviewed(draft, command)
    if isinstance(broker, Refused):
        return broker
    for key, before, rules in _hosted(draft, broker, command.partitions):
        after = disabled(before, broker.broker_id, rules, loss=command.loss)
        if after is not before:
            draft.put_partition(key, after)
    return Done()


def _reviewed(draft: Draft, command: ReviewPartitions | ReportDamage) -> BrokerState | Refused:
    broker = registered(draft, command.broker_id, command.broker_epoch)
    if isinstance(broker, Refused):
        return broker
    return slice_refusal(command.broker_id, command.partitions) or broker


def _hosted(
    draft: Draft, broker: BrokerState, names: Iterable[tuple[bytes, int]]
) -> Iterator[tuple[PartitionId, PartitionState, Rules]]:
    """The named partitions that the broker hosts; each state includes earlier changes of this
    command, and a partition that is named twice comes once.
    """
    known: dict[bytes, Rules] = {}
    for key in dict.fromkeys(PartitionId(*name) for name in names):
        before = draft.partition(key)
        if before is None or broker.broker_id not in before.replicas:  # deleted or moved since
            continue
        # One parse of the configuration for each topic, not for each partition.
        if key.topic_id not in known:
            known[key.topic_id] = rules_of(draft, key.topic_id)
        yield key, before, known[key.topic_id]


def finish_review(draft: Draft, command: FinishReview) -> AnyResult:
    broker = registered(draft, command.broker_id, command.broker_epoch)
    if isinstance(broker, Refused):
        return broker
    # More became pending while the review ran: partitions that it saw before need another one.
    if command.pending_since != broker.pending_since:
        return Refused(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"broker {command.broker_id} changed at version {broker.pending_since}, after"
            f" {command.pending_since}: review its partitions again",
        )
    if broker.pending == Pending.NOTHING:  # a retry
        return Done()
    count = _count_unreviewed(draft, broker)
    # Only a mistake of the controller leads here: it must review them first.
    if count:
        message = f"{count} partitions of broker {broker.broker_id} were not reviewed: review them"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    draft.put_broker(replace(broker, pending=Pending.NOTHING, damaged=()))
    return Done()


def _count_unreviewed(draft: Draft, broker: BrokerState) -> int:
    """In how many partitions the broker still has a role that it must not have.

    This check makes a review safe even if the controller missed a partition: no acknowledgement or
    election counts on a fenced or damaged replica. Tallies give the counts in O(1); only damaged
    partitions are checked one by one.
    """
    tally = draft.base.tally_of(broker.broker_id)
    if Pending.REVOKE_ALL in broker.pending:  # it must have no role at all, not even last leader
        return tally.in_sync + tally.eligible + tally.last_led
    in_sync = tally.in_sync if broker.fenced else 0
    unsynced = tally.unsynced if Pending.REVOKE_PAGE_CACHE in broker.pending else 0
    damaged = sum(_is_trusted(draft, broker, key) for key in broker.damaged)
    return in_sync + unsynced + damaged


def _is_trusted(draft: Draft, broker: BrokerState, name: tuple[bytes, int]) -> bool:
    """Whether an election might choose this damaged replica outside of the ISR.

    Members of the ISR are counted by `in_sync`: a broker with damage pending is fenced.
    """
    state = draft.partition(PartitionId(*name))
    if state is None:  # deleted since
        return False
    return broker.broker_id in (*state.eligible, *state.last_known_eligible)
