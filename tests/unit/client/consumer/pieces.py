"""Batches as they come from a leader, placed at their offsets; for tests of what holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raftmq.client.consumer.completed_fetches import CompletedFetch
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.header import read_header
from raftmq.wire.batch.records import encode_batch, encode_control_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.consumer.batch import BatchPart


def data_at(base_offset: int, *values: str, epoch: int = 0, **columns: Any) -> bytes:
    """`columns`: see `encode_batch`."""
    return bytes(
        encode_batch(
            values=[value.encode() for value in values],
            timestamp=1000,
            base_offset=base_offset,
            leader_epoch=epoch,
            **columns,
        )
    )


def control_at(base_offset: int, *, epoch: int = 0) -> bytes:
    return bytes(
        encode_control_batch(
            kind=ControlType.COMMIT,
            coordinator_epoch=0,
            producer_id=1,
            producer_epoch=0,
            timestamp=1000,
            base_offset=base_offset,
            leader_epoch=epoch,
        )
    )


def piece(data: bytes) -> CompletedFetch:
    return CompletedFetch(data, 0, read_header(data), where="here")


def values_of(parts: Sequence[BatchPart]) -> list[str]:
    return [(value or b"").decode() for part in parts for value in part.cut(part.batch.values)]
