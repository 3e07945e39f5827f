"""Bytes that are not what was written: told to their leader, and what a broker knows of its own.

A report is a reason to look, and no evidence: the leader reads its own disk.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from raftmq.errors import ErrorCode
from raftmq.wire.apis import ApiKey
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

DAMAGED_MAX = 500  # replicas in one answer


class CorruptionVerdict(IntEnum):
    NOT_LOOKED = 0  # too many others want it to look, or you, elsewhere: say it again
    WHOLE = 1  # the reader got something else than stands on the disk
    ROTTEN = 2  # not served again; another one leads soon, if any can


class ReportCorruptionReply(Body, frozen=True):
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    verdict: Annotated[int, Meta(ge=0, le=127)] = CorruptionVerdict.NOT_LOOKED


class ReportCorruption(Request, frozen=True):
    """What the leader of that epoch sent from `offset` on failed a reader's check."""

    api_key: ClassVar[ApiKey] = ApiKey.REPORT_CORRUPTION
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = ReportCorruptionReply

    topic_id: TopicId
    partition: Partition
    offset: Offset
    leader_epoch: LeaderEpochOrAbsent = ABSENT


class DamagedReplicaRow(Body, frozen=True):
    """`offset`: the first that cannot be read."""

    topic_id: TopicId
    partition: Partition
    offset: Offset
    message: ErrorMessage = ""


class DescribeDamageReply(Body, frozen=True):
    """`count`: of all, also if not all are told."""

    replicas: Annotated[tuple[DamagedReplicaRow, ...], Meta(max_length=DAMAGED_MAX)] = ()
    count: Natural = 0


class DescribeDamage(Request, frozen=True):
    """Which of the replicas on this broker are damaged. Asked of each."""

    api_key: ClassVar[ApiKey] = ApiKey.DESCRIBE_DAMAGE
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = DescribeDamageReply
