"""What the logs of a simulated cluster have scheduled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.wire.batch.records import RecordBatch

if TYPE_CHECKING:
    from tests.unit.client.world import World


def batches_in(world: World, partition: int = 0, topic: str = "t") -> list[RecordBatch]:
    batches = world.topics[topic].partitions[partition].batches
    return [RecordBatch.decode(data) for _, _, data in batches]


def due_in(world: World, partition: int = 0, topic: str = "t") -> list[int | None]:
    """The due time of each record, in order; None: it is not scheduled."""
    return [
        None if batch.mark is None else batch.mark.due_ms
        for batch in batches_in(world, partition, topic)
        if not batch.is_control
        for _ in batch.offsets
    ]
