"""Produce request and reply: record batches for partition leaders, acks, offsets of duplicates.

The payload holds the batches of each partition, in the order in which the message names them.
With acks=0 there is no reply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from raftmq.errors import ErrorCode, RemoteProtocolError
from raftmq.wire.bodies import (
    ABSENT,
    PARTITIONS_MAX,
    Acks,
    Body,
    BrokerIdOrAbsent,
    ByteCount,
    ErrorMessage,
    ErrorNumber,
    LeaderEpochOrAbsent,
    Milliseconds,
    NaturalOrAbsent,
    Offset,
    OffsetOrAbsent,
    Partition,
    Request,
    Timestamp,
    TopicId,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


# Of one partition in one request: a reply has to name their offsets, up to 900 KB (`base_offsets`),
# and a header may have 2 MiB.
BATCHES_MAX = 100_000


class ProducePartition(Body, frozen=True):
    """`leader_epoch`: of the leader by the producer's metadata; -1: not known."""

    topic_id: TopicId
    partition: Partition
    leader_epoch: LeaderEpochOrAbsent
    length: ByteCount  # of its batches in the payload


class PartitionProduced(Body, frozen=True):
    """Leader and epoch are filled in with errors after which a client needs fresh metadata.

    A base offset beside an error means that the batches were appended, and may stay or not
    (indefinite). `base_offsets`: of each batch if there were duplicates among them, and they do not
    follow each other; else empty. `log_append_time_ms`: of all records, in a topic whose leader
    stamps them, and `log_append_times_ms` where there were duplicates: of each batch, -1 where the
    leader does not know it any more. `allowed`: with MESSAGE_TOO_LARGE the bytes that a batch may
    have, with INVALID_TIMESTAMP the highest timestamp, so that the producer can find the records
    that are refused.
    """

    topic_id: TopicId
    partition: Partition
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    base_offset: OffsetOrAbsent = ABSENT
    log_append_time_ms: Timestamp = ABSENT
    log_start_offset: OffsetOrAbsent = ABSENT
    leader: BrokerIdOrAbsent = ABSENT
    leader_epoch: LeaderEpochOrAbsent = ABSENT
    base_offsets: Annotated[tuple[Offset, ...], Meta(max_length=BATCHES_MAX)] = ()
    allowed: NaturalOrAbsent = ABSENT
    log_append_times_ms: Annotated[tuple[OffsetOrAbsent, ...], Meta(max_length=BATCHES_MAX)] = ()


class ProduceReply(Body, frozen=True):
    partitions: Annotated[tuple[PartitionProduced, ...], Meta(max_length=PARTITIONS_MAX)] = ()


class Produce(Request, frozen=True):
    """`acks`: how many replicas must hold the batches; -1: all in sync. 0: do not answer."""

    api_key = 0
    reply = ProduceReply

    acks: Acks
    timeout_ms: Milliseconds
    partitions: Annotated[tuple[ProducePartition, ...], Meta(max_length=PARTITIONS_MAX)]


# -- Payloads -------------------------------------------------------------------------------------
# The payload of Produce and of the replies to fetches: the batches of several partitions in a row.
#
# Splits it by partition, without decoding it.


def split_payload(lengths: Sequence[int], payload: bytes | memoryview) -> list[memoryview]:
    """One view of `payload` for each of `lengths`, in order; nothing is copied.

    Raises:
        RemoteProtocolError: the lengths do not add up to the payload.
    """
    view = memoryview(payload)
    if sum(lengths) != len(view):
        raise RemoteProtocolError(
            f"payload of {len(view)} bytes, its {len(lengths)} partitions have {sum(lengths)}"
        )
    views, position = [], 0
    for length in lengths:
        views.append(view[position : position + length])
        position += length
    return views
