"""What brokers of a simulated cluster answer about one partition, and about several at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raftmq.errors import ErrorCode, RaftmqError
from raftmq.rpc.reply import Reply
from raftmq.wire.batch.header import named_producer_id
from raftmq.wire.messages.corruption import CorruptionVerdict, ReportCorruptionReply
from raftmq.wire.messages.fetch import Diverging, FetchReply, PartitionFetched
from raftmq.wire.messages.produce import PartitionProduced, ProduceReply
from raftmq.wire.messages.producers import FenceProducerReply, PartitionFenced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.wire.messages.fetch import LeftOutRange
    from raftmq.wire.messages.producers import FenceProducer
    from tests.unit.client.world import World


def produced(
    world: World,
    wanted: Any,
    error: ErrorCode = ErrorCode.NONE,
    *,
    base_offset: int = -1,
    base_offsets: tuple[int, ...] = (),
    allowed: int = -1,
) -> Reply:
    partition = world.find(wanted.topic_id, wanted.partition)
    found = PartitionProduced(
        wanted.topic_id,
        wanted.partition,
        error,
        error.name if error else "",
        base_offset,
        log_start_offset=-1 if error or partition is None else partition.log_start_offset,
        base_offsets=base_offsets,
        allowed=allowed,
        **(world.hint(wanted) if error else {}),
    )
    return Reply(ProduceReply((found,)))


def fetched(
    world: World,
    wanted: Any,
    error: ErrorCode = ErrorCode.NONE,
    data: bytes = b"",
    diverging: Diverging | None = None,
    isolation: int = 0,
    left_out: tuple[LeftOutRange, ...] = (),
) -> Reply:
    partition = world.find(wanted.topic_id, wanted.partition)
    found = PartitionFetched(
        wanted.topic_id,
        wanted.partition,
        error,
        high_watermark=partition.end_offset if partition else -1,
        log_start_offset=partition.log_start_offset if partition else -1,
        length=len(data),
        diverging=diverging,
        last_stable_offset=partition.end_for(isolation) if partition else -1,
        aborted=partition.aborted(isolation, data) if partition else (),
        left_out=left_out,
        **world.hint(wanted),
    )
    return Reply(FetchReply(partitions=(found,)), (data,) if data else ())


def fenced(world: World, body: FenceProducer, refusal: Callable[[Any], ErrorCode]) -> Reply:
    """`refusal`: of a partition, whatever its log says."""
    partitions = [_fenced(world, body, wanted, refusal(wanted)) for wanted in body.partitions]
    return Reply(FenceProducerReply(named_producer_id(body.name), tuple(partitions)))


def _fenced(world: World, body: FenceProducer, wanted: Any, error: ErrorCode) -> PartitionFenced:
    place = wanted.topic_id, wanted.partition
    partition = world.find(*place)
    state = None
    if partition is not None and not error:
        try:
            state = partition.fence(body.name, body.generation, body.partition_count)
        except RaftmqError as refused:
            error = refused.code
    if state is None:
        return PartitionFenced(*place, error, error.name, **world.hint(wanted))
    return PartitionFenced(
        *place,
        producer_epoch=state.epoch,
        next_sequence=state.next_sequence,
        digest=state.digest,
        partition_count=state.partition_count,
    )


def joined(replies: Sequence[Reply], kind: Any = ProduceReply) -> Reply:
    """One answer about several partitions."""
    partitions = [found for reply in replies for found in reply.body.partitions]  # type: ignore
    payload = [piece for reply in replies for piece in reply.payload]
    return Reply(kind(partitions=tuple(partitions)), payload)


def looked(verdict: CorruptionVerdict) -> Reply:
    """Where somebody has reported damage."""
    return Reply(ReportCorruptionReply(verdict=verdict))
