"""Batches as brokers send them to a reader with a filter of tags, and as that reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.wire.batch.directory import read_directory
from raftmq.wire.batch.head import head_length, iter_sent, partial_head, passes
from raftmq.wire.batch.header import BytesOrigin, check_batch
from raftmq.wire.batch.records import DecodeLimits, RecordBatch

if TYPE_CHECKING:
    from raftmq.tag_filter import TagFilter
    from raftmq.wire.batch.records import Record


def sent(batch: bytes | bytearray, asked: TagFilter) -> bytes:
    """As a broker sends it that leaves out what it may."""
    header = check_batch(batch)
    entries, position = read_directory(batch, 0, header)
    chunks = []
    for entry in entries:
        if passes(entry, asked):
            chunks.append(bytes(batch[position : position + entry.byte_length]))
        position += entry.byte_length
    head = bytes(batch[: head_length(batch, 0, header)])
    return partial_head(head, header, sum(map(len, chunks))) + b"".join(chunks)


def read(data: bytes | bytearray, asked: TagFilter) -> list[Record]:
    records: list[Record] = []
    for position, _, header in iter_sent(data, asked):
        batch = RecordBatch(data, header, BytesOrigin(position), DecodeLimits(), asked)
        if batch.header.record_count:
            records += batch.records()
    return records
