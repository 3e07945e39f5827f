"""What the leader of a log tells readers of its transactions, found by walking over all batches.

Owns no state: it is slow, and has nothing in common with the product's index and counters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.header import read_header
from raftmq.wire.batch.records import RecordBatch, encode_batch, encode_control_batch
from raftmq.wire.messages.fetch import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.wire.batch.header import Buffer


def in_transaction(producer_id: int, *values: str) -> bytes:
    return bytes(
        encode_batch(
            values=[value.encode() for value in values],
            timestamp=1000,
            producer_id=producer_id,
            producer_epoch=0,
            transactional=True,
        )
    )


def marker(producer_id: int, kind: ControlType) -> bytes:
    """The marker that ends what the producer has open."""
    return bytes(
        encode_control_batch(
            kind=kind,
            coordinator_epoch=0,
            producer_id=producer_id,
            producer_epoch=1,
            timestamp=1000,
        )
    )


def last_stable_offset(batches: Iterable[Buffer], end_offset: int) -> int:
    """The first offset of what is open; the end, where nothing is."""
    return min(
        (first for first, _, end in _transactions(batches) if end is None), default=end_offset
    )


def aborted_in(
    batches: Iterable[Buffer], first_offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    """Aborted transactions with an offset in that range, their markers included."""
    return tuple(
        AbortedTransaction(producer_id, first, end[1])
        for first, producer_id, end in _transactions(batches)
        if end is not None
        and end[0] == ControlType.ABORT
        and first < end_offset
        and end[1] >= first_offset
    )


def committed_offsets(batches: Iterable[Buffer]) -> list[int]:
    """Offsets of the records that a reader of committed ones gets, in order."""
    batches = list(batches)
    transactions = _transactions(batches)
    stable = last_stable_offset(batches, read_header(batches[-1]).end_offset) if batches else 0
    found: list[int] = []
    for data in batches:
        header = read_header(data)
        is_aborted = header.is_transactional and any(
            producer_id == header.producer_id
            and end is not None
            and end[0] == ControlType.ABORT
            and first <= header.base_offset < end[1]
            for first, producer_id, end in transactions
        )
        if not (header.is_control or is_aborted or header.base_offset >= stable):
            found += RecordBatch.decode(data).offsets
    return found


def _transactions(
    batches: Iterable[Buffer],
) -> list[tuple[int, int, tuple[int, int] | None]]:
    """First offset, producer id, and kind and offset of the marker; None: it is open."""
    begun: dict[int, int] = {}
    found: list[tuple[int, int, tuple[int, int] | None]] = []
    for data in batches:
        header = read_header(data)
        if not header.is_transactional:
            continue
        if not header.is_control:
            begun.setdefault(header.producer_id, header.base_offset)
        elif header.producer_id in begun:
            kind = RecordBatch.decode(data).control.type
            first = begun.pop(header.producer_id)
            found.append((first, header.producer_id, (kind, header.base_offset)))
    return found + [(first, producer_id, None) for producer_id, first in begun.items()]
