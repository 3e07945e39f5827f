"""Consumers that call the handler of one broker directly, under a MockClock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from raftmq.wire.batch.records import RecordBatch
from raftmq.wire.messages.fetch import WITHOUT_SESSION, Fetch
from tests.unit.broker.copying import (
    CLIENT,
    answered,
    payload_of,
)
from tests.unit.partition.replica_world import led_by, settle
from tests.unit.storage.batches import batch

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from raftmq.partition.replica import Replica
    from raftmq.rpc.reply import Reply
    from raftmq.wire.messages.fetch import FetchPartition
    from tests.unit.broker.copying import Copier

ALONE = led_by(1, replicas=(1,))


def ask(
    broker: Copier,
    *partitions: FetchPartition,
    session: tuple[int, int] = (0, WITHOUT_SESSION),
    wait_ms: int = 0,
    bytes_min: int = 1,
    bytes_max: int = 1 << 20,
    **fields: Any,
) -> Awaitable[Reply]:
    request = Fetch(wait_ms, bytes_min, bytes_max, *session, partitions=partitions, **fields)
    return answered(broker.fetching.fetch(CLIENT, request, b""))


async def leading(broker: Copier, *values: bytes, partition: int = 0) -> Replica:
    """One batch for each value, all of them committed."""
    replica = await broker.take_up(ALONE, partition)
    for value in values:
        replica.append(batch(value), acks=1)
    await settle()
    return replica


def values_in(reply: Reply) -> list[bytes | None]:
    data, at = payload_of(reply), 0
    values: list[bytes | None] = []
    while at < len(data):
        found = RecordBatch.decode(data, at)
        values += [record.value for record in found.records()]
        at += found.header.size
    return values


class Parked:
    """A fetch in a task of its own."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.ended_at = -1.0

    async def run(self, answer: Awaitable[Reply]) -> None:
        began_at = trio.current_time()
        self.replies.append(await answer)
        self.ended_at = trio.current_time() - began_at

    @property
    def is_waiting(self) -> bool:
        return not self.replies
