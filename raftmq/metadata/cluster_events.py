"""What operators want to read of a change of the metadata, in lines for the log.

Topics made, altered and deleted; leaders elected; in-sync sets changed; brokers registered. Many
partitions that changed alike, as when a broker dies, make one line with their number. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from raftmq.metadata.commands import NO_BROKER, PartitionId, RecoveryState
from raftmq.metadata.image import ChangeKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from raftmq.metadata.delta import MetadataDelta
    from raftmq.metadata.image import BrokerState, MetadataImage, PartitionState, TopicState

NAMED_MAX = 3  # partitions in one line; the others are counted
TOPICS_MAX = 10  # with a line of their own; of more at once the first are named in one line


class ClusterEvent(NamedTuple):
    text: str
    is_warning: bool = False


def broker_and_topic_events(delta: MetadataDelta, before: MetadataImage) -> list[ClusterEvent]:
    """What has changed of brokers and topics from `before`, where `delta` begins, to its image.
    Empty where the delta is incomplete: a snapshot was installed, or too much has changed.
    """
    return [
        *_of_brokers(_touched(delta, ChangeKind.BROKER), before, delta.image),
        *_of_topics(_touched(delta, ChangeKind.TOPIC), before, delta.image),
    ]


def partition_events(delta: MetadataDelta, before: MetadataImage) -> list[ClusterEvent]:
    """The same of leaders and in-sync sets."""
    return list(_of_partitions(_touched(delta, ChangeKind.PARTITION), before, delta.image))


def _touched(delta: MetadataDelta, wanted: ChangeKind) -> list[Any]:
    """In order; the keys of a kind are of one type."""
    found: list[Any] = [key for kind, key in delta.changes if kind is wanted]
    return sorted(found)


# Brokers


def _of_brokers(
    ids: Collection[int], before: MetadataImage, after: MetadataImage
) -> Iterator[ClusterEvent]:
    for broker_id in ids:
        was, now = before.brokers.get(broker_id), after.brokers.get(broker_id)
        if now is None:
            if was is not None:
                yield ClusterEvent(f"broker forgotten: broker={broker_id}")
        # Fencing and the like are logged where they are decided.
        elif was is None or was.broker_epoch != now.broker_epoch:
            yield ClusterEvent(_registered(now))


def _registered(broker: BrokerState) -> str:
    version, rack = broker.software_version or "unknown", broker.rack or "-"
    at = f"epoch={broker.broker_epoch} version={version} rack={rack}"
    return f"broker registered: broker={broker.broker_id} {at}"


# Topics


def _of_topics(
    ids: Collection[bytes], before: MetadataImage, after: MetadataImage
) -> Iterator[ClusterEvent]:
    pairs = [(before.topics.get(one), after.topics.get(one)) for one in ids]
    made = [now for was, now in pairs if now is not None and was is None]
    gone = [was for was, now in pairs if was is not None and now is None]
    yield from _each("created", {one.name: _made(one, after) for one in made})
    yield from _each("deleted", {one.name: f"partitions={one.partition_count}" for one in gone})
    altered = {}
    for was, now in pairs:
        if was is not None and now is not None and (changes := _altered(was, now)):
            altered[now.name] = changes
    yield from _each("altered", altered)


def _each(what: str, topics: dict[str, str]) -> Iterator[ClusterEvent]:
    if len(topics) > TOPICS_MAX:
        yield ClusterEvent(f"topics {what}: {counted('topics', sorted(topics))}")
        return
    for name, details in sorted(topics.items()):
        yield ClusterEvent(f"topic {what}: topic={name} {details}")


def _made(topic: TopicState, image: MetadataImage) -> str:
    replicas = len(image.partitions[PartitionId(topic.topic_id, 0)].replicas)
    configs = "".join(f" {key}={value}" for key, value in sorted(topic.configs.items()))
    return f"partitions={topic.partition_count} replicas={replicas}{configs}"


def _altered(was: TopicState, now: TopicState) -> str:
    """`key=before->after`; "" where an operator changed nothing."""
    old, new = dict(was.configs), dict(now.configs)
    if was.partition_count != now.partition_count:
        old["partitions"], new["partitions"] = str(was.partition_count), str(now.partition_count)
    keys = sorted({*old, *new})
    found = [(key, old.get(key, "default"), new.get(key, "default")) for key in keys]
    return " ".join(f"{key}={this}->{that}" for key, this, that in found if this != that)


# Partitions


def _of_partitions(
    keys: Collection[PartitionId], before: MetadataImage, after: MetadataImage
) -> Iterator[ClusterEvent]:
    led, in_sync = (
        defaultdict[ClusterEvent, list[str]](list),
        defaultdict[ClusterEvent, list[str]](list),
    )
    for key in keys:
        was, now = before.partitions.get(key), after.partitions.get(key)
        # Of topics that were made or deleted: their own line is enough.
        if was is None or now is None:
            continue
        name = f"{after.topics[key.topic_id].name}-{key.partition}"
        if was.leader != now.leader:
            led[_elected(was, now)].append(name)
        if set(was.isr) != set(now.isr):
            left, joined = _ids({*was.isr} - {*now.isr}), _ids({*now.isr} - {*was.isr})
            what = f"in-sync replicas changed: left={left} joined={joined}"
            in_sync[ClusterEvent(what)].append(name)
    for line, names in [*led.items(), *in_sync.items()]:
        yield line._replace(text=f"{line.text} {counted('partitions', names)}")


def _elected(was: PartitionState, now: PartitionState) -> ClusterEvent:
    before = "-" if was.leader == NO_BROKER else was.leader
    if now.leader == NO_BROKER:
        return ClusterEvent(f"no leader: from={before}", is_warning=True)
    if now.recovery_state is RecoveryState.RECOVERING is not was.recovery_state:
        what = f"leader elected that was not in sync: from={before} to={now.leader}"
        return ClusterEvent(what, is_warning=True)
    return ClusterEvent(f"leader elected: from={before} to={now.leader}")


def _ids(brokers: Collection[int]) -> str:
    return ",".join(map(str, sorted(brokers))) or "-"


def counted(what: str, names: list[str]) -> str:
    """`count=5 topics=a,b,c,+2`: the first few names, and how many more there are."""
    rest = len(names) - NAMED_MAX
    named = ",".join(names[:NAMED_MAX]) + (f",+{rest}" if rest > 0 else "")
    return f"count={len(names)} {what}={named}"
