"""Leaders of a cluster that keeps its logs in lists, as they deliver what is scheduled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.header import read_header
from raftmq.wire.batch.records import RecordBatch
from raftmq.wire.batch.scheduling import delivery_of, read_mark

if TYPE_CHECKING:
    from tests.unit.client.logs import Partition
    from tests.unit.client.world import World


async def deliver_due(world: World, began_ms: int) -> None:
    """Until cancelled. `began_ms`: what the clock of brokers showed at the time 0."""
    while True:
        appended = world.appended
        partitions = [one for topic in world.topics.values() for one in topic.partitions]
        next_due = min([_deliver(one, began_ms) for one in partitions], default=math.inf)
        with trio.move_on_at(next_due):
            await appended.wait()


def _deliver(partition: Partition, began_ms: int) -> float:
    """What is due. Returns when the next one is."""
    next_due = math.inf
    for data in pending(partition):
        header = read_header(data)
        mark = read_mark(data, 0, header)
        assert mark is not None, "scheduled, and without a mark"
        now = trio.current_time()
        due = max((mark.due_ms - began_ms) / 1000, 0.0)
        if due <= now:
            now_ms = began_ms + int(now * 1000)
            made = delivery_of(data, original_offset=header.base_offset, now_ms=now_ms)
            partition.place(bytes(made))
        else:
            next_due = min(next_due, due)
    return next_due


def pending(partition: Partition) -> list[bytes]:
    """What is scheduled, committed and not delivered, in the order of its offsets."""
    found: dict[int, bytes] = {}
    undecided: dict[int, list[bytes]] = {}
    for data in partition.data:
        header = read_header(data)
        mark = read_mark(data, 0, header)
        if header.is_scheduled and header.is_transactional:
            undecided.setdefault(header.producer_id, []).append(data)
        elif header.is_scheduled:
            found[header.base_offset] = data
        elif mark is not None and mark.delivers is not None:
            del found[mark.delivers]
        elif header.is_control and header.producer_id in undecided:
            decided = undecided.pop(header.producer_id)
            if RecordBatch.decode(data).control.type == ControlType.COMMIT:
                found |= {read_header(one).base_offset: one for one in decided}
    return [found[offset] for offset in sorted(found)]
