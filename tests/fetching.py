"""`fetch`: encoded batches of one partition from its leader, without a consumer.

For tests and benchmarks that want bytes. Batches are checked before a caller sees them: CRC, order,
and that they are committed. All of it only reads, so it is repeated until the time is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.client.routing.attempts import RepeatEffect, milliseconds_left
from raftmq.errors import CorruptRecord
from raftmq.wire.batch.header import iter_batches
from raftmq.wire.messages.fetch import Fetch, FetchPartition, PartitionFetched

if TYPE_CHECKING:
    from raftmq.client.routing.cluster import Cluster
    from raftmq.client.routing.routes import LeaderPlace
    from raftmq.wire.batch.header import Buffer

TIMEOUT_SECONDS = 30.0  # for all attempts: covers the election of a leader
BYTES_MAX = 1 << 20  # of one answer; the default max.message.bytes


class FetchedChunk(NamedTuple):
    """The result of a fetch.

    Attributes:
        data: whole batches in a row, the first of which holds the requested offset.
        high_watermark: everything before it is committed.
        log_start_offset: everything before it has been deleted.
    """

    data: bytes | memoryview
    high_watermark: int
    log_start_offset: int


async def fetch(
    cluster: Cluster,
    topic: str,
    partition: int,
    offset: int,
    *,
    max_wait_seconds: float = 0.5,
    bytes_max: int = BYTES_MAX,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> FetchedChunk:
    """Committed batches from `offset` on.

    Args:
        max_wait_seconds: how long the broker may wait for records (long poll).
        bytes_max: of the batches; a first one that is larger comes nevertheless.
        timeout_seconds: beyond that, how long to look for a leader that answers.

    Raises:
        OffsetOutOfRange: `offset` is before the log start or beyond the log end.
        CorruptRecord: the bytes are damaged, or not what was requested.
        RaftmqError: no leader has answered; of the last attempt.
    """
    wait_until = anyio.current_time() + max_wait_seconds
    deadline = wait_until + timeout_seconds

    async def attempt(place: LeaderPlace) -> tuple[PartitionFetched, bytes | memoryview]:
        max_wait_ms = milliseconds_left(wait_until, now=anyio.current_time())
        body = _question(place, offset, max_wait_ms=max_wait_ms, bytes_max=bytes_max)
        return await cluster.ask_leader(place, body, deadline=deadline)

    told, data = await cluster.at_leader(
        topic, partition, attempt, deadline=deadline, repeats=RepeatEffect.HARMLESS
    )
    where = f"fetch of {topic}-{partition} from {offset}"
    if len(data) != told.length:  # the header and the payload disagree
        raise CorruptRecord(f"{len(data)} bytes came, {told.length} were announced", where=where)
    check_batches(data, offset, high_watermark=told.high_watermark, where=where)
    return FetchedChunk(data, told.high_watermark, told.log_start_offset)


def _question(place: LeaderPlace, offset: int, *, max_wait_ms: int, bytes_max: int) -> Fetch:
    wanted = FetchPartition(
        place.topic_id, place.partition, offset, place.leader_epoch, bytes_max=bytes_max
    )
    return Fetch(max_wait_ms, 1, bytes_max, partitions=(wanted,))


def check_batches(data: Buffer, offset: int, *, high_watermark: int, where: str) -> None:
    """Check that `data` is what a fetch from `offset` may bring: batches without gaps, all
    committed.

    Raises:
        CorruptRecord: says what is wrong, and at which byte.
    """
    expected = None
    for position, header in iter_batches(data, where=where):
        problem = ""
        if expected is None and not header.base_offset <= offset < header.end_offset:
            problem = f"offsets {header.base_offset} to {header.end_offset}, wanted {offset}"
        elif expected is not None and header.base_offset != expected:
            problem = f"base offset {header.base_offset}, expected {expected}"
        elif header.end_offset > high_watermark:
            problem = f"end offset {header.end_offset}, committed is up to {high_watermark}"
        if problem:
            raise CorruptRecord(problem, position=position, where=where)
        expected = header.end_offset
