"""One partition on six brokers, and what its leader and its operator say, in one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raftmq.metadata.commands import (
    AlterPartition,
    ElectionKind,
    ElectLeader,
    FenceBroker,
    FinishReview,
    PartitionId,
    ProposedIsrMember,
    ReassignPartition,
    ReviewPartitions,
    UnfenceBroker,
)
from tests.metadata_invariants import check, check_step
from tests.unit.metadata.states import (
    ORDERS,
    after,
    cluster,
    create,
    epoch_of,
)

if TYPE_CHECKING:
    from raftmq.metadata.image import MetadataImage, PartitionState

KEY = PartitionId(ORDERS, 0)


def hosting(
    replicas: tuple[int, ...] = (0, 1, 2), *, out: tuple[int, ...] = (), **configs: str
) -> MetadataImage:
    """Six active brokers and a partition; those in `out` were fenced, and are back out of sync."""
    image = after(cluster(6), create(replicas, **configs))
    for broker_id in out:
        image = after(gone(image, broker_id), UnfenceBroker(broker_id, epoch_of(broker_id)))
    return image


def gone(image: MetadataImage, broker_id: int) -> MetadataImage:
    """Fenced and reviewed."""
    image = after(image, FenceBroker(broker_id, epoch_of(broker_id)))
    since = image.brokers[broker_id].pending_since
    image = after(image, ReviewPartitions(broker_id, epoch_of(broker_id), (KEY,)))
    return after(image, FinishReview(broker_id, epoch_of(broker_id), since))


def of(image: MetadataImage) -> PartitionState:
    return image.partitions[KEY]


def proposal(image: MetadataImage, *isr: int, **more: Any) -> AlterPartition:
    """From the leader, who knows the newest state, unless `more` says otherwise."""
    state = of(image)
    fields = {
        "broker_id": state.leader,
        "broker_epoch": epoch_of(state.leader),
        "topic_id": ORDERS,
        "partition": 0,
        "leader_epoch": state.leader_epoch,
        "partition_epoch": state.partition_epoch,
        "isr": tuple(ProposedIsrMember(b, epoch_of(b)) for b in isr),
    } | more
    return AlterPartition(**fields)


def altered(image: MetadataImage, *isr: int) -> MetadataImage:
    changed = after(image, proposal(image, *isr))
    check(changed)
    check_step(image, changed)
    return changed


def move(image: MetadataImage, *replicas: int) -> MetadataImage:
    command = ReassignPartition(ORDERS, 0, of(image).partition_epoch, replicas)
    changed = after(image, command)
    check(changed)
    check_step(image, changed)
    return changed


def cancel(image: MetadataImage) -> ReassignPartition:
    return ReassignPartition(ORDERS, 0, of(image).partition_epoch, None)


def elect(kind: ElectionKind) -> ElectLeader:
    return ElectLeader(ORDERS, 0, kind)
