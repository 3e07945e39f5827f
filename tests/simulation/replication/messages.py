"""Messages between replicas in the simulation. Data only."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from raftmq.partition.leader import Diverged

if TYPE_CHECKING:
    from raftmq.errors import ErrorCode
    from raftmq.metadata.commands import PartitionId
    from raftmq.partition.leader import FetchFromLeader
    from tests.simulation.replication.disk import Record


class FetchRequest(NamedTuple):
    key: PartitionId
    broker_id: int
    broker_epoch: int
    leader_epoch: int
    fetch: FetchFromLeader


class Progress(NamedTuple):
    key: PartitionId
    broker_id: int
    broker_epoch: int
    leader_epoch: int
    held_offset: int


class Records(NamedTuple):
    base_offset: int
    records: list[Record]
    high_watermark: int
    log_start_offset: int


class OutOfRange(NamedTuple):
    log_start_offset: int


class Failed(NamedTuple):
    code: ErrorCode


Answer: TypeAlias = Records | OutOfRange | Failed | Diverged
