"""Images with a bit of everything, built from a Random: for tests that need any image at all.

They obey the shapes of the image (dense partitions, `hosted`), not the rules of `apply`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from immutables import Map
from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.apply.draft import Draft
from raftmq.metadata.commands import (
    AnyResult,
    BrokerRegistered,
    Done,
    EndOutcome,
    Endpoint,
    GroupMemberRecord,
    OffsetRefused,
    OffsetsCommitted,
    PartitionAltered,
    PartitionId,
    ProducerIdBlock,
    RecoveryState,
    Refused,
    TransactionOpened,
    TransactionsEnded,
)
from raftmq.metadata.image import (
    EMPTY_IMAGE,
    PRODUCER_ID_MAX,
    SLOT_COUNT,
    BrokerState,
    CommittedOffset,
    Crashes,
    GroupState,
    MetadataImage,
    OriginState,
    PartitionState,
    Pending,
    PlannedMove,
    SlotState,
    TopicState,
    TransactionDecision,
    TransactionState,
    UnsettledCommit,
)
from raftmq.model import AbortReason

if TYPE_CHECKING:
    from random import Random

BROKERS = range(6)
T = TypeVar("T")
NAMES = ("", "a", "größe", "x" * 200, "日本")


def random_image(
    random: Random, *, base: MetadataImage = EMPTY_IMAGE, steps: int = 12
) -> MetadataImage:
    """`base` after a command that touches at most `steps` things."""
    draft = Draft(base, base.version + random.randint(1, 5))
    for _ in range(random.randint(0, steps)):
        random.choice(STEPS)(draft, random)
    image = draft.finish()
    if random.random() < 0.5:
        origin, state = random.choice(BROKERS), _origin(random)
        image = image._replace(origins=image.origins.set(origin, state))
    return image


def _put_broker(draft: Draft, random: Random) -> None:
    broker = BrokerState(
        random.choice(BROKERS),
        random.randint(0, 1 << 40),
        random.randbytes(16),
        random.randbytes(16),
        endpoints=tuple(Endpoint("client", name, 9092) for name in _some(random, NAMES)),
        rack=random.choice([None, *NAMES]),
        boot_id=random.choice(NAMES),
        fenced=random.random() < 0.5,
        in_controlled_shutdown=random.random() < 0.5,
        pending=Pending(random.randint(0, 7)),
        pending_since=random.randint(-1, 1 << 40),
        damaged=tuple((random.randbytes(16), n) for n in range(random.randint(0, 2))),
        disk_epoch=random.randint(-1, 1 << 40),
    )
    draft.put_broker(broker)


def _put_topic(draft: Draft, random: Random) -> None:
    name = f"{random.choice(NAMES)}{random.randint(0, 99)}"
    if draft.topic_id_named(name) is not None:
        return
    topic_id, count = random.randbytes(16), random.choice([1, 2, 3, 5, 8, 150])
    configs = {name: random.choice(NAMES) for name in _some(random, NAMES)}
    trusts = random.random() < 0.5
    draft.put_topic(TopicState(topic_id, name, count, configs, random.randint(0, 99), trusts))
    for number in range(count):
        draft.put_partition(PartitionId(topic_id, number), random_partition(random))


def _change_topic(draft: Draft, random: Random) -> None:
    """One partition changes, or all of them go, or what the topic trusts."""
    topics = sorted(draft.base.topics.values(), key=lambda topic: topic.topic_id)
    if not topics or draft.topic((topic := random.choice(topics)).topic_id) is None:
        return
    keys = [PartitionId(topic.topic_id, number) for number in range(topic.partition_count)]
    if random.random() < 0.3:
        draft.put_topic(replace(topic, trusts_page_cache=True))
    if random.random() < 0.7:
        draft.put_partition(random.choice(keys), random_partition(random))
        return
    for key in keys:
        draft.remove_partition(key)
    draft.remove_topic(topic)


def random_partition(random: Random) -> PartitionState:
    replicas = _some(random, tuple(BROKERS)) or (random.choice(BROKERS),)
    return PartitionState(
        replicas,
        isr=_some(random, replicas),
        leader=random.choice([-1, *replicas]),
        leader_epoch=random.randint(0, 1 << 31),
        partition_epoch=random.randint(0, 1 << 31),
        adding=_some(random, replicas),
        removing=_some(random, replicas),
        eligible=_some(random, replicas),
        last_known_eligible=_some(random, replicas),
        recovery_state=random.choice(list(RecoveryState)),
        log_start_offset=random.choice([0, random.randint(0, 1 << 40)]),
    )


def _put_group(draft: Draft, random: Random) -> None:
    members = tuple(
        GroupMemberRecord(
            name, name, name, random.choice([None, name]), 1, 2, random.randbytes(9), b"\xff"
        )
        for name in _some(random, NAMES)
    )
    tags = random.choice(["", "eu & !test"])
    state = GroupState(random.randint(0, 99), members=members, tags=tags)
    draft.put_group(random.choice(NAMES), state)


def _put_offsets(draft: Draft, random: Random) -> None:
    """Also of topics that are not there."""
    name = random.choice(NAMES)
    topics = [random.randbytes(16), *sorted(draft.base.topics)]
    offsets = {
        PartitionId(random.choice(topics), random.randint(0, 200)): CommittedOffset(
            random.randint(0, 1 << 62),
            random.randint(-1, 9),
            random.choice(NAMES),
            1 << 41,
            random.choice([None, None, None, Crashes(2), Crashes(0, "m"), Crashes(7, "m")]),
        )
        for _ in range(random.choice([0, 1, 3, 8, 150]))
    }
    draft.put_offsets(name, draft.offsets(name).update(offsets))


def _put_slot(draft: Draft, random: Random) -> None:
    draft.put_slot(random.randrange(SLOT_COUNT), SlotState(random.choice(BROKERS), 1 << 40))


def _put_transaction(draft: Draft, random: Random) -> None:
    """With commits of producer ids that it has left; or one less."""
    name = f"{random.choice(NAMES)}t"
    if draft.transaction(name) is not None and random.random() < 0.3:
        draft.remove_transaction(name)
        return
    first, count = draft.next_producer_id, random.choice([0, 0, 1, 5, 64])
    settling = tuple(
        UnsettledCommit(first + n % 3, n, _some_partitions(random), random.randint(0, 1 << 40))
        for n in range(count)
    )
    last = TransactionDecision(
        first, random.randint(0, 99), random.random() < 0.5, random.choice(list(AbortReason)), 7
    )
    state = TransactionState(
        first + 3,
        random.randint(0, 1 << 15),
        random.randbytes(16),
        random.randint(0, 1 << 31),
        60_000,
        is_ephemeral=random.random() < 0.5,
        last=random.choice([None, last]),
        last_version=random.randint(-1, 1 << 40),
        last_count=random.randint(-1, 1 << 40),
        settling=settling,
        changed_at_ms=1 << 41,
    )
    draft.set_next_producer_id(first + 4)
    draft.put_transaction(name, state)


def _some_partitions(random: Random) -> tuple[tuple[bytes, int], ...]:
    return tuple((random.randbytes(16), n) for n in range(random.choice([1, 2, 40])))


def _put_plan(draft: Draft, random: Random) -> None:
    """Or one less."""
    keys = [key for key in sorted(draft.base.partitions) if draft.partition(key) is not None]
    if keys and random.random() < 0.7:
        replicas = _some(random, tuple(BROKERS))
        draft.put_plan(random.choice(keys), PlannedMove(replicas, random.randint(0, 1 << 40)))
    elif keys:
        draft.forget_plan(random.choice(keys))


def _raise_numbers(draft: Draft, random: Random) -> None:
    most = min(draft.next_producer_id << 8 | 1 << 20, PRODUCER_ID_MAX)
    draft.set_next_producer_id(random.randint(draft.next_producer_id, most))
    draft.set_feature_level(draft.feature_level + 1)


def _origin(random: Random) -> OriginState:
    highest = random.randint(0, 1 << 40)
    sequences = range(highest, highest - random.choice([0, 1, 5, 200]), -1)
    results = Map({sequence: random.choice(RESULTS) for sequence in sequences})
    return OriginState(random.randint(0, 1 << 40), highest, results)


def _some(random: Random, items: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(random.sample(items, random.randint(0, len(items))))


STEPS = (
    _put_broker,
    _put_topic,
    _change_topic,
    _put_group,
    _put_offsets,
    _put_slot,
    _put_transaction,
    _put_plan,
    _raise_numbers,
)
RESULTS: tuple[AnyResult, ...] = (
    Done(),
    Refused(ErrorCode.NOT_COORDINATOR, "slot 7 is at 9"),
    BrokerRegistered(1 << 40),
    PartitionAltered(1, 2, 3, (1, 2), RecoveryState.RECOVERING),
    ProducerIdBlock(1000, 10),
    OffsetsCommitted((OffsetRefused("g", b"t" * 16, 0, -1),)),
    TransactionOpened(1 << 40, 7, 60_000, 3, 4),
    TransactionsEnded((EndOutcome(3, ErrorCode.PRODUCER_FENCED, "x"), EndOutcome(4, dropped=2))),
)
