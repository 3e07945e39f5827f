"""Checks the invariants of a metadata image, and of each step to the next one.

Owns the assertions behind the invariants of `raftmq.metadata.image`, for simulations and tests:
they scan the whole image. A violation is an AssertionError
that names the object. Changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from raftmq.metadata.commands import NO_BROKER, NO_OFFSET, PartitionId, RecoveryState
from raftmq.metadata.election import min_isr_of
from raftmq.metadata.image import (
    DELETED_TOPICS_MAX,
    MEMBERS_MAX,
    MOVES_MAX,
    PRODUCER_ID_MAX,
    RECENT_COMMANDS_MAX,
    SLOT_COUNT,
    ChangeKind,
    MetadataImage,
    Pending,
    Tallying,
    TouchedKey,
)
from raftmq.metadata.transactions import LAST_EPOCH, outcome_of
from raftmq.model import Durability, TransactionOutcome
from raftmq.topic_config import parse_topic_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.metadata.image import (
        BrokerState,
        PartitionState,
        SharedVersions,
        TopicState,
        TransactionState,
    )

# From one outcome to the next one; a commit that is settled is forgotten (decision 0038).
_ORDER = (
    TransactionOutcome.FORGED,
    TransactionOutcome.AHEAD,
    TransactionOutcome.OPEN,
    TransactionOutcome.COMMITTED,
    TransactionOutcome.ABORTED,
)
OUTCOME_STEPS = {(a, b) for place, a in enumerate(_ORDER) for b in _ORDER[place:]}

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def check(image: MetadataImage) -> None:
    """Everything that holds within one image."""
    _check_topics(image)
    _check_hosted(image)
    _check_tallies(image)
    _check_moves(image)
    for key, partition in image.partitions.items():
        _check_partition(key, partition)
        _check_eligible(image, key, partition)
        _check_members(image, key, partition)
    for broker_id, broker in image.brokers.items():
        _check_broker(image, broker_id, broker)
    _check_coordination(image)
    _check_transactions(image)
    _check_origins(image)


def _check_topics(image: MetadataImage) -> None:
    deleted = set(image.deleted_topics)
    assert len(image.deleted_topics) <= DELETED_TOPICS_MAX, "deleted topics are forgotten"
    assert len(deleted) == len(image.deleted_topics), "each deleted topic once"
    assert not any(topic_id in deleted for topic_id in image.topics), "deleted, and there"
    names = {topic.name: topic_id for topic_id, topic in image.topics.items()}
    assert dict(image.topic_ids.items()) == names, "topic_ids mirrors topics"
    expected = 0
    for topic_id, topic in image.topics.items():
        assert topic.topic_id == topic_id, f"topic {topic.name} is filed under another id"
        assert topic.config_epoch <= image.version, f"topic {topic.name} is of the future"
        durability = parse_topic_config(topic.configs).durability
        is_recorded = topic.trusts_page_cache or durability is not Durability.PAGE_CACHE
        assert is_recorded, f"topic {topic.name} trusts page caches, and does not say so"
        for key in (PartitionId(topic_id, number) for number in range(topic.partition_count)):
            assert key in image.partitions, f"{key} of topic {topic.name} is missing"
        expected += topic.partition_count
    assert len(image.partitions) == expected, "a partition without a topic"


def _check_hosted(image: MetadataImage) -> None:
    """Invariant 1."""
    expected: dict[int, set[PartitionId]] = {}
    for key, partition in image.partitions.items():
        for broker_id in partition.replicas:
            expected.setdefault(broker_id, set()).add(key)
    hosted = {broker_id: set(keys) for broker_id, keys in image.hosted.items()}
    assert hosted == expected, "hosted mirrors the replicas of all partitions"
    strangers = hosted.keys() - set(image.brokers)
    assert not strangers, f"brokers {strangers} host partitions, but are not registered"


def _check_tallies(image: MetadataImage) -> None:
    """Invariant 5."""
    counted = Tallying()
    for key, partition in image.partitions.items():
        trusts = image.topics[key.topic_id].trusts_page_cache
        counted.add(partition, trusts_page_cache=trusts)
    expected = counted.added_to(MetadataImage().tallies)
    assert image.tallies == expected, f"tallies {image.tallies} instead of {expected}"


def _check_moves(image: MetadataImage) -> None:
    """Invariants 8 and 9."""
    moving = {key: it.adding for key, it in image.partitions.items() if it.adding or it.removing}
    assert dict(image.moving.items()) == moving, "moving mirrors the partitions"
    assert len(image.moves) <= MOVES_MAX, "too many moves are planned"
    for key, plan in image.moves.items():
        assert key in image.partitions, f"{key} is planned to move, and not there"
        target = image.partitions[key].target
        assert plan.replicas != target, f"{key} is becoming {target} in any case"
        assert set(plan.replicas) <= set(image.brokers), f"{key}: {plan} names a stranger"
        assert plan.planned_at <= image.version, f"{key}: {plan} is of the future"
    versions = [plan.planned_at for plan in image.moves.values()]
    assert len(set(versions)) == len(versions), "two plans have one place in the line"


def _check_partition(key: PartitionId, partition: PartitionState) -> None:
    """Invariant 2."""
    replicas, isr, eligible = partition.replicas, partition.isr, partition.eligible
    last_known = partition.last_known_eligible
    for part in (replicas, isr, eligible, partition.adding, partition.removing, last_known):
        assert len(set(part)) == len(part), f"{key}: {part} names a broker twice"
        assert set(part) <= set(replicas), f"{key}: {part} is not among replicas {replicas}"
    assert replicas, f"{key} has no replicas"
    assert partition.leader == NO_BROKER or partition.leader in isr, f"{key}: leader outside ISR"
    assert not set(isr) & set(eligible), f"{key}: in sync and eligible at once"
    assert not set(partition.adding) & set(partition.removing), f"{key}: added and removed at once"
    assert set(partition.removing) < set(replicas), f"{key}: all replicas are to be removed"
    assert partition.leader == NO_BROKER or not last_known, f"{key}: led, and last led"
    is_alone = len(isr) <= 1  # after an unclean election the ISR is the leader until RECOVERED
    assert partition.recovery_state == RecoveryState.RECOVERED or is_alone, f"{key}: RECOVERING"


def _check_eligible(image: MetadataImage, key: PartitionId, partition: PartitionState) -> None:
    """Eligible replicas exist only below min ISR: at min ISR the leader commits without them."""
    configs = image.topics[key.topic_id].configs
    configured = parse_topic_config(configs).min_insync_replicas
    min_isr = min_isr_of(partition, configured, image.feature_level)
    assert not partition.eligible or len(partition.isr) < min_isr, f"{key}: eligible at min ISR"


def _check_members(image: MetadataImage, key: PartitionId, partition: PartitionState) -> None:
    """Invariant 3."""
    for broker_id in partition.isr:
        is_pending = image.brokers[broker_id].pending != Pending.NOTHING
        assert image.is_unfenced(broker_id) or is_pending, f"{key}: {broker_id} is in sync, fenced"


def _check_broker(image: MetadataImage, broker_id: int, broker: BrokerState) -> None:
    assert broker.broker_id == broker_id, f"broker {broker.broker_id} is filed under {broker_id}"
    assert broker.broker_epoch <= image.version, f"broker {broker_id} is of the future"
    assert broker.disk_epoch <= broker.broker_epoch, f"broker {broker_id}: its disk is ahead"
    is_known = broker.fenced or broker.disk_epoch == broker.broker_epoch
    assert is_known, f"broker {broker_id} is in service under an epoch that its disk may not know"
    assert list(broker.damaged) == sorted(broker.damaged), f"broker {broker_id}: damage unsorted"
    assert broker.pending_since <= image.version, f"broker {broker_id}: pending is of the future"
    if broker.pending == Pending.NOTHING:
        assert not broker.damaged, f"broker {broker_id}: damage that nobody will review"
    else:
        assert not image.is_active(broker_id), f"broker {broker_id} is active before its review"
    revoked = broker.pending & (Pending.REVOKE_ALL | Pending.REVOKE_PAGE_CACHE)
    assert broker.fenced or not (revoked or broker.damaged), f"broker {broker_id} is unfenced"


def _check_coordination(image: MetadataImage) -> None:
    assert len(image.slots) == SLOT_COUNT, "slots are fixed"
    assert 0 <= image.next_producer_id <= PRODUCER_ID_MAX + 1, "producer ids ran out"
    for group, offsets in image.offsets.items():
        assert offsets, f"group {group} has an empty map of offsets"
        for entry in offsets.values():
            is_counted = entry.crashes is not None and entry.crashes.count > 0
            is_none = entry.offset == NO_OFFSET and is_counted  # only crashes are known
            assert entry.offset >= 0 or is_none, f"group {group}: offset {entry.offset}"


def _check_transactions(image: MetadataImage) -> None:
    """Invariant 7."""
    expected: dict[int, str] = {}
    for name, state in image.transactions.items():
        for producer_id in state.producer_ids():
            assert producer_id not in expected, f"producer id {producer_id} has two names"
            assert 0 <= producer_id < image.next_producer_id, f"{name}: {producer_id} is not given"
            expected[producer_id] = name
        _check_settling(name, state)
    assert dict(image.transaction_ids) == expected, "transaction_ids mirrors transactions"


def _check_settling(name: str, state: TransactionState) -> None:
    """Commits of epochs that are over, each once, the oldest first."""
    decided = [(one.producer_id, one.producer_epoch) for one in state.settling]
    assert decided == sorted(set(decided)), f"{name}: {decided} are not in order, or twice"
    if state.shared is None:
        assert 0 <= state.producer_epoch <= LAST_EPOCH, f"{name}: epoch {state.producer_epoch}"
        present = state.producer_id, state.producer_epoch
        assert all(one < present for one in decided), f"{name}: open"
    else:
        _check_shared(name, state, state.shared)
    assert all(one.partitions for one in state.settling), f"{name}: nothing left to settle"
    versions = [one.decided_at for one in state.settling]
    assert versions == sorted(versions), f"{name}: {versions}"


def _check_shared(name: str, state: TransactionState, shared: SharedVersions) -> None:
    blocks = [one.producer_id for one in state.settling]
    assert (state.producer_id, state.producer_epoch) == (-1, -1), f"{name} is shared"
    assert shared.block not in blocks, f"{name}: committed, and open"
    assert not any(block % MEMBERS_MAX for block in (*blocks, max(shared.block, 0))), f"{name}"
    assert all(one.numbers.rstrip(bytes(1)) for one in state.settling), f"{name}: nobody listed"
    if shared.block < 0:
        assert (shared.open_version, shared.joined) == (-1, 0), f"{name}: {shared}"
    else:
        assert shared.open_version > state.last_version, f"{name}: a version is opened again"
        assert 0 < shared.joined <= MEMBERS_MAX, f"{name}: {shared}"


def _check_origins(image: MetadataImage) -> None:
    for origin, memory in image.origins.items():
        assert origin in image.brokers, f"remembers commands of {origin}, who is not registered"
        lowest = memory.highest - RECENT_COMMANDS_MAX
        assert all(lowest < number <= memory.highest for number in memory.results), (
            f"origin {origin} remembers more than its window"
        )


def check_step(before: MetadataImage, after: MetadataImage) -> None:
    """What holds between an image and the one that the next command made of it."""
    assert after.version > before.version, "versions rise"
    assert after.feature_level >= before.feature_level, "a feature level is never lowered"
    assert after.next_producer_id >= before.next_producer_id, "a producer id is given once"
    for broker_id, broker in _in_both(before.brokers, after.brokers):
        assert after.brokers[broker_id].broker_epoch >= broker.broker_epoch, f"broker {broker_id}"
        assert after.brokers[broker_id].pending_since >= broker.pending_since, f"{broker_id}"
    for topic_id, topic in _in_both(before.topics, after.topics):
        _check_topic_step(topic, after.topics[topic_id])
    for key, partition in _in_both(before.partitions, after.partitions):
        _check_partition_step(key, partition, after.partitions[key])
    for number, (old, new) in enumerate(zip(before.slots, after.slots, strict=True)):
        assert new.epoch > old.epoch or new == old, f"slot {number} changed within an epoch"
    for name, group in _in_both(before.groups, after.groups):
        generation = after.groups[name].generation
        assert generation > group.generation or after.groups[name] == group, f"group {name}"
    for name, state in _in_both(before.transactions, after.transactions):
        _check_transaction_step(before, after, name, state)
    _check_changes(before, after)


def _in_both(
    before: Mapping[_Key, _Value], after: Mapping[_Key, _Value]
) -> list[tuple[_Key, _Value]]:
    """Entries of `before` that were replaced by others."""
    if before is after:  # shared map: nothing changed in it
        return []
    return [
        (key, value) for key, value in before.items() if key in after and after[key] is not value
    ]


def _check_topic_step(before: TopicState, after: TopicState) -> None:
    name = before.name
    assert after.name == name, f"topic {name} was renamed to {after.name}"
    assert after.partition_count >= before.partition_count, f"topic {name} lost partitions"
    assert after.trusts_page_cache >= before.trusts_page_cache, f"topic {name}: once is for ever"
    has_new_epoch = after.config_epoch > before.config_epoch
    assert has_new_epoch or after.configs == before.configs, f"topic {name}: same config epoch"


def _check_partition_step(key: PartitionId, before: PartitionState, after: PartitionState) -> None:
    """Invariant 4."""
    epochs = f"{key}: {before} became {after}"
    assert after == before or after.partition_epoch > before.partition_epoch, epochs
    assert after.leader_epoch >= before.leader_epoch, epochs
    assert after.log_start_offset >= before.log_start_offset, epochs
    has_dropped = not set(before.replicas) <= set(after.replicas)
    if after.leader != before.leader or has_dropped:
        assert after.leader_epoch > before.leader_epoch, epochs


def _check_transaction_step(
    before: MetadataImage, after: MetadataImage, name: str, old: TransactionState
) -> None:
    """Epochs and versions rise, and outcomes move one way."""
    new = after.transactions[name]
    assert new.last_version >= old.last_version, f"{name}: {old} became {new}"
    if old.shared is not None:
        _check_shared_step(before, after, name, old)
        return
    present = new.producer_id, new.producer_epoch
    assert present >= (old.producer_id, old.producer_epoch), f"{name}: {old} became {new}"
    for producer_id in old.producer_ids() | new.producer_ids():
        for epoch in {old.producer_epoch, new.producer_epoch, *_epochs(old), *_epochs(new)}:
            step = outcome_of(before, producer_id, epoch), outcome_of(after, producer_id, epoch)
            assert step in OUTCOME_STEPS, f"{name}: ({producer_id}, {epoch}): {step}"


def _check_shared_step(
    before: MetadataImage, after: MetadataImage, name: str, old: TransactionState
) -> None:
    """As for single producers, of each member that is known, and of the next one."""
    new = after.transactions[name]
    assert old.shared is not None
    assert new.shared is not None, f"{name}: {old} became {new}"
    assert new.shared.lineage == old.shared.lineage, f"{name}: {old} became {new}"
    if old.shared.block == new.shared.block:
        assert new.shared.joined >= old.shared.joined, f"{name}: {old} became {new}"
    elif new.shared.block >= 0:
        assert new.shared.block > old.shared.block, f"{name}: {old} became {new}"
    joined = max(old.shared.joined, new.shared.joined)
    listed = [8 * len(one.numbers) for one in (*old.settling, *new.settling)]
    members = range(min(MEMBERS_MAX, max(joined, *listed, 0) + 1))
    for block in old.producer_ids() | new.producer_ids():
        for number in members:
            step = outcome_of(before, block + number, 0), outcome_of(after, block + number, 0)
            assert step in OUTCOME_STEPS, f"{name}: {block} + {number}: {step}"


def _epochs(state: TransactionState) -> set[int]:
    return {one.producer_epoch for one in state.settling}


def _check_changes(before: MetadataImage, after: MetadataImage) -> None:
    """Every difference is named in `changes`, as deltas are made from it alone."""
    slots = (dict(enumerate(before.slots)), dict(enumerate(after.slots)))
    found = {
        TouchedKey(kind, key)
        for kind, old, new in (
            (ChangeKind.BROKER, before.brokers, after.brokers),
            (ChangeKind.TOPIC, before.topics, after.topics),
            (ChangeKind.PARTITION, before.partitions, after.partitions),
            (ChangeKind.SLOT, *slots),
            (ChangeKind.GROUP, before.groups, after.groups),
            (ChangeKind.OFFSETS, before.offsets, after.offsets),
            (ChangeKind.MOVE, before.moves, after.moves),
        )
        for key in _different(old, new)
    }
    rows = before.transactions, after.transactions
    for name in _different(*rows):  # each producer id that it had, or has
        states = [row[name] for row in rows if name in row]
        if len(states) > 1 and _has_one_member_more(*states):
            continue  # which decides nothing
        for state in states:
            is_single = state.shared is None
            kind = ChangeKind.TRANSACTION if is_single else ChangeKind.TRANSACTION_BLOCK
            found |= {TouchedKey(kind, each) for each in state.producer_ids()}
    if after.next_producer_id != before.next_producer_id:
        found.add(TouchedKey(ChangeKind.PRODUCER_IDS, 0))
    if after.feature_level != before.feature_level:
        found.add(TouchedKey(ChangeKind.FEATURE_LEVEL, 0))
    missing = found - set(after.changes)
    assert not missing, f"changed, but not named in `changes`: {missing}"


def _has_one_member_more(old: TransactionState, new: TransactionState) -> bool:
    if old.shared is None or new.shared is None or old.shared.block != new.shared.block:
        return False
    as_before = replace(new.shared, joined=old.shared.joined)
    return replace(new, shared=as_before, changed_at_ms=old.changed_at_ms) == old


def _different(before: Mapping[Any, object], after: Mapping[Any, object]) -> set[object]:
    if before is after:  # shared map: nothing changed in it
        return set()
    either = set(before) | set(after)
    return {key for key in either if before.get(key) != after.get(key)}
