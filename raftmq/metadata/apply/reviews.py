"""What follows for partitions from a change of a broker, slice by slice.

Owns what a review does, and when it is over. `ReviewPartitions` sees some partitions anew,
`FinishReview` ends it; `ReportDamage` is the review of a broker whose logs fail while it runs.

Invariant: a replica whose disk lost something is neither in an ISR nor eligible once nothing is
pending of its broker.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from msgspec.structs import replace

from raftmq.config import min_isr_in
from raftmq.errors import ErrorCode
from raftmq.metadata.apply.brokers import registered
from raftmq.metadata.apply.limits import slice_refusal
from raftmq.metadata.commands import Done, Loss, PartitionId, Refused
from raftmq.metadata.election import Rules, disabled, review
from raftmq.metadata.image import Pending

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
    """What election needs to know about a partition of this topic."""
    topic = draft.topic(topic_id)
    configs = {} if topic is None else topic.configs  # as they were checked when they were set
    return Rules(
        draft.is_active,
        draft.is_unfenced,
        min_isr=min_isr_in(configs),
        is_unclean_allowed=configs.get("unclean.leader.election.enable") == "true",
    )


def loss_of(draft: Draft, broker: BrokerState, key: PartitionId) -> Loss:
    """What the replica of this partition has lost, as far as its review is pending."""
    if Pending.REVOKE_ALL in broker.pending or _is_damaged(broker, key):
        return Loss.RECORDS
    if Pending.REVOKE_PAGE_CACHE in broker.pending:
        topic = draft.topic(key.topic_id)
        return Loss.UNSYNCED if topic is not None and topic.trusts_page_cache else Loss.NOTHING
    return Loss.NOTHING


def _is_damaged(broker: BrokerState, key: PartitionId) -> bool:
    """There may be 10,000 of them, and 500 keys in a slice."""
    at = bisect_left(broker.damaged, key)
    return at < len(broker.damaged) and broker.damaged[at] == key


def review_partitions(draft: Draft, command: ReviewPartitions) -> AnyResult:
    """Partitions that are gone, or hosted elsewhere by now, need nothing."""
    broker = _reviewed(draft, command)
    if isinstance(broker, Refused):
        return broker
    for key, before, rules in _hosted(draft, broker, command.partitions):
        after = review(before, broker.broker_id, rules, loss=loss_of(draft, broker, key))
        if after is not before:
            draft.put_partition(key, after)
    return Done()


def report_damage(draft: Draft, command: ReportDamage) -> AnyResult:
    """At once, as the broker may be in service; who else holds the records leads from now on."""
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
    """Those that the broker hosts, as they are when it is their turn."""
    known: dict[bytes, Rules] = {}
    for key in dict.fromkeys(PartitionId(*name) for name in names):
        before = draft.partition(key)
        if before is None or broker.broker_id not in before.replicas:
            continue
        if key.topic_id not in known:
            known[key.topic_id] = rules_of(draft, key.topic_id)
        yield key, before, known[key.topic_id]


def finish_review(draft: Draft, command: FinishReview) -> AnyResult:
    broker = registered(draft, command.broker_id, command.broker_epoch)
    if isinstance(broker, Refused):
        return broker
    if command.pending_since != broker.pending_since:
        return Refused(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"broker {command.broker_id} changed at version {broker.pending_since}, after"
            f" {command.pending_since}: review its partitions again",
        )
    if broker.pending == Pending.NOTHING:
        return Done()
    count = _count_unreviewed(draft, broker)
    if count:
        message = f"{count} partitions of broker {broker.broker_id} were not reviewed: review them"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    draft.put_broker(replace(broker, pending=Pending.NOTHING, damaged=()))
    return Done()


def _count_unreviewed(draft: Draft, broker: BrokerState) -> int:
    """In how many partitions the broker still has a part that it must not have.

    So no mistake of a controller leaves a fenced or damaged replica where an acknowledgement or an
    election counts on it. Tallies tell, at no cost; damage alone is looked for one by one.
    """
    tally = draft.base.tally_of(broker.broker_id)
    if Pending.REVOKE_ALL in broker.pending:
        return tally.in_sync + tally.eligible + tally.last_led
    in_sync = tally.in_sync if broker.fenced else 0
    unsynced = tally.unsynced if Pending.REVOKE_PAGE_CACHE in broker.pending else 0
    damaged = sum(_is_trusted(draft, broker, key) for key in broker.damaged)
    return in_sync + unsynced + damaged


def _is_trusted(draft: Draft, broker: BrokerState, name: tuple[bytes, int]) -> bool:
    """Whether an election might choose this damaged replica; if it is in sync, it was counted."""
    state = draft.partition(PartitionId(*name))
    if state is None:
        return False
    return broker.broker_id in (*state.eligible, *state.last_known_eligible)
