"""A mutable draft of the next metadata image, while one command is applied.

Owns the bookkeeping of every change: which objects changed, the index of hosted partitions, the
tallies of brokers and which partitions move (invariants 1, 5 and 8 of `image`). The rules are in
the other modules of `apply`; they read through the draft, so that a rule sees the earlier changes
of the same command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from immutables import Map

from raftmq.metadata.commands import NO_BROKER, PartitionId
from raftmq.metadata.image import DELETED_TOPICS_MAX, ChangeKind, SlotState, Tallying, TouchedKey

if TYPE_CHECKING:
    from immutables import MapMutation

    from raftmq.metadata.image import (
        BrokerState,
        CommittedOffset,
        GroupState,
        MetadataImage,
        PartitionState,
        PlannedMove,
        TopicState,
        TransactionState,
    )


class Draft:
    """Attributes:
    base: the image before the command.
    version: the index of the command, which the new image will have.
    """

    def __init__(self, base: MetadataImage, version: int) -> None:
        self.base, self.version = base, version
        self._changes: dict[TouchedKey, None] = {}
        self._partitions: MapMutation[PartitionId, PartitionState] | None = None
        self._hosted: dict[int, MapMutation[PartitionId, None]] = {}
        self._tallying = Tallying()
        self._image = base

    # Brokers

    def broker(self, broker_id: int) -> BrokerState | None:
        return self._image.brokers.get(broker_id)

    def put_broker(self, broker: BrokerState) -> None:
        """A new broker epoch is a new process: its command ids count from 0 again."""
        before = self.broker(broker.broker_id)
        if before is not None and before.broker_epoch != broker.broker_epoch:
            self._forget_commands(broker.broker_id)
        brokers = self._image.brokers.set(broker.broker_id, broker)
        self._image = self._image._replace(brokers=brokers)
        self._touch(ChangeKind.BROKER, broker.broker_id)

    def remove_broker(self, broker_id: int) -> None:
        self._forget_commands(broker_id)
        self._image = self._image._replace(brokers=self._image.brokers.delete(broker_id))
        self._touch(ChangeKind.BROKER, broker_id)

    def _forget_commands(self, broker_id: int) -> None:
        if broker_id in self._image.origins:
            self._image = self._image._replace(origins=self._image.origins.delete(broker_id))

    def is_active(self, broker_id: int) -> bool:
        return self._image.is_active(broker_id)

    def is_unfenced(self, broker_id: int) -> bool:
        return self._image.is_unfenced(broker_id)

    # Topics and partitions

    def topic(self, topic_id: bytes) -> TopicState | None:
        return self._image.topics.get(topic_id)

    def topic_id_named(self, name: str) -> bytes | None:
        return self._image.topic_ids.get(name)

    def put_topic(self, topic: TopicState) -> None:
        self._tally_anew(topic)
        self._image = self._image._replace(
            topics=self._image.topics.set(topic.topic_id, topic),
            topic_ids=self._image.topic_ids.set(topic.name, topic.topic_id),
            deleted_topics=self._deleted_but(topic.topic_id),
        )
        self._touch(ChangeKind.TOPIC, topic.topic_id)

    def remove_topic(self, topic: TopicState) -> None:
        """The topic only; its partitions are removed one by one before."""
        self._image = self._image._replace(
            topics=self._image.topics.delete(topic.topic_id),
            topic_ids=self._image.topic_ids.delete(topic.name),
            deleted_topics=(*self._image.deleted_topics, topic.topic_id)[-DELETED_TOPICS_MAX:],
        )
        self._touch(ChangeKind.TOPIC, topic.topic_id)

    def _deleted_but(self, topic_id: bytes) -> tuple[bytes, ...]:
        """`deleted_topics` without `topic_id`: a late copy of CreateTopic may create the topic
        again under its old id, and then its directories must not be removed (decision 0030).
        """
        deleted = self._image.deleted_topics
        # The usual case: a new id, or a change of an existing topic.
        if topic_id in self._image.topics or topic_id not in deleted:
            return deleted
        return tuple(one for one in deleted if one != topic_id)

    def _tally_anew(self, topic: TopicState) -> None:
        """Count the partitions of a topic again when its `trusts_page_cache` changes."""
        before = self.topic(topic.topic_id)
        if before is None or before.trusts_page_cache == topic.trusts_page_cache:  # the usual case
            return
        for number in range(before.partition_count):
            state = self.partition(PartitionId(topic.topic_id, number))
            if state is not None and state.eligible:  # only `Tally.unsynced` depends on the flag
                self._tallying.add(state, trusts_page_cache=before.trusts_page_cache, times=-1)
                self._tallying.add(state, trusts_page_cache=topic.trusts_page_cache)

    def partition(self, key: PartitionId) -> PartitionState | None:
        # This command has changed partitions: read its own changes.
        if self._partitions is not None:
            return self._partitions.get(key)
        return self._image.partitions.get(key)

    def put_partition(self, key: PartitionId, state: PartitionState) -> None:
        before = self.partition(key)
        self._host(key, () if before is None else before.replicas, state.replicas)
        self._tally(key, before, state)
        self._note_move(key, before, state)
        self._open_partitions()[key] = state
        self._touch(ChangeKind.PARTITION, key)

    def remove_partition(self, key: PartitionId) -> None:
        """With its plan, if it has one."""
        before = self.partition(key)
        assert before is not None, f"{key} is not there"
        self._host(key, before.replicas, ())
        self._tally(key, before, None)
        self._note_move(key, before, None)
        self.forget_plan(key)
        del self._open_partitions()[key]
        self._touch(ChangeKind.PARTITION, key)

    def _open_partitions(self) -> MapMutation[PartitionId, PartitionState]:
        if self._partitions is None:
            self._partitions = self._image.partitions.mutate()
        return self._partitions

    def _host(self, key: PartitionId, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        if before == after:  # the usual change: of leader or ISR only
            return
        for broker_id in before:
            if broker_id not in after:
                del self._open_hosted(broker_id)[key]
        for broker_id in after:
            if broker_id not in before:
                self._open_hosted(broker_id)[key] = None

    def _open_hosted(self, broker_id: int) -> MapMutation[PartitionId, None]:
        keys = self._hosted.get(broker_id)
        if keys is None:
            keys = self._hosted[broker_id] = self._image.hosted_by(broker_id).mutate()
        return keys

    def _tally(
        self, key: PartitionId, before: PartitionState | None, after: PartitionState | None
    ) -> None:
        topic = self.topic(key.topic_id)
        trusts = topic is not None and topic.trusts_page_cache
        if before is not None:  # not a new partition
            self._tallying.add(before, trusts_page_cache=trusts, times=-1)
        if after is not None:  # not a removed one
            self._tallying.add(after, trusts_page_cache=trusts)

    def _note_move(
        self, key: PartitionId, before: PartitionState | None, after: PartitionState | None
    ) -> None:
        moving = self._image.moving
        if after is not None and after.is_moving:
            self._image = self._image._replace(moving=moving.set(key, after.adding))
        elif before is not None and before.is_moving:
            self._image = self._image._replace(moving=moving.delete(key))

    # Plans of moves

    @property
    def plan_count(self) -> int:
        return len(self._image.moves)

    def plan(self, key: PartitionId) -> PlannedMove | None:
        return self._image.moves.get(key)

    def put_plan(self, key: PartitionId, plan: PlannedMove) -> None:
        self._image = self._image._replace(moves=self._image.moves.set(key, plan))
        self._touch(ChangeKind.MOVE, key)

    def forget_plan(self, key: PartitionId) -> None:
        if key in self._image.moves:  # most partitions have none
            self._image = self._image._replace(moves=self._image.moves.delete(key))
            self._touch(ChangeKind.MOVE, key)

    # The rest

    def slot(self, slot: int) -> SlotState:
        return self._image.slots[slot]

    def put_slot(self, slot: int, state: SlotState) -> None:
        slots = self._image.slots
        self._image = self._image._replace(slots=(*slots[:slot], state, *slots[slot + 1 :]))
        self._touch(ChangeKind.SLOT, slot)

    def release_slots(self, broker_id: int) -> None:
        """Its slots have no coordinator now: its process has ended, or a new one knows no group.

        The epoch rises, so that late commands of the old coordinator are refused (decision 0021).
        """
        for number, state in enumerate(self._image.slots):
            if state.broker_id == broker_id:
                self.put_slot(number, SlotState(NO_BROKER, state.epoch + 1))

    @property
    def group_count(self) -> int:
        return len(self._image.groups)

    def group(self, name: str) -> GroupState | None:
        return self._image.groups.get(name)

    def put_group(self, name: str, group: GroupState) -> None:
        self._image = self._image._replace(groups=self._image.groups.set(name, group))
        self._touch(ChangeKind.GROUP, name)

    def remove_group(self, name: str) -> None:
        """The group, where there is one; its offsets are removed by `put_offsets`."""
        if name in self._image.groups:  # a group may have offsets only
            self._image = self._image._replace(groups=self._image.groups.delete(name))
            self._touch(ChangeKind.GROUP, name)

    def offsets(self, group: str) -> Map[PartitionId, CommittedOffset]:
        return self._image.offsets.get(group, Map())

    def put_offsets(self, group: str, offsets: Map[PartitionId, CommittedOffset]) -> None:
        """Replace all offsets of a group; an empty map removes it from the image."""
        every = self._image.offsets
        if offsets:  # a group without offsets has no entry at all, so equal states have equal maps
            every = every.set(group, offsets)
        elif group in every:  # removed from the map: no empty entries
            every = every.delete(group)
        self._image = self._image._replace(offsets=every)
        self._touch(ChangeKind.OFFSETS, group)

    @property
    def transaction_count(self) -> int:
        return len(self._image.transactions)

    def transaction(self, transaction_id: str) -> TransactionState | None:
        return self._image.transactions.get(transaction_id)

    def put_transaction(self, transaction_id: str, state: TransactionState) -> None:
        ids = self._transaction_ids(transaction_id, state)
        transactions = self._image.transactions.set(transaction_id, state)
        self._image = self._image._replace(transactions=transactions, transaction_ids=ids)

    def put_member(self, transaction_id: str, state: TransactionState) -> None:
        """One more member of the version that is open, and nothing else: it decides nothing, so no
        leader has to look at what is open.
        """
        transactions = self._image.transactions.set(transaction_id, state)
        self._image = self._image._replace(transactions=transactions)

    def remove_transaction(self, transaction_id: str) -> None:
        ids = self._transaction_ids(transaction_id, None)
        transactions = self._image.transactions.delete(transaction_id)
        self._image = self._image._replace(transactions=transactions, transaction_ids=ids)

    def _transaction_ids(
        self, transaction_id: str, after: TransactionState | None
    ) -> Map[int, str]:
        """The index once the id is so. Touches what it had and what it has: leaders look at each
        for what is open there."""
        before = self.transaction(transaction_id)
        had = frozenset() if before is None else before.producer_ids()
        has = frozenset() if after is None else after.producer_ids()
        ids = self._image.transaction_ids
        for producer_id in had - has:
            ids = ids.delete(producer_id)
        for producer_id in has - had:
            ids = ids.set(producer_id, transaction_id)
        state = before if after is None else after
        is_shared = state is not None and state.shared is not None  # for ever: see `join`
        kind = ChangeKind.TRANSACTION_BLOCK if is_shared else ChangeKind.TRANSACTION
        for producer_id in sorted(had | has):
            self._touch(kind, producer_id)
        return ids

    @property
    def next_producer_id(self) -> int:
        return self._image.next_producer_id

    def set_next_producer_id(self, value: int) -> None:
        self._image = self._image._replace(next_producer_id=value)
        self._touch(ChangeKind.PRODUCER_IDS, 0)

    @property
    def feature_level(self) -> int:
        return self._image.feature_level

    def set_feature_level(self, level: int) -> None:
        self._image = self._image._replace(feature_level=level)
        self._touch(ChangeKind.FEATURE_LEVEL, 0)

    # The outcome

    def finish(self) -> MetadataImage:
        image = self._image
        # At least one partition was changed; mutations are opened only then.
        if self._partitions is not None:
            image = image._replace(partitions=self._partitions.finish(), hosted=self._all_hosted())
        return image._replace(
            version=self.version,
            tallies=self._tallying.added_to(image.tallies),
            changes=tuple(self._changes),
        )

    def _all_hosted(self) -> Map[int, Map[PartitionId, None]]:
        hosted = self._image.hosted
        for broker_id, changed in self._hosted.items():
            keys = changed.finish()
            if keys:  # as for offsets: no empty maps
                hosted = hosted.set(broker_id, keys)
            elif broker_id in hosted:  # the last replica is gone
                hosted = hosted.delete(broker_id)
        return hosted

    def _touch(self, kind: ChangeKind, key: object) -> None:
        self._changes[TouchedKey(kind, key)] = None
