"""What a batch of a named producer says of its producer: by its directory, or as a fence. Pure.

Owns the difference between the two, and how much of a batch has to be read for it: whoever walks
from header to header need not read the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.wire.directory import ACCOUNT_END, read_account
from raftmq.wire.header import COMPRESSION_BITS, HEADER_SIZE
from raftmq.wire.named import is_named
from raftmq.wire.records import RecordBatch

if TYPE_CHECKING:
    from raftmq.wire.header import BatchHeader, Buffer
    from raftmq.wire.named import Account

FENCE_BYTES_MAX = 1024  # of a whole batch; today's have less than 100


def account_length(header: BatchHeader) -> int:
    """How many bytes of a batch, from its first one on, say what it says; 0: it says nothing."""
    if not is_named(header.producer_id):
        return 0
    if not header.is_control:
        return ACCOUNT_END if header.is_columns and header.size >= ACCOUNT_END else 0
    return header.size if _may_be_fence(header) else 0


def account_of(buffer: Buffer, position: int, header: BatchHeader) -> Account | None:
    """What the batch at `position` says, of which `account_length` bytes must be there; None if it
    says nothing.

    Raises:
        CorruptRecord: a fence that is not sound.
    """
    if not account_length(header):
        return None
    if not header.is_control:
        return read_account(buffer, position, header)
    return RecordBatch.decode(buffer, position).control.account


def _may_be_fence(header: BatchHeader) -> bool:
    is_plain = not header.is_columns and not header.attributes & COMPRESSION_BITS
    return (
        is_plain
        and HEADER_SIZE < header.size <= FENCE_BYTES_MAX
        and header.producer_epoch >= 0
        and header.base_sequence >= 0
    )
