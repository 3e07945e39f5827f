"""Messages of moves: give partitions other replicas, take that back, and see what is under way.

Sent to any broker: it has moves planned by way of the quorum, and tells what it knows of them. The
controller starts them as its limits allow (decision 0044). How far a copy is, the brokers say
(`DescribeLogs`). (Kafka: AlterPartitionReassignments, ListPartitionReassignments)
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from raftmq.wire.bodies import (
    ABSENT,
    PARTITIONS_MAX,
    TIMEOUT_MS,
    Body,
    BrokerIdOrAbsent,
    BrokerIds,
    ErrorMessage,
    Milliseconds,
    Natural,
    Partition,
    PartitionOutcome,
    Request,
    TopicId,
)

MOVES_PER_PAGE = 2_000


class WantedMove(Body, frozen=True):
    """`replicas`: the preferred leader first; None takes the move back."""

    topic_id: TopicId
    partition: Partition
    replicas: BrokerIds | None = None


class MovePartitionsReply(Body, frozen=True):
    partitions: Annotated[tuple[PartitionOutcome, ...], Meta(max_length=PARTITIONS_MAX)] = ()


class MovePartitions(Request, frozen=True):
    """Answered when the moves are planned, or taken back; not when they are done. Where others have
    changed the partition or its plan meanwhile, more than once: INVALID_UPDATE_VERSION.
    """

    api_key = 45
    reply = MovePartitionsReply

    partitions: Annotated[tuple[WantedMove, ...], Meta(max_length=PARTITIONS_MAX)]
    timeout_ms: Milliseconds = TIMEOUT_MS


class MoveRow(Body, frozen=True):
    """`replicas`: those that it has now, the new ones among them once it is under way; `target`:
    those that it is to have. `waits_for`: why it has not begun, or does not go on; empty: it does.
    """

    topic_id: TopicId
    partition: Partition
    replicas: BrokerIds
    target: BrokerIds
    is_under_way: bool
    leader: BrokerIdOrAbsent = ABSENT
    waits_for: ErrorMessage = ""


class MoveCursor(Body, frozen=True):
    """The first move of a page."""

    topic_id: TopicId
    partition: Partition


class ListMovesReply(Body, frozen=True):
    """`count`: of all; `next`: where the next page begins; None: this was the last one."""

    moves: Annotated[tuple[MoveRow, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    count: Natural = 0
    next: MoveCursor | None = None


class ListMoves(Request, frozen=True):
    """Those under way first, then those that wait, in the order in which they will begin. A page
    whose first move has ended meanwhile begins at the beginning.
    """

    api_key = 46
    reply = ListMovesReply

    moves_max: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] = MOVES_PER_PAGE
    first: MoveCursor | None = None
