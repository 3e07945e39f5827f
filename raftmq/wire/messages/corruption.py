"""Messages of bit rot: a reader reports corrupt records to the leader; describe damage of replicas.

A report is a reason to check, and no evidence: the leader reads its own disk (decision 0027).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

from msgspec import Meta

from raftmq.errors import ErrorCode
from raftmq.wire.bodies import (
    ABSENT,
    Body,
    ErrorMessage,
    ErrorNumber,
    LeaderEpochOrAbsent,
    Natural,
    Offset,
    Partition,
    Request,
    TopicId,
)

DAMAGED_MAX = 500  # replicas in one answer; their texts of 1,000 characters fit into a header


class CorruptionVerdict(IntEnum):
    NOT_LOOKED = 0  # not checked, the queue is full or has a report of this client: report again
    WHOLE = 1  # the disk is right: the reader's memory or network is not
    ROTTEN = 2  # not served again; another replica leads soon, if any can


class ReportCorruptionReply(Body, frozen=True):
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    verdict: Annotated[int, Meta(ge=0, le=127)] = CorruptionVerdict.NOT_LOOKED


class ReportCorruption(Request, frozen=True):
    """The batch at `offset`, as the leader of that epoch sent it, failed the reader's check."""

    api_key = 1007
    reply = ReportCorruptionReply

    topic_id: TopicId
    partition: Partition
    offset: Offset
    leader_epoch: LeaderEpochOrAbsent = ABSENT


class DamagedReplicaRow(Body, frozen=True):
    """`offset`: the first that cannot be read, or written."""

    topic_id: TopicId
    partition: Partition
    offset: Offset
    message: ErrorMessage = ""


class DescribeDamageReply(Body, frozen=True):
    """`count`: of all ailing replicas, also if the answer has only the first ones."""

    replicas: Annotated[tuple[DamagedReplicaRow, ...], Meta(max_length=DAMAGED_MAX)] = ()
    count: Natural = 0


class DescribeDamage(Request, frozen=True):
    """The replicas on the broker that is asked whose logs are damaged, or take nothing, as on a
    full disk; a client asks each broker.
    """

    api_key = 1008
    reply = DescribeDamageReply
