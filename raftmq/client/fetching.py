"""Batches from the leader of a partition, and offsets by time.

Everything that comes is checked before a caller sees it: CRC, order, and that it is committed. All
of it may be repeated, and is, until the time is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.client.routing.answers import check_batches
from raftmq.client.routing.attempts import Repeats, milliseconds_left
from raftmq.errors import CorruptRecord
from raftmq.wire.messages.fetch import Fetch, FetchPartition, PartitionFetched
from raftmq.wire.messages.offsets import FoundOffset, ListOffsets, WantedOffset

if TYPE_CHECKING:
    from raftmq.client.routing.cluster import Cluster
    from raftmq.client.routing.routes import Place

TIMEOUT_SECONDS = 30.0
BYTES_MAX = 1 << 20


class Fetched(NamedTuple):
    """Attributes:
    data: whole batches in a row, the first of which holds the offset that was asked for.
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
) -> Fetched:
    """What is committed from `offset` on.

    Args:
        max_wait_seconds: how long to wait for something to come.
        bytes_max: of the batches; a first one that is larger comes nevertheless.
        timeout_seconds: beyond that, how long to look for a leader that answers.

    Raises:
        OffsetOutOfRange: `offset` is before the log start or beyond the log end.
        CorruptRecord: what came is damaged, or not what was asked for.
        RaftmqError: no leader has answered; what the last attempt met.
    """
    wait_until = anyio.current_time() + max_wait_seconds
    deadline = wait_until + timeout_seconds

    async def attempt(place: Place) -> tuple[PartitionFetched, bytes | memoryview]:
        max_wait_ms = milliseconds_left(wait_until, now=anyio.current_time())
        body = _question(place, offset, max_wait_ms=max_wait_ms, bytes_max=bytes_max)
        return await cluster.ask_leader(place, body, deadline=deadline)

    told, data = await cluster.at_leader(
        topic, partition, attempt, deadline=deadline, repeats=Repeats.HARMLESS
    )
    where = f"fetch of {topic}-{partition} from {offset}"
    if len(data) != told.length:
        raise CorruptRecord(f"{len(data)} bytes came, {told.length} were announced", where=where)
    check_batches(data, offset, high_watermark=told.high_watermark, where=where)
    return Fetched(data, told.high_watermark, told.log_start_offset)


async def list_offset(
    cluster: Cluster,
    topic: str,
    partition: int,
    timestamp: int,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> int:
    """The offset that belongs to a time.

    Args:
        timestamp: milliseconds since 1970-01-01 UTC; or LATEST, where what is committed ends, or
            EARLIEST, where the log starts.

    Returns:
        The offset of the first record at or after `timestamp`; -1 if no record is so young.

    Raises:
        RaftmqError: no leader has answered; what the last attempt met.
    """
    deadline = anyio.current_time() + timeout_seconds

    async def attempt(place: Place) -> int:
        wanted = WantedOffset(place.topic_id, place.partition, place.leader_epoch, timestamp)
        found: FoundOffset
        found, _ = await cluster.ask_leader(place, ListOffsets((wanted,)), deadline=deadline)
        return found.offset

    return await cluster.at_leader(
        topic, partition, attempt, deadline=deadline, repeats=Repeats.HARMLESS
    )


def _question(place: Place, offset: int, *, max_wait_ms: int, bytes_max: int) -> Fetch:
    wanted = FetchPartition(
        place.topic_id, place.partition, offset, place.leader_epoch, bytes_max=bytes_max
    )
    return Fetch(max_wait_ms, 1, bytes_max, partitions=(wanted,))
