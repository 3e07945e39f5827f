"""Batches for tests, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.wire.batch.records import encode_batch
from tests.log_reading import read_batches

if TYPE_CHECKING:
    from raftmq.partition.storage.log import PartitionLog

NOW_MS = 1_700_000_000_000


def batch(*values: bytes, timestamp: int = NOW_MS) -> bytes:
    return bytes(encode_batch(values=list(values) or [b"x"], timestamp=timestamp))


def append(
    log: PartitionLog,
    *values: bytes,
    epoch: int = 0,
    timestamp: int = NOW_MS,
    now: float = 0.0,
) -> int:
    """Append one batch; returns the log end offset."""
    data = batch(*values, timestamp=timestamp)
    return log.append(data, leader_epoch=epoch, now_ms=NOW_MS, now=now).end_offset


def values_of(log: PartitionLog) -> list[bytes | None]:
    """Every record's value, read and checked."""
    values: list[bytes | None] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for found in read_batches(log, offset):
            values += [r.value for r in found.records() if r.offset >= log.log_start_offset]
            offset = found.header.end_offset
    return values
