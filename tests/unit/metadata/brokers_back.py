"""Brokers that come back to what they host, and reviews as a controller does them, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from raftmq.metadata.commands import (
    FenceBroker,
    FinishReview,
    RegisterBroker,
    ReviewPartitions,
    UnfenceBroker,
)
from raftmq.metadata.image import PartitionId
from tests.metadata_invariants import check
from tests.unit.metadata.states import ORDERS, after, cluster, create, epoch_of

if TYPE_CHECKING:
    from raftmq.metadata.image import BrokerState, MetadataImage, PartitionState

BOOT = "8f14e45f"
NEW_DISK = b"another of 16 by"
KEY = PartitionId(ORDERS, 0)


def register(broker_id: int = 0, **more: Any) -> RegisterBroker:
    """The same disk as in `cluster`, under the same kernel, another process."""
    fields = {
        "incarnation": b"i" * 16,
        "directory_id": broker_id.to_bytes(16, "big"),
        "previous_broker_epoch": epoch_of(broker_id),
        "boot_id": BOOT,
    } | more
    return RegisterBroker(broker_id, **fields)


def hosting(*assignments: tuple[int, ...], **configs: str) -> MetadataImage:
    """Three active brokers of one boot, and a topic."""
    image = after(cluster(), create(*assignments, **configs))
    brokers = image.brokers
    for broker_id, broker in image.brokers.items():
        brokers = brokers.set(broker_id, replace(broker, boot_id=BOOT))
    return image._replace(brokers=brokers)


def broker_of(image: MetadataImage, broker_id: int = 0) -> BrokerState:
    return image.brokers[broker_id]


def epoch_in(image: MetadataImage, broker_id: int = 0) -> int:
    return image.brokers[broker_id].broker_epoch


def partition_of(image: MetadataImage, number: int = 0) -> PartitionState:
    return image.partitions[PartitionId(ORDERS, number)]


def reviewed(image: MetadataImage, broker_id: int = 0) -> MetadataImage:
    """As the controller does it: every hosted partition, then the end."""
    broker = image.brokers[broker_id]
    hosted = tuple(sorted(image.hosted_by(broker_id)))
    review = ReviewPartitions(broker_id, broker.broker_epoch, hosted)
    finish = FinishReview(broker_id, broker.broker_epoch, broker.pending_since)
    image = after(image, review, finish)
    check(image)
    return image


def back(image: MetadataImage, broker_id: int = 0) -> MetadataImage:
    """Its review is over: it is unfenced, and what it may lead is seen again."""
    image = after(image, UnfenceBroker(broker_id, epoch_in(image, broker_id)))
    return reviewed(image, broker_id)


def fence(image: MetadataImage, *broker_ids: int) -> MetadataImage:
    return after(image, *(FenceBroker(b, epoch_in(image, b)) for b in broker_ids))
