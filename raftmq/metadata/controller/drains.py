"""Brokers that stop: whether they still lead what another could lead.

Owns the walks through what they host. A partition that is found on the way is for the elections;
a broker is drained when one whole walk has found none. What no other broker could lead stays with
it to the end, and stops with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raftmq.metadata.controller.looks import Walk

if TYPE_CHECKING:
    from raftmq.metadata.commands import PartitionId
    from raftmq.metadata.controller.looks import Looks
    from raftmq.metadata.image import BrokerState, MetadataImage, PartitionState


@dataclass
class _Drain:
    broker_epoch: int
    walk: Walk[PartitionId]
    has_found: bool = False
    version: int | None = None  # of the image in which it was drained


class Drains:
    """One for each incarnation that stops, after its review."""

    def __init__(self) -> None:
        self._drains: dict[int, _Drain] = {}

    def look(self, image: MetadataImage, broker: BrokerState, looks: Looks) -> list[PartitionId]:
        """Go on, if it is not drained; what another broker could lead at once."""
        drain = self._drains.get(broker.broker_id)
        if drain is None or drain.broker_epoch != broker.broker_epoch:
            drain = self._drains[broker.broker_id] = _begun(image, broker)
        if drain.version is not None:
            return []
        if not image.led_count(broker.broker_id):
            drain.version = image.version
            return []
        found = [
            key
            for key in drain.walk.go(looks)
            if _could_move(image, image.partitions.get(key), broker.broker_id)
        ]
        drain.has_found |= bool(found)
        if drain.walk.is_over and drain.has_found:
            self._drains[broker.broker_id] = _begun(image, broker)
        elif drain.walk.is_over:
            drain.version = image.version
        return found

    def drained_at(self, broker: BrokerState) -> int | None:
        """The version in which it led nothing that another could lead; None: not yet."""
        drain = self._drains.get(broker.broker_id)
        is_mine = drain is not None and drain.broker_epoch == broker.broker_epoch
        return drain.version if drain and is_mine else None


def _begun(image: MetadataImage, broker: BrokerState) -> _Drain:
    return _Drain(broker.broker_epoch, Walk(image.hosted_by(broker.broker_id)))


def _could_move(image: MetadataImage, partition: PartitionState | None, broker_id: int) -> bool:
    """Whether it leads this one, and another broker could at once, losing nothing."""
    if partition is None or partition.leader != broker_id:
        return False
    return any(map(image.is_active, (*partition.isr, *partition.eligible)))
